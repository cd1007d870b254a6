package clients

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
	mqtt3 "github.com/eclipse/paho.mqtt.golang"
)

// pahoGo is paho.golang, for MQTT 5.
type pahoGo struct {
	inbox
	cm      *autopaho.ConnectionManager
	resumed bool
}

func preparePahoGo(*testing.T) opener { return openPahoGo }

func openPahoGo(t *testing.T, target string, _ int, o options) (session, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	p := &pahoGo{inbox: newInbox()}
	up := make(chan *paho.Connack, 1)
	failed := make(chan error, 1)
	cfg := autopaho.ClientConfig{
		ServerUrls: []*url.URL{u}, KeepAlive: 30, CleanStartOnInitialConnection: !o.resume,
		OnConnectionUp:   func(_ *autopaho.ConnectionManager, ack *paho.Connack) { up <- ack },
		OnConnectionDown: func() bool { return false },
		OnConnectError: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
		ClientConfig: paho.ClientConfig{
			ClientID: o.id,
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(r paho.PublishReceived) (bool, error) {
				p.put(pahoGoMessage(r.Packet))
				return true, nil
			}},
		},
	}
	if o.resume {
		cfg.SessionExpiryInterval = 300
	}
	if w := o.will; w != nil {
		cfg.WillMessage = &paho.WillMessage{Topic: w.topic, Payload: []byte(w.payload), QoS: byte(w.qos), Retain: w.retain}
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	if p.cm, err = autopaho.NewConnection(ctx, cfg); err != nil {
		return nil, err
	}
	select {
	case ack := <-up:
		p.resumed = ack.SessionPresent
	case err := <-failed:
		return nil, err
	case <-time.After(patience):
		return nil, context.DeadlineExceeded
	}
	if len(o.subs) > 0 {
		s := &paho.Subscribe{}
		for _, f := range o.subs {
			s.Subscriptions = append(s.Subscriptions, paho.SubscribeOptions{Topic: f.filter, QoS: byte(f.qos)})
		}
		if _, err := p.cm.Subscribe(ctx, s); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func pahoGoMessage(p *paho.Publish) message {
	m := message{topic: p.Topic, payload: string(p.Payload), qos: int(p.QoS), retain: p.Retain}
	if q := p.Properties; q != nil {
		m.contentType, m.responseTopic, m.correlation = q.ContentType, q.ResponseTopic, string(q.CorrelationData)
		var user []string
		for _, u := range q.User {
			user = append(user, u.Key+":"+u.Value)
		}
		m.user = strings.Join(user, " ")
	}
	return m
}

func (p *pahoGo) publish(ms ...message) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, m := range ms {
		q := &paho.PublishProperties{ContentType: m.contentType, ResponseTopic: m.responseTopic, CorrelationData: []byte(m.correlation)}
		for pair := range strings.FieldsSeq(m.user) {
			name, value, _ := strings.Cut(pair, ":")
			q.User.Add(name, value)
		}
		if _, err := p.cm.Publish(ctx, &paho.Publish{
			Topic: m.topic, QoS: byte(m.qos), Retain: m.retain, Payload: []byte(m.payload), Properties: q,
		}); err != nil {
			return err
		}
	}
	return nil
}

func (p *pahoGo) present() (present, known bool) { return p.resumed, true }

func (p *pahoGo) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return p.cm.Disconnect(ctx)
}

// pahoGo3 is paho.mqtt.golang, for MQTT 3.1.1.
type pahoGo3 struct {
	inbox
	client  mqtt3.Client
	resumed bool
}

func preparePahoGo3(*testing.T) opener { return openPahoGo3 }

func openPahoGo3(_ *testing.T, target string, version int, o options) (session, error) {
	p := &pahoGo3{inbox: newInbox()}
	receive := func(_ mqtt3.Client, m mqtt3.Message) {
		p.put(message{topic: m.Topic(), payload: string(m.Payload()), qos: int(m.Qos()), retain: m.Retained()})
	}
	opts := mqtt3.NewClientOptions().AddBroker(target).SetClientID(o.id).SetProtocolVersion(uint(version)).
		SetCleanSession(!o.resume).SetAutoReconnect(false).SetConnectTimeout(patience).SetDefaultPublishHandler(receive)
	if w := o.will; w != nil {
		opts.SetWill(w.topic, w.payload, byte(w.qos), w.retain)
	}
	p.client = mqtt3.NewClient(opts)
	connect := p.client.Connect()
	if err := await(connect); err != nil {
		return nil, err
	}
	p.resumed = connect.(*mqtt3.ConnectToken).SessionPresent()
	for _, f := range o.subs {
		if err := await(p.client.Subscribe(f.filter, byte(f.qos), nil)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *pahoGo3) publish(ms ...message) error {
	for _, m := range ms {
		if err := await(p.client.Publish(m.topic, byte(m.qos), m.retain, m.payload)); err != nil {
			return err
		}
	}
	return nil
}

func (p *pahoGo3) present() (present, known bool) { return p.resumed, true }

func (p *pahoGo3) close() error {
	p.client.Disconnect(250)
	return nil
}

func await(token mqtt3.Token) error {
	if !token.WaitTimeout(patience) {
		return context.DeadlineExceeded
	}
	return token.Error()
}

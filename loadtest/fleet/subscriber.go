package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"
)

// subscriber reads all messages of the run over MQTT with a persistent session, and keeps itself connected.
type subscriber struct {
	fleet  *Fleet
	filter string
	check  *checker
	times  *latency
	link   *link
	away   chan bool // true: leave, false: come back
}

// mqttPlace says how a message came.
type mqttPlace struct{ *paho.Publish }

func (p mqttPlace) String() string {
	return fmt.Sprintf("packet identifier %d, QoS %d, DUP %t", p.PacketID, p.QoS, p.Duplicate())
}

func newSubscriber(f *Fleet, id int) *subscriber {
	s := &subscriber{
		fleet: f, away: make(chan bool, 4), filter: fmt.Sprintf("%s/%s/+/telemetry", f.cfg.TopicPrefix, f.run), times: newLatency(),
		check: f.ledger.addChecker(&checker{
			name: fmt.Sprintf("subscriber %d (QoS %d)", id, f.cfg.SubscriberQoS), qos: f.cfg.SubscriberQoS, exactly: 2, run: f.run,
		}),
	}
	s.link = &link{fleet: f, clientID: f.clientID("subscriber", id), receive: 1000, session: state.NewInMemory(), onRecv: s.received}
	return s
}

// start connects and subscribes.
func (s *subscriber) start(ctx context.Context) error {
	if _, err := s.link.Connect(ctx); err != nil {
		return err
	}
	return s.subscribe(ctx)
}

func (s *subscriber) subscribe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	ack, err := s.link.cli.Subscribe(ctx, &paho.Subscribe{
		Subscriptions: []paho.SubscribeOptions{{Topic: s.filter, QoS: s.fleet.cfg.SubscriberQoS}},
	})
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", s.filter, err)
	}
	if len(ack.Reasons) != 1 || ack.Reasons[0] != s.fleet.cfg.SubscriberQoS {
		return fmt.Errorf("subscribe to %s with QoS %d: granted %v", s.filter, s.fleet.cfg.SubscriberQoS, ack.Reasons)
	}
	return nil
}

// run keeps the subscriber connected until ctx ends, then takes leave.
func (s *subscriber) run(ctx context.Context) {
	defer func() { s.link.Disconnect(!s.fleet.cfg.KeepSessions) }()
	for {
		select {
		case <-ctx.Done():
			return
		case away := <-s.away:
			if away && !s.leave(ctx) {
				return
			}
		case <-s.link.Down():
		}
		for s.link.lost() {
			present, err := s.link.Connect(ctx)
			if err != nil {
				return
			}
			// A subscriber whose session was lost subscribes anew, as a real one would; what was published meanwhile
			// shows as missing, which it is.
			if present || s.subscribe(ctx) == nil {
				break
			}
			s.link.Disconnect(false)
			if !sleep(ctx, 100*time.Millisecond) {
				return
			}
		}
	}
}

// leave disconnects, with the session kept, until the subscriber is called back. It reports false when ctx ended.
func (s *subscriber) leave(ctx context.Context) bool {
	s.link.Disconnect(false)
	for {
		select {
		case <-ctx.Done():
			return false
		case away := <-s.away:
			if !away {
				return true
			}
		}
	}
}

// SubscribersAway lets all subscribers disconnect with their sessions kept, or come back.
func (f *Fleet) SubscribersAway(away bool) {
	for _, s := range f.subscribers {
		s.away <- away
	}
}

// received is called by paho for each message, one after the other.
func (s *subscriber) received(p paho.PublishReceived) (bool, error) {
	if m, fresh := s.check.Arrived(p.Packet.Payload, mqttPlace{p.Packet}); fresh {
		s.times.Record(s.fleet.since() - m.at)
	}
	return true, nil
}

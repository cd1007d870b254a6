package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session"
)

// link is an MQTT 5 client's way to the broker: it connects paho.golang again and again over the same session.
// One goroutine uses it; Down may be watched by the same.
type link struct {
	fleet    *Fleet
	clientID string
	receive  uint16 // Receive Maximum that the broker has to keep
	session  session.SessionManager
	onRecv   func(paho.PublishReceived) (bool, error)

	cli       *paho.Client
	conn      *conn
	connected bool // once
}

// Sessions outlive every outage that a run means to survive, and go by themselves if the program is killed.
const (
	sessionExpiry = 3600 // seconds
	keepAlive     = 30
	connectWait   = 10 * time.Second
)

// never is Down's channel before the first connection.
var never = make(chan struct{})

// Down is closed when the connection is lost.
func (l *link) Down() <-chan struct{} {
	if l.cli == nil {
		return never
	}
	return l.cli.Done()
}

// Connect tries until the broker accepts or ctx ends. It reports whether the broker knew the session. Clean Start is
// never set: the client ID is new, and Mosquitto 2.0 does not persist a session that began with it.
func (l *link) Connect(ctx context.Context) (present bool, err error) {
	for wait := 20 * time.Millisecond; ; wait = min(wait*2, time.Second) {
		present, err = l.connect(ctx)
		if err == nil {
			return present, nil
		}
		l.fleet.log.Debug("connect", "client_id", l.clientID, "err", err)
		select {
		case <-ctx.Done():
			return false, errors.Join(ctx.Err(), err)
		case <-time.After(wait):
		}
	}
}

// connect tries once.
func (l *link) connect(ctx context.Context) (bool, error) {
	select {
	case l.fleet.dialing <- struct{}{}: // a thousand devices that return at once must not overrun the listen queue
		defer func() { <-l.fleet.dialing }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	nc, err := dial(ctx, l.fleet.url)
	if err != nil {
		return false, err
	}
	c := nc.(*conn)
	cli := paho.NewClient(paho.ClientConfig{
		ClientID: l.clientID, Conn: c, Session: l.session, PacketTimeout: connectWait,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){l.onRecv},
	})
	expiry := uint32(sessionExpiry)
	ack, err := cli.Connect(ctx, &paho.Connect{
		ClientID: l.clientID, KeepAlive: keepAlive, CleanStart: false,
		Properties: &paho.ConnectProperties{SessionExpiryInterval: &expiry, ReceiveMaximum: &l.receive, RequestProblemInfo: true},
	})
	if err != nil {
		if ack != nil {
			return false, fmt.Errorf("CONNACK 0x%02x: %w", ack.ReasonCode, err)
		}
		return false, err
	}
	if l.connected {
		l.fleet.reconnects.Add(1)
		if !ack.SessionPresent {
			l.fleet.sessionsLost.Add(1)
		}
	}
	l.cli, l.conn, l.connected = cli, c, true
	return ack.SessionPresent, nil
}

// Disconnect takes leave. With forget the broker drops the session at once.
func (l *link) Disconnect(forget bool) {
	if l.cli == nil {
		return
	}
	d := &paho.Disconnect{}
	if forget {
		now := uint32(0)
		d.Properties = &paho.DisconnectProperties{SessionExpiryInterval: &now}
	}
	l.cli.Disconnect(d) // an error says that the connection is gone, and so it is either way
	<-l.cli.Done()
}

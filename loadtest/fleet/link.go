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

// lost reports whether there is no connection.
func (l *link) lost() bool {
	select {
	case <-l.Down():
		return true
	default:
		return l.cli == nil
	}
}

// Connect tries until the broker accepts or ctx ends. It reports whether the broker knew the session. Clean Start is
// never set: the client ID is new, and Mosquitto 2.0 does not persist a session that began with it.
func (l *link) Connect(ctx context.Context) (present bool, err error) {
	err = l.fleet.retry(ctx, l.clientID, func(ctx context.Context) error {
		present, err = l.connect(ctx)
		return err
	})
	return present, err
}

// connect tries once.
func (l *link) connect(ctx context.Context) (bool, error) {
	c, err := dial(ctx, l.fleet.url)
	if err != nil {
		return false, err
	}
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
	l.fleet.connected(l.connected, ack.SessionPresent)
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

// retry calls connect until it succeeds or ctx ends, with growing pauses.
func (f *Fleet) retry(ctx context.Context, id string, connect func(context.Context) error) error {
	try := func() error {
		select {
		case f.dialing <- struct{}{}: // a thousand devices that return at once must not overrun the listen queue
			defer func() { <-f.dialing }()
		case <-ctx.Done():
			return ctx.Err()
		}
		ctx, cancel := context.WithTimeout(ctx, connectWait)
		defer cancel()
		return connect(ctx)
	}
	for pause := 20 * time.Millisecond; ; pause = min(pause*2, time.Second) {
		err := try()
		if err == nil {
			return nil
		}
		f.log.Debug("connect", "client_id", id, "err", err)
		if !sleep(ctx, pause) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// connected counts a connection of a client that was connected before.
func (f *Fleet) connected(before, present bool) {
	if !before {
		return
	}
	f.reconnects.Add(1)
	if !present {
		f.sessionsLost.Add(1)
	}
}

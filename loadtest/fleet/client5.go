package fleet

import (
	"context"
	"errors"

	"github.com/eclipse/paho.golang/paho"
)

// client5 is a device that speaks MQTT 5, on paho.golang.
type client5 struct {
	*link
	*deviceSession
}

var _ client = (*client5)(nil)

func newClient5(f *Fleet, id string, notes sessionNotes) *client5 {
	s := newDeviceSession(notes, f.cfg.Window)
	return &client5{
		deviceSession: s,
		link: &link{
			fleet: f, clientID: id, receive: 16, session: s,
			onRecv: func(paho.PublishReceived) (bool, error) { return true, nil },
		},
	}
}

// Publish implements client.
func (c *client5) Publish(ctx context.Context, f flight, qos uint8, topic string, payload []byte) (taken bool, err error) {
	c.conn.awaitRoom()
	c.next = f
	_, err = c.cli.PublishWithOptions(ctx, &paho.Publish{
		Topic: topic, QoS: qos, Payload: payload,
		Properties: &paho.PublishProperties{ContentType: "application/json"},
	}, paho.PublishOptions{Method: paho.PublishMethod_AsyncSend})
	switch {
	case err == nil, errors.Is(err, paho.ErrNetworkErrorAfterStored), qos == 0:
		return true, nil
	case errors.Is(err, paho.ErrInvalidArguments):
		return false, err // the broker does not take this QoS, and says so
	}
	c.fleet.log.Debug("publish", "client_id", c.clientID, "seq", f.seq, "err", err)
	return false, nil
}

// Slots implements client.
func (c *client5) Slots() chan struct{} { return c.slots }

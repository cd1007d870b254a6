package fleet

import (
	"context"
	"fmt"
	"time"
)

// device publishes numbered messages. One goroutine does everything: it waits for the time, for a place in the window,
// and for the broker when the connection is gone.
type device struct {
	fleet  *Fleet
	id     int
	topic  string
	quota  int // messages to send; 0 is no limit
	rate   float64
	phase  float64
	client client
	buf    []byte
	timer  *time.Timer
}

// client is a device's way to the broker: one persistent session over one connection after the other. One goroutine uses
// it.
type client interface {
	// Connect tries until the broker accepts or ctx ends, and sends again what is in flight. It reports whether the broker
	// knew the session.
	Connect(ctx context.Context) (present bool, err error)

	// Down is closed when the connection is lost.
	Down() <-chan struct{}

	// Publish hands a message over. A message of QoS 1 or 2 needs a slot first; it is in flight when taken is true, even if
	// the connection is lost by then. Without taken it may be handed over again; an error then says that this is useless.
	Publish(ctx context.Context, f flight, qos uint8, topic string, payload []byte) (taken bool, err error)

	// Slots is the window: who sends into it may publish one message; the client takes it out when the message is settled.
	Slots() chan struct{}

	InFlight() int

	// Disconnect takes leave. With forget the broker drops the session.
	Disconnect(forget bool)
}

// maxWindow keeps paho's resend list, which is sorted by insertion, fast enough to be unseen.
const maxWindow = 10_000

func newDevice(f *Fleet, id int) *device {
	d := &device{
		fleet: f, id: id,
		topic: fmt.Sprintf("%s/%s/%05d/telemetry", f.cfg.TopicPrefix, f.run, id),
		rate:  f.cfg.Rate / float64(f.cfg.Devices),
		phase: float64(id) / float64(f.cfg.Devices),
		timer: time.NewTimer(0),
	}
	if f.cfg.Count > 0 {
		d.quota = f.cfg.Count / f.cfg.Devices
		if id < f.cfg.Count%f.cfg.Devices {
			d.quota++
		}
	}
	clientID := f.clientID("device", id)
	if f.cfg.Protocol == Both && id%2 == 1 || f.cfg.Protocol == MQTT311 {
		d.client = newClient311(f, clientID, d)
	} else {
		d.client = newClient5(f, clientID, d)
	}
	return d
}

// publish sends messages until its quota is sent or publishing ends.
func (d *device) publish(ctx context.Context) {
	for seq := 0; d.fleet.cfg.Count == 0 || seq < d.quota; seq++ {
		due := time.Duration(-1)
		if d.rate > 0 {
			due = d.fleet.began + d.fleet.cfg.Profile.due(seq, d.rate, d.phase)
			if !d.awaitTime(ctx, due) {
				return
			}
		}
		qos := d.fleet.cfg.Mix.QoS(d.id, seq)
		if qos > 0 && !d.awaitSlot(ctx) {
			return
		}
		if due < 0 {
			due = d.fleet.since()
		}
		if !d.send(ctx, flight{seq: seq, at: due}, qos) {
			if qos > 0 {
				<-d.client.Slots()
			}
			return
		}
	}
}

// awaitTime waits until the run is due old, and reports false when ctx ended first.
func (d *device) awaitTime(ctx context.Context, due time.Duration) bool {
	wait := due - d.fleet.since()
	if wait <= 0 && ctx.Err() == nil {
		return true
	}
	d.timer.Reset(wait)
	return d.await(ctx, d.timer.C, nil)
}

// awaitSlot waits for a place in the window.
func (d *device) awaitSlot(ctx context.Context) bool {
	select {
	case d.client.Slots() <- struct{}{}:
		return true
	default:
		return d.await(ctx, nil, d.client.Slots())
	}
}

// await waits for the timer or for a slot and keeps the device connected meanwhile: what is in flight must be sent
// again even if the device itself has nothing new to say.
func (d *device) await(ctx context.Context, timer <-chan time.Time, slot chan<- struct{}) bool {
	for {
		select {
		case <-timer:
			return true
		case slot <- struct{}{}:
			return true
		case <-ctx.Done():
			return false
		case <-d.client.Down():
			if _, err := d.client.Connect(ctx); err != nil {
				return false
			}
		}
	}
}

// send publishes one message, again if need be, until it is in the session (or, with QoS 0, on its way).
func (d *device) send(ctx context.Context, f flight, qos uint8) bool {
	d.buf = appendPayload(d.buf[:0], d.fleet.run, message{d.id, f.seq, f.at}, time.Now(), d.fleet.cfg.Payload)
	for {
		if qos == 0 {
			d.sent(f)
		}
		taken, err := d.client.Publish(ctx, f, qos, d.topic, d.buf)
		if taken {
			return true
		}
		if err != nil {
			d.fleet.fail(fmt.Errorf("publish to %s: %w", d.topic, err))
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-d.client.Down():
			if _, err := d.client.Connect(ctx); err != nil {
				return false
			}
		case <-time.After(50 * time.Millisecond): // the broker's Receive Maximum is below our window, and it is slow
		}
	}
}

// drain waits until nothing is in flight, reconnecting if need be, or until ctx ends.
func (d *device) drain(ctx context.Context) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for d.client.InFlight() > 0 && d.await(ctx, tick.C, nil) {
	}
}

// close takes leave of the broker. A session with messages in flight stays there, as evidence.
func (d *device) close() {
	d.client.Disconnect(!d.fleet.cfg.KeepSessions && d.client.InFlight() == 0)
}

// sent implements sessionNotes.
func (d *device) sent(f flight) { d.fleet.ledger.Sent(d.id, f.seq) }

// settled implements sessionNotes.
func (d *device) settled(f flight, reason byte) {
	if reason >= 0x80 {
		d.fleet.refusal(reason)
		d.fleet.ledger.Refused(d.id, f.seq)
		return
	}
	if d.fleet.ledger.Acknowledged(d.id, f.seq) {
		d.fleet.ackTimes[d.id%len(d.fleet.ackTimes)].Record(d.fleet.since() - f.at)
	}
}

package mqtt

import (
	"fmt"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// acknowledged deals with a PUBACK, PUBREC or PUBCOMP of the client. One for an identifier that is not in use is passed over:
// it may be late. One that the delivery under that identifier cannot have is an error (MQTT 5, 1.2 and 4.13.1: a packet
// that is out of order): passed over, it would leave the delivery in the client's window for as long as it is connected.
func (c *conn) acknowledged(a *wire.Ack) error {
	s := c.sess
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return nil
	}
	fl := s.flights.find(a.PacketID)
	if fl != nil && !fl.mayHave(a.Kind) {
		return protocolError(fmt.Sprintf("%s for a QoS %d message that waits for another answer", packets.PacketNames[a.Kind], fl.qos))
	}
	switch a.Kind {
	case packets.Puback:
		if fl != nil {
			s.srv.metrics.acked[1].Inc()
			s.flights.set(fl, flightDone)
			s.ackedLocked()
		}
	case packets.Pubrec:
		s.received(c, fl, a)
	case packets.Pubcomp:
		if fl == nil {
			return nil
		}
		s.srv.metrics.acked[2].Inc()
		if s.durable {
			s.flights.set(fl, flightCompleted)
		} else {
			s.flights.set(fl, flightDone)
		}
		s.ackedLocked()
	}
	return nil
}

// mayHave reports whether this kind of acknowledgement may come for the delivery. PUBCOMP answers PUBREL, which may have been
// sent on an earlier connection.
func (fl *flight) mayHave(kind byte) bool {
	switch kind {
	case packets.Puback:
		return fl.qos == 1
	case packets.Pubrec:
		return fl.qos == 2
	default:
		return fl.qos == 2 && (fl.state == flightReleased || fl.state == flightResendRelease)
	}
}

// received deals with a PUBREC.
func (s *session) received(c *conn, fl *flight, a *wire.Ack) {
	switch {
	case fl == nil:
		if a.Reason < 0x80 { // MQTT 5, 4.3.3 and 3.6.2: nobody waits for it; let the client forget it
			c.pubrel(a.PacketID, reasonIDNotFound)
			c.out.wake()
		}
	case a.Reason >= 0x80: // MQTT 5, 4.3.3: the delivery is over, and is not tried again
		s.srv.metrics.drop(dropRefused)
		if s.durable {
			s.flights.set(fl, flightCompleted)
		} else {
			s.flights.set(fl, flightDone)
		}
		s.ackedLocked()
	case fl.state == flightReceived || fl.state == flightPending:
		// The release is on its way, or the client answers what it never got.
	case fl.state == flightReleased || fl.state == flightResendRelease || !s.durable:
		s.flights.set(fl, flightReleased)
		c.pubrel(fl.pid, reasonSuccess)
		c.out.wake()
	default:
		s.flights.set(fl, flightReceived)
		s.release(*fl)
	}
}

// release makes it durable that the client has the message, and then sends PUBREL: after a crash the message is not sent
// again (MQTT 5, 4.3.3-6).
func (s *session) release(fl flight) {
	s.srv.writer.put(stateEntry{
		changes: []spool.Change{s.outboundChange(&fl, true)},
		done: func(_ *spool.Record, err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if err != nil {
				s.brokenLocked(&fl, err)
				return
			}
			f := s.flights.find(fl.pid)
			if f == nil || f.state != flightReceived {
				return
			}
			s.flights.set(f, flightReleased)
			if c := s.conn; c != nil {
				c.pubrel(fl.pid, reasonSuccess)
				s.srv.flushAfterGroup(c)
			}
		},
	})
}

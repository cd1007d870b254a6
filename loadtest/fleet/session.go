package fleet

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho/session"
	"github.com/eclipse/paho.golang/paho/session/state"
)

// deviceSession is paho's session state, which lives longer than a connection and sends again what was in flight, with
// the ledger between it and the wire: it sees each acknowledgement first, so that none gets lost with a connection.
//
// One goroutine publishes and reconnects; another, paho's, brings in what the broker says.
type deviceSession struct {
	*state.State
	notes sessionNotes

	// mu keeps a PUBREC from being handled while the connection is taken away: paho would write its PUBREL to a nil
	// connection and panic.
	mu     sync.Mutex
	online bool

	flights map[uint16]flight // in flight, by packet identifier; guarded by mu
	next    flight            // belongs to the PUBLISH that is being added; set by the publishing goroutine
	slots   chan struct{}     // one token for each message in flight: the window
}

// flight is one message of QoS 1 or 2 under way.
type flight struct {
	seq  int
	at   time.Duration // when it was due
	told bool          // the ledger knows the outcome: a QoS 2 exchange goes on after its PUBREC
}

// sessionNotes is told what becomes of messages.
type sessionNotes interface {
	sent(f flight)                 // f is in the session and leaves now
	settled(f flight, reason byte) // the broker took f over, or refused it with a reason of 0x80 and more
}

var _ session.SessionManager = (*deviceSession)(nil)

// newDeviceSession returns the session of one device with a window of n messages.
func newDeviceSession(notes sessionNotes, n int) *deviceSession {
	return &deviceSession{
		State: state.NewInMemory(), notes: notes,
		flights: make(map[uint16]flight), slots: make(chan struct{}, n),
	}
}

// AddToSession takes a PUBLISH into the session: from here on it is sent again until it is settled.
func (s *deviceSession) AddToSession(ctx context.Context, p session.Packet, resp chan<- packets.ControlPacket) error {
	if err := s.State.AddToSession(ctx, p, resp); err != nil {
		return err
	}
	if pub, ok := p.(*packets.Publish); ok {
		s.mu.Lock()
		s.flights[pub.PacketID] = s.next
		s.mu.Unlock()
		s.notes.sent(s.next) // before paho writes the packet, which is when this returns
	}
	return nil
}

// PacketReceived tells the ledger about an acknowledgement before the session acts on it.
func (s *deviceSession) PacketReceived(p *packets.ControlPacket, pubs chan<- *packets.Publish) error {
	s.mu.Lock()
	defer s.mu.Unlock() // devices subscribe to nothing: paho never waits in here
	switch r := p.Content.(type) {
	case *packets.Puback:
		s.settleLocked(r.PacketID, r.ReasonCode, true)
	case *packets.Pubrec:
		s.settleLocked(r.PacketID, r.ReasonCode, r.ReasonCode >= 0x80)
		if !s.online {
			return nil // the broker repeats it when we send the PUBLISH again
		}
	case *packets.Pubcomp:
		s.settleLocked(r.PacketID, 0, true)
	}
	return s.State.PacketReceived(p, pubs)
}

// settleLocked tells the ledger the outcome of a flight, and ends the flight when the exchange is over. A PUBCOMP says
// nothing new: the PUBREC before it was the promise, and its own error code (packet identifier not found) means that
// the broker had finished earlier.
func (s *deviceSession) settleLocked(id uint16, reason byte, over bool) {
	f, ok := s.flights[id]
	if !ok {
		return
	}
	if !f.told {
		f.told = true
		s.flights[id] = f
		s.notes.settled(f, reason)
	}
	if over {
		delete(s.flights, id)
		<-s.slots
	}
}

// ConAckReceived begins a connection. If the broker has lost the session, what was in flight is lost with it: nobody
// can tell whether it was taken, and sending a QoS 2 message as a new one could double it.
func (s *deviceSession) ConAckReceived(w io.Writer, c *packets.Connect, a *packets.Connack) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !a.SessionPresent {
		for id := range s.flights {
			delete(s.flights, id)
			<-s.slots
		}
	}
	s.online = true
	return s.State.ConAckReceived(w, c, a)
}

// ConnectionLost ends a connection.
func (s *deviceSession) ConnectionLost(d *packets.Disconnect) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.online = false
	return s.State.ConnectionLost(d)
}

// InFlight is how many messages are under way.
func (s *deviceSession) InFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.flights)
}

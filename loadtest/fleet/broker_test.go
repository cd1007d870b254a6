package fleet

import (
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/eclipse/paho.golang/packets"
)

// fakeBroker is a small broker that can be told to break its promises, so that tests see whether the fleet notices.
type fakeBroker struct {
	t    *testing.T
	ln   net.Listener
	wg   sync.WaitGroup
	take func(p *packets.Publish) []*packets.Publish // what reaches subscribers instead of p
	tell func(p *packets.Publish) byte               // reason code of the acknowledgement

	mu       sync.Mutex
	sessions map[string]*fakeSession
	accepted []*packets.Publish // by order of acceptance
	taken    int                // publishes so far
	breaks   map[int]bool       // connections of publishers are cut at these counts, before the acknowledgement
}

type fakeSession struct {
	conn   net.Conn
	qos    int             // of the subscription; -1 is none
	filter string          // PREFIX/RUN/+/telemetry
	nextID uint16          //
	known  map[uint16]bool // QoS 2 packet identifiers that were accepted and not released
}

func newFakeBroker(t *testing.T) *fakeBroker {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &fakeBroker{t: t, ln: ln, sessions: make(map[string]*fakeSession), breaks: make(map[int]bool)}
	b.take = func(p *packets.Publish) []*packets.Publish { return []*packets.Publish{p} }
	b.tell = func(*packets.Publish) byte { return 0 }
	b.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b.wg.Go(func() { b.serve(c) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		b.mu.Lock()
		for _, s := range b.sessions {
			s.conn.Close()
		}
		b.mu.Unlock()
		b.wg.Wait()
	})
	return b
}

// serve reads one connection.
func (b *fakeBroker) serve(c net.Conn) {
	defer c.Close()
	p, err := packets.ReadPacket(c)
	if err != nil {
		return
	}
	id := p.Content.(*packets.Connect).ClientID
	b.mu.Lock()
	s, present := b.sessions[id]
	if !present {
		s = &fakeSession{qos: -1, known: make(map[uint16]bool)}
		b.sessions[id] = s
	}
	s.conn = c
	(&packets.Connack{SessionPresent: present, Properties: &packets.Properties{}}).WriteTo(c)
	b.mu.Unlock()
	for {
		p, err := packets.ReadPacket(c)
		if err != nil {
			return
		}
		b.mu.Lock()
		alive := b.handleLocked(s, p.Content)
		b.mu.Unlock()
		if !alive {
			return
		}
	}
}

func (b *fakeBroker) handleLocked(s *fakeSession, p packets.Packet) bool {
	switch p := p.(type) {
	case *packets.Subscribe:
		s.qos, s.filter = int(p.Subscriptions[0].QoS), p.Subscriptions[0].Topic
		(&packets.Suback{PacketID: p.PacketID, Reasons: []byte{p.Subscriptions[0].QoS}, Properties: &packets.Properties{}}).WriteTo(s.conn)
	case *packets.Publish:
		return b.publishLocked(s, p)
	case *packets.Pubrel:
		delete(s.known, p.PacketID)
		(&packets.Pubcomp{PacketID: p.PacketID, Properties: &packets.Properties{}}).WriteTo(s.conn)
	case *packets.Pubrec:
		(&packets.Pubrel{PacketID: p.PacketID, Properties: &packets.Properties{}}).WriteTo(s.conn)
	case *packets.Pingreq:
		packets.NewControlPacket(packets.PINGRESP).WriteTo(s.conn)
	case *packets.Disconnect:
		return false
	}
	return true
}

func (b *fakeBroker) publishLocked(s *fakeSession, p *packets.Publish) bool {
	reason := b.tell(p)
	if reason < 0x80 && !s.known[p.PacketID] {
		b.accepted = append(b.accepted, p)
		for _, out := range b.take(p) {
			b.deliverLocked(out)
		}
		if p.QoS == 2 {
			s.known[p.PacketID] = true
		}
	}
	b.taken++
	if b.breaks[b.taken] {
		return false
	}
	switch p.QoS {
	case 1:
		(&packets.Puback{PacketID: p.PacketID, ReasonCode: reason, Properties: &packets.Properties{}}).WriteTo(s.conn)
	case 2:
		(&packets.Pubrec{PacketID: p.PacketID, ReasonCode: reason, Properties: &packets.Properties{}}).WriteTo(s.conn)
	}
	return true
}

func (b *fakeBroker) deliverLocked(p *packets.Publish) {
	levels := strings.Split(p.Topic, "/")
	for _, s := range b.sessions {
		if s.qos < 0 || !slices.Equal(strings.Split(s.filter, "/")[:2], levels[:2]) {
			continue
		}
		out := &packets.Publish{Topic: p.Topic, Payload: p.Payload, QoS: min(p.QoS, byte(s.qos)), Properties: &packets.Properties{}}
		if out.QoS > 0 {
			s.nextID++
			out.PacketID = s.nextID
		}
		out.WriteTo(s.conn)
	}
}

package mqtt

import (
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// encoder encodes one record for its subscribers, each variant once. It belongs to one goroutine at a time.
type encoder struct {
	msg      wire.Publish
	alive    bool
	variants [2][3][2]variant // version, QoS, retain
	single   []byte           // the variant of one subscriber, which has its own identifiers
	short    []byte           // what aliased has made
	found    []*subscription  // memory for matchingLocked
}

type variant struct {
	packet []byte
	id     int
	made   bool
}

var encoders = sync.Pool{New: func() any { return new(encoder) }}

// reset makes rec the record. now is the time from which its expiry is counted down.
func (e *encoder) reset(rec *spool.Record, now time.Time) {
	e.msg = wire.Publish{}
	e.alive = e.msg.FromRecord(rec, now)
	for v := range e.variants {
		for q := range e.variants[v] {
			for r := range e.variants[v][q] {
				e.variants[v][q][r].made = false
			}
		}
	}
}

// encode returns the packet for one kind of subscriber, with packet identifier 1 for PatchPublish to replace. It is valid
// until the next call of encode or reset.
func (e *encoder) encode(version byte, h how) (packet []byte, id int) {
	e.msg.QoS, e.msg.Retain, e.msg.SubscriptionIDs, e.msg.PacketID = h.qos, h.retain, h.ids, 0
	if h.qos > 0 {
		e.msg.PacketID = 1
	}
	peer := wire.Peer{Version: version}
	if len(h.ids) > 0 {
		e.single, id = peer.AppendPublish(e.single[:0], &e.msg)
		return e.single, id
	}
	v := &e.variants[version-wire.Version311][h.qos][b2i(h.retain)]
	if !v.made {
		if cap(v.packet) > keptBuf {
			v.packet = nil
		}
		v.packet, v.id = peer.AppendPublish(v.packet[:0], &e.msg)
		v.made = true
	}
	return v.packet, v.id
}

// aliased encodes what encode has encoded last for one connection, with a topic alias and, unless the client knows that, with its
// topic. The packet is valid until the next call of aliased.
func (e *encoder) aliased(peer wire.Peer, alias uint16, known bool) (packet []byte, id int) {
	if cap(e.short) > keptBuf {
		e.short = nil
	}
	m := e.msg
	m.TopicAlias = alias
	if known {
		m.Topic = ""
	}
	e.short, id = peer.AppendPublish(e.short[:0], &m)
	return e.short, id
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

package mqtt

import (
	"strings"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/wire"
)

// resolveAlias sets the topic of a PUBLISH that uses a topic alias, and learns the alias of one that names both (MQTT 5,
// 3.3.2.3.4). Aliases belong to the connection.
func (c *conn) resolveAlias(p *wire.Publish) error {
	if p.TopicAlias == 0 {
		return nil
	}
	if int(p.TopicAlias) > c.srv.cfg.TopicAliasMaximum {
		return &wire.Error{Code: packets.ErrTopicAliasInvalid, Detail: "topic alias is above the maximum", Version: wire.Version5}
	}
	at := int(p.TopicAlias) - 1
	if p.Topic == "" {
		if at >= len(c.aliases) || c.aliases[at] == "" {
			return protocolError("topic alias is not known on this connection") // MQTT 5, 3.3.4: a protocol error
		}
		p.Topic = c.aliases[at]
		return nil
	}
	for len(c.aliases) <= at {
		c.aliases = append(c.aliases, "")
	}
	if c.aliases[at] != p.Topic {
		c.aliases[at] = strings.Clone(p.Topic) // the packet's memory holds the payload too
	}
	p.TopicAlias = 0
	return nil
}

// toldAliases are the topic aliases that the gateway uses towards a client that takes them (MQTT 5, 3.3.2.3.4): the first
// topics of a connection get one each and keep it. Nobody is thrown out for another topic: a client that gets more topics
// than it takes aliases would be told a topic and an alias each time, which is longer than the topic alone.
type toldAliases struct {
	max int // 0: none, as for every client that does not ask for them
	of  map[string]uint16
}

// shorten returns packet, which enc has just encoded, with an alias instead of its topic or beside it. learn is not 0 when
// the client does not know the alias yet: the caller notes it once the packet is on its way.
func (t *toldAliases) shorten(enc *encoder, packet []byte, id int, peer wire.Peer) (_ []byte, _ int, learn uint16) {
	const leastTopic = 4 // bytes: the alias itself has three
	if t.max == 0 || len(enc.msg.Topic) < leastTopic {
		return packet, id, 0
	}
	alias, known := t.of[enc.msg.Topic]
	if !known {
		if len(t.of) == t.max {
			return packet, id, 0
		}
		alias = uint16(len(t.of) + 1)
		learn = alias
	}
	short, at := enc.aliased(peer, alias, known)
	if peer.MaxPacket != 0 && len(short) > int(peer.MaxPacket) { // the topic alone did fit
		return packet, id, 0
	}
	return short, at, learn
}

func (t *toldAliases) note(topic string, alias uint16) {
	if alias == 0 {
		return
	}
	if t.of == nil {
		t.of = make(map[string]uint16)
	}
	t.of[strings.Clone(topic)] = alias // the record's memory holds the payload too
}

// deliver appends packet, which enc has just encoded, to what waits for the client; see output.message. The lock of the
// session is held, so that an alias reaches the client before what uses it.
func (c *conn) deliver(enc *encoder, packet []byte, id int, pid uint16, dup bool) bool {
	packet, id, learn := c.told.shorten(enc, packet, id, c.peer)
	if !c.out.message(packet, id, pid, dup, c.srv.outputLimit) {
		return false
	}
	c.told.note(enc.msg.Topic, learn)
	return true
}

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

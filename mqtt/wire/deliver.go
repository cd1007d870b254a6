package wire

import (
	"encoding/binary"

	"github.com/mochi-mqtt/server/v2/packets"
)

// PublishSize returns the size of m as a packet. It must not be sent when it is above MaxPacket: the server behaves as if
// it had been sent (MQTT 5, 3.1.2-24 and 3.1.2-25).
func (p Peer) PublishSize(m *Publish) int {
	rest, _ := p.publishRest(m)
	return packetSize(rest)
}

// publishRest returns the sizes of what follows the fixed header and of the properties.
func (p Peer) publishRest(m *Publish) (rest, props int) {
	rest = 2 + len(m.Topic) + len(m.Payload)
	if m.QoS > 0 {
		rest += 2
	}
	if p.Version != Version311 {
		props = publishProperties(m)
		rest += varintSize(props) + props
	}
	return rest, props
}

func publishProperties(m *Publish) (n int) {
	if m.HasExpiry {
		n += 5
	}
	if m.TopicAlias != 0 {
		n += 3
	}
	for _, id := range m.SubscriptionIDs {
		n += 1 + varintSize(int(id))
	}
	q := m.Properties
	if q == nil {
		return n
	}
	if q.HasPayloadFormat {
		n += 2
	}
	n += stringSize(q.ContentType) + stringSize(q.ResponseTopic) + binarySize(q.CorrelationData)
	for _, u := range q.User {
		n += 1 + 2 + len(u.Name) + 2 + len(u.Value)
	}
	return n
}

// AppendPublish appends m, whatever its size. id is where m's packet identifier stands, counted from the packet's first
// byte (which is at len(b) on entry), for PatchPublish; it is 0 when m has none.
func (p Peer) AppendPublish(b []byte, m *Publish) (packet []byte, id int) {
	rest, props := p.publishRest(m)
	head := packets.Publish<<4 | m.QoS<<1
	if m.Dup {
		head |= 0x08
	}
	if m.Retain {
		head |= 0x01
	}
	start := len(b)
	b = appendHeader(b, head, rest)
	b = appendString(b, m.Topic)
	if m.QoS > 0 {
		id = len(b) - start
		b = binary.BigEndian.AppendUint16(b, m.PacketID)
	}
	if p.Version != Version311 {
		b = appendVarint(b, props)
		b = appendPublishProperties(b, m)
	}
	return append(b, m.Payload...), id
}

func appendPublishProperties(b []byte, m *Publish) []byte {
	if m.HasExpiry {
		b = binary.BigEndian.AppendUint32(append(b, packets.PropMessageExpiryInterval), m.Expiry)
	}
	if m.TopicAlias != 0 {
		b = binary.BigEndian.AppendUint16(append(b, packets.PropTopicAlias), m.TopicAlias)
	}
	for _, id := range m.SubscriptionIDs {
		b = appendVarint(append(b, packets.PropSubscriptionIdentifier), int(id))
	}
	q := m.Properties
	if q == nil {
		return b
	}
	if q.HasPayloadFormat {
		b = append(b, packets.PropPayloadFormat, q.PayloadFormat)
	}
	b = appendStringProperty(b, packets.PropContentType, q.ContentType)
	b = appendStringProperty(b, packets.PropResponseTopic, q.ResponseTopic)
	b = appendBinaryProperty(b, packets.PropCorrelationData, q.CorrelationData)
	for _, u := range q.User { // in order: MQTT 5, 3.3.2-18
		b = appendString(append(b, packets.PropUser), u.Name)
		b = appendString(b, u.Value)
	}
	return b
}

// PatchPublish gives an encoded PUBLISH of QoS 1 or 2 another packet identifier and DUP flag, so that one encoding serves
// many. id is what AppendPublish returned.
func PatchPublish(packet []byte, id int, packetID uint16, dup bool) {
	packet[0] &^= 0x08
	if dup {
		packet[0] |= 0x08
	}
	binary.BigEndian.PutUint16(packet[id:], packetID)
}

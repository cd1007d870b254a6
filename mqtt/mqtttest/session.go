package mqtttest

import (
	"encoding/binary"

	"github.com/mochi-mqtt/server/v2/packets"
)

// Connect says what a CONNECT holds.
type Connect struct {
	Version    byte // 0 is 5
	ID         string
	Resume     bool   // Clean Start 0, CleanSession 0
	KeepAlive  uint16 // seconds
	UserName   string // empty: none
	Password   string // empty: none
	Properties string // in the notation of Bytes
	Will       *Publish
}

// Publish says what a PUBLISH, or a will, holds.
type Publish struct {
	Topic      string
	Payload    string
	ID         uint16 // packet identifier; 0 with QoS 1 or 2: the next one
	QoS        byte
	Retain     bool
	Dup        bool
	Properties string // in the notation of Bytes
}

// SendConnect sends a CONNECT.
func (c *Client) SendConnect(o Connect) {
	c.t.Helper()
	if o.Version == 0 {
		o.Version = 5
	}
	c.Version = o.Version
	flags := byte(0)
	set := func(on bool, bit byte) {
		if on {
			flags |= bit
		}
	}
	set(!o.Resume, 0x02)
	set(o.UserName != "", 0x80)
	set(o.Password != "", 0x40)
	if o.Will != nil {
		flags |= 0x04 | o.Will.QoS<<3
		set(o.Will.Retain, 0x20)
	}
	b := appendString(nil, "MQTT")
	b = append(b, o.Version, flags)
	b = binary.BigEndian.AppendUint16(b, o.KeepAlive)
	b = c.appendProperties(b, o.Properties)
	b = appendString(b, o.ID)
	if o.Will != nil {
		b = c.appendProperties(b, o.Will.Properties)
		b = appendString(b, o.Will.Topic)
		b = appendString(b, o.Will.Payload)
	}
	if o.UserName != "" {
		b = appendString(b, o.UserName)
	}
	if o.Password != "" {
		b = appendString(b, o.Password)
	}
	c.sendPacket(packets.Connect<<4, b)
}

// Connect sends a CONNECT and returns the CONNACK, which must say success.
func (c *Client) Connect(o Connect) packets.Packet {
	c.t.Helper()
	c.SendConnect(o)
	return c.ExpectConnack(0)
}

// ExpectConnack reads a CONNACK with the reason code, or the return code of 3.1.1. After another one than 0 the connection
// must end.
func (c *Client) ExpectConnack(reason byte) packets.Packet {
	c.t.Helper()
	pk := c.Expect(packets.Connack)
	if pk.ReasonCode != reason {
		c.t.Fatalf("got %s, want reason 0x%02x", describe(pk), reason)
	}
	if reason != 0 {
		c.ExpectClosed()
	}
	return pk
}

// Disconnect sends a DISCONNECT without a reason code and waits for the end of the connection.
func (c *Client) Disconnect() {
	c.t.Helper()
	c.Send(`e000`)
	c.ExpectClosed()
}

// SendPublish sends a PUBLISH and returns its packet identifier.
func (c *Client) SendPublish(p Publish) uint16 {
	c.t.Helper()
	head := packets.Publish<<4 | p.QoS<<1
	if p.Dup {
		head |= 0x08
	}
	if p.Retain {
		head |= 0x01
	}
	b := appendString(nil, p.Topic)
	if p.QoS > 0 {
		if p.ID == 0 {
			p.ID = c.NextID()
		}
		b = binary.BigEndian.AppendUint16(b, p.ID)
	}
	b = c.appendProperties(b, p.Properties)
	c.sendPacket(head, append(b, p.Payload...))
	return p.ID
}

// Publish sends a PUBLISH and sees it through to its last acknowledgement. Deliveries that come before are kept for later:
// to whom a message is delivered first is the server's affair.
func (c *Client) Publish(p Publish) {
	c.t.Helper()
	id := c.SendPublish(p)
	switch p.QoS {
	case 1:
		c.expectAside(packets.Puback, id)
	case 2:
		c.expectAside(packets.Pubrec, id)
		c.SendAck(packets.Pubrel, id)
		c.expectAside(packets.Pubcomp, id)
	}
}

// SendAck sends a PUBACK, PUBREC, PUBREL or PUBCOMP with success.
func (c *Client) SendAck(kind byte, id uint16) {
	c.t.Helper()
	head := kind << 4
	if kind == packets.Pubrel {
		head |= 2
	}
	c.sendPacket(head, binary.BigEndian.AppendUint16(nil, id))
}

// Subscribe subscribes to one filter with the options (of which 3.1.1 has the QoS) and reads the SUBACK, which must grant
// the QoS. properties are in the notation of Bytes.
func (c *Client) Subscribe(filter string, options byte, properties ...string) {
	c.t.Helper()
	id := c.SendSubscribe(filter, options, properties...)
	if pk := c.ExpectSuback(id); pk != options&3 {
		c.t.Fatalf("subscription to %s: granted 0x%02x, want QoS %d", filter, pk, options&3)
	}
}

// SendSubscribe sends a SUBSCRIBE with one filter and returns its packet identifier.
func (c *Client) SendSubscribe(filter string, options byte, properties ...string) uint16 {
	c.t.Helper()
	id := c.NextID()
	b := binary.BigEndian.AppendUint16(nil, id)
	b = c.appendProperties(b, properties...)
	b = append(appendString(b, filter), options)
	c.sendPacket(packets.Subscribe<<4|2, b)
	return id
}

// ExpectSuback reads a SUBACK with one reason code and returns it.
func (c *Client) ExpectSuback(id uint16) byte {
	c.t.Helper()
	pk := c.Expect(packets.Suback)
	if pk.PacketID != id || len(pk.ReasonCodes) != 1 {
		c.t.Fatalf("got %s, want one reason code for %d", describe(pk), id)
	}
	return pk.ReasonCodes[0]
}

// Unsubscribe unsubscribes from one filter and returns the reason code, 0 in 3.1.1.
func (c *Client) Unsubscribe(filter string) byte {
	c.t.Helper()
	id := c.NextID()
	b := binary.BigEndian.AppendUint16(nil, id)
	b = appendString(c.appendProperties(b), filter)
	c.sendPacket(packets.Unsubscribe<<4|2, b)
	pk := c.Expect(packets.Unsuback)
	if pk.PacketID != id {
		c.t.Fatalf("got %s, want it for %d", describe(pk), id)
	}
	if c.Version != 5 {
		return 0
	}
	return pk.ReasonCodes[0]
}

// ExpectPublish reads a PUBLISH with this topic, payload, QoS, retain and dup flag, and acknowledges nothing. A packet
// identifier is only compared when want has one.
func (c *Client) ExpectPublish(want Publish) packets.Packet {
	c.t.Helper()
	pk := c.Expect(packets.Publish)
	got := Publish{
		Topic: pk.TopicName, Payload: string(pk.Payload), QoS: pk.FixedHeader.Qos,
		Retain: pk.FixedHeader.Retain, Dup: pk.FixedHeader.Dup, ID: pk.PacketID,
	}
	want.Properties = ""
	if want.ID == 0 {
		want.ID = got.ID
	}
	if got != want {
		c.t.Fatalf("got  %+v\nwant %+v", got, want)
	}
	return pk
}

// Receive is ExpectPublish followed by Finish.
func (c *Client) Receive(want Publish) packets.Packet {
	c.t.Helper()
	pk := c.ExpectPublish(want)
	c.Finish(pk.FixedHeader.Qos, pk.PacketID)
	return pk
}

// Finish acknowledges a PUBLISH that was read, to its end. PUBLISH packets that come in between are kept for later.
func (c *Client) Finish(qos byte, id uint16) {
	c.t.Helper()
	switch qos {
	case 1:
		c.SendAck(packets.Puback, id)
	case 2:
		c.SendAck(packets.Pubrec, id)
		c.expectAside(packets.Pubrel, id)
		c.SendAck(packets.Pubcomp, id)
	}
}

func (c *Client) appendProperties(b []byte, notation ...string) []byte {
	c.t.Helper()
	if c.Version != 5 {
		return b
	}
	var props []byte
	for _, n := range notation {
		props = append(props, Bytes(c.t, n)...)
	}
	return append(binary.AppendUvarint(b, uint64(len(props))), props...)
}

func (c *Client) sendPacket(head byte, body []byte) {
	c.t.Helper()
	b := binary.AppendUvarint([]byte{head}, uint64(len(body)))
	c.SendBytes(append(b, body...))
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

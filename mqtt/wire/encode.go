package wire

import (
	"encoding/binary"
	"math"

	"github.com/mochi-mqtt/server/v2/packets"
)

// Peer is the client that packets are encoded for. All its Append methods append one packet to b and return the extended
// slice; they allocate only when b must grow. To a client of MQTT 3.1.1 they send no properties and no reason codes, and
// nothing at all where 3.1.1 has no packet (DISCONNECT, AUTH).
//
// A reason string and user properties are left out when the client asked for no problem information (CONNACK and
// DISCONNECT excepted: MQTT 5, 3.1.2-29) and when the packet would exceed MaxPacket with them. A packet that exceeds
// MaxPacket even so is not appended (MQTT 5, 3.1.2-24).
type Peer struct {
	Version       byte
	NoProblemInfo bool   // Request Problem Information is 0
	MaxPacket     uint32 // Maximum Packet Size of the client, 0 is no limit
}

// AppendPuback appends a PUBACK.
func (p Peer) AppendPuback(b []byte, id uint16, reason byte, text string) []byte {
	return p.appendAck(b, packets.Puback<<4, id, reason, text)
}

// AppendPubrec appends a PUBREC.
func (p Peer) AppendPubrec(b []byte, id uint16, reason byte, text string) []byte {
	return p.appendAck(b, packets.Pubrec<<4, id, reason, text)
}

// AppendPubrel appends a PUBREL.
func (p Peer) AppendPubrel(b []byte, id uint16, reason byte, text string) []byte {
	return p.appendAck(b, packets.Pubrel<<4|2, id, reason, text)
}

// AppendPubcomp appends a PUBCOMP.
func (p Peer) AppendPubcomp(b []byte, id uint16, reason byte, text string) []byte {
	return p.appendAck(b, packets.Pubcomp<<4, id, reason, text)
}

// AppendSuback appends a SUBACK with one reason code per filter. For 3.1.1 every code from 0x80 up is sent as 0x80.
func (p Peer) AppendSuback(b []byte, id uint16, reasons []byte, text string) []byte {
	start := len(b)
	b = p.appendMulti(b, packets.Suback, id, reasons, text)
	if p.Version == Version311 && len(b) > start {
		for i := len(b) - len(reasons); i < len(b); i++ {
			b[i] = min(b[i], 0x80)
		}
	}
	return b
}

// AppendUnsuback appends an UNSUBACK with one reason code per filter; for 3.1.1 without any.
func (p Peer) AppendUnsuback(b []byte, id uint16, reasons []byte, text string) []byte {
	if p.Version == Version311 {
		reasons = nil
	}
	return p.appendMulti(b, packets.Unsuback, id, reasons, text)
}

// AppendPingresp appends a PINGRESP.
func (p Peer) AppendPingresp(b []byte) []byte { return append(b, packets.Pingresp<<4, 0) }

// AppendDisconnect appends a DISCONNECT; nothing for 3.1.1.
func (p Peer) AppendDisconnect(b []byte, d *Disconnect) []byte {
	if p.Version == Version311 {
		return b
	}
	reference := stringSize(d.ServerReference)
	text, props := p.fitReason(d.ReasonString, reference, 1)
	rest := 0
	switch {
	case props > 0:
		rest = 1 + varintSize(props) + props
	case d.Reason != 0:
		rest = 1
	}
	if !p.fits(rest) {
		return b
	}
	b = appendHeader(b, packets.Disconnect<<4, rest)
	if rest == 0 {
		return b
	}
	b = append(b, d.Reason)
	if props > 0 {
		b = appendVarint(b, props)
		b = appendStringProperty(b, packets.PropReasonString, text)
		b = appendStringProperty(b, packets.PropServerReference, d.ServerReference)
	}
	return b
}

// AppendAuth appends an AUTH; nothing for 3.1.1.
func (p Peer) AppendAuth(b []byte, a *Auth) []byte {
	if p.Version == Version311 {
		return b
	}
	size := stringSize(a.Method) + binarySize(a.Data)
	text, props := p.fitReason(p.allowed(a.ReasonString), size, 1)
	rest := 1 + varintSize(props) + props
	if !p.fits(rest) {
		return b
	}
	b = appendHeader(b, packets.Auth<<4, rest)
	b = append(b, a.Reason)
	b = appendVarint(b, props)
	b = appendStringProperty(b, packets.PropAuthenticationMethod, a.Method)
	b = appendBinaryProperty(b, packets.PropAuthenticationData, a.Data)
	return appendStringProperty(b, packets.PropReasonString, text)
}

func (p Peer) appendAck(b []byte, head byte, id uint16, reason byte, text string) []byte {
	rest, props := 2, 0
	if p.Version != Version311 {
		if text, props = p.fitReason(p.allowed(text), 0, 3); props > 0 {
			rest = 3 + varintSize(props) + props
		} else if reason != 0 {
			rest = 3
		}
	}
	if !p.fits(rest) {
		return b
	}
	b = appendHeader(b, head, rest)
	b = binary.BigEndian.AppendUint16(b, id)
	if rest > 2 {
		b = append(b, reason)
	}
	if props > 0 {
		b = appendVarint(b, props)
		b = appendStringProperty(b, packets.PropReasonString, text)
	}
	return b
}

// appendMulti appends a SUBACK or UNSUBACK.
func (p Peer) appendMulti(b []byte, kind byte, id uint16, reasons []byte, text string) []byte {
	rest, props := 2+len(reasons), 0
	if p.Version != Version311 {
		text, props = p.fitReason(p.allowed(text), 0, rest)
		rest += varintSize(props) + props
	}
	if !p.fits(rest) {
		return b
	}
	b = appendHeader(b, kind<<4, rest)
	b = binary.BigEndian.AppendUint16(b, id)
	if p.Version != Version311 {
		b = appendVarint(b, props)
		if props > 0 {
			b = appendStringProperty(b, packets.PropReasonString, text)
		}
	}
	return append(b, reasons...)
}

// allowed is s unless the client wants no problem information.
func (p Peer) allowed(s string) string {
	if p.NoProblemInfo {
		return ""
	}
	return s
}

// fitReason returns text and the size of all properties with it, when a packet with props bytes of other properties and
// rest other bytes after the fixed header can hold it, and otherwise nothing and props.
func (p Peer) fitReason(text string, props, rest int) (string, int) {
	with := props + stringSize(text)
	if len(text) > math.MaxUint16 || !p.fits(rest+varintSize(with)+with) {
		return "", props
	}
	return text, with
}

// fits reports whether a packet with rest bytes after the fixed header may be sent.
func (p Peer) fits(rest int) bool {
	return rest <= maxRemaining && (p.MaxPacket == 0 || uint64(packetSize(rest)) <= uint64(p.MaxPacket))
}

func packetSize(rest int) int { return 1 + varintSize(rest) + rest }

func appendHeader(b []byte, head byte, rest int) []byte { return appendVarint(append(b, head), rest) }

func appendVarint(b []byte, n int) []byte {
	for n >= 0x80 {
		b = append(b, byte(n)|0x80)
		n >>= 7
	}
	return append(b, byte(n))
}

func varintSize(n int) int {
	switch {
	case n < 1<<7:
		return 1
	case n < 1<<14:
		return 2
	case n < 1<<21:
		return 3
	}
	return 4
}

// stringSize is the size of a property with the string s; an empty string is not sent.
func stringSize(s string) int {
	if s == "" {
		return 0
	}
	return 3 + len(s)
}

// binarySize is the size of a property with the bytes v; nil is not sent.
func binarySize(v []byte) int {
	if v == nil {
		return 0
	}
	return 3 + len(v)
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func appendStringProperty(b []byte, id byte, s string) []byte {
	if s == "" {
		return b
	}
	return appendString(append(b, id), s)
}

func appendBinaryProperty(b []byte, id byte, v []byte) []byte {
	if v == nil {
		return b
	}
	return append(binary.BigEndian.AppendUint16(append(b, id), uint16(len(v))), v...)
}

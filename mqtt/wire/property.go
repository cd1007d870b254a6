package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/spool"
)

// How a property's value is encoded (MQTT 5, 2.2.2.2).
const (
	kindNone byte = iota // no such property
	kindByte
	kindUint16
	kindUint32
	kindVarint
	kindString
	kindBinary
	kindPair
)

// will is where a table of packet types speaks of the will properties: no packet has type 0.
const will byte = packets.Reserved

// propertyRule says of one property how it is encoded and which packets of a client may hold it.
type propertyRule struct {
	kind byte
	in   uint16 // bit 1<<type
}

func in(types ...byte) (mask uint16) {
	for _, t := range types {
		mask |= 1 << t
	}
	return mask
}

// propertyRules is table 2-4 of MQTT 5, 2.2.2.2, restricted to what a client may send. A property that only a server
// sends (Reason String excepted, which both do) is therefore refused as one of the wrong packet.
var propertyRules = [packets.PropSharedSubAvailable + 1]propertyRule{
	packets.PropPayloadFormat:          {kindByte, in(packets.Publish, will)},
	packets.PropMessageExpiryInterval:  {kindUint32, in(packets.Publish, will)},
	packets.PropContentType:            {kindString, in(packets.Publish, will)},
	packets.PropResponseTopic:          {kindString, in(packets.Publish, will)},
	packets.PropCorrelationData:        {kindBinary, in(packets.Publish, will)},
	packets.PropSubscriptionIdentifier: {kindVarint, in(packets.Publish, packets.Subscribe)},
	packets.PropSessionExpiryInterval:  {kindUint32, in(packets.Connect, packets.Disconnect)},
	packets.PropAuthenticationMethod:   {kindString, in(packets.Connect, packets.Auth)},
	packets.PropAuthenticationData:     {kindBinary, in(packets.Connect, packets.Auth)},
	packets.PropRequestProblemInfo:     {kindByte, in(packets.Connect)},
	packets.PropWillDelayInterval:      {kindUint32, in(will)},
	packets.PropRequestResponseInfo:    {kindByte, in(packets.Connect)},
	packets.PropServerReference:        {kindString, in(packets.Disconnect)},
	packets.PropReasonString: {kindString, in(packets.Puback, packets.Pubrec, packets.Pubrel, packets.Pubcomp,
		packets.Disconnect, packets.Auth)},
	packets.PropReceiveMaximum:    {kindUint16, in(packets.Connect)},
	packets.PropTopicAliasMaximum: {kindUint16, in(packets.Connect)},
	packets.PropTopicAlias:        {kindUint16, in(packets.Publish)},
	packets.PropUser: {kindPair, in(packets.Connect, packets.Publish, packets.Puback, packets.Pubrec, packets.Pubrel,
		packets.Pubcomp, packets.Subscribe, packets.Unsubscribe, packets.Disconnect, packets.Auth, will)},
	packets.PropMaximumPacketSize: {kindUint32, in(packets.Connect)},
}

// MaxUserProperties is how many a packet may have: each costs 32 bytes of memory and more, and as few as five in the packet.
const MaxUserProperties = 1024

// DetailUserProperties is the Detail of the Error of a packet that has more.
const DetailUserProperties = "too many user properties in a packet"

// property is one property of a packet: its number, string or bytes, and the second string of a pair.
type property struct {
	id     byte
	number uint32
	value  []byte
	second []byte
}

// propertyReader walks the properties of a packet and refuses what the standard refuses.
type propertyReader struct {
	b    []byte // ends where the properties end
	off  int
	user int    // user properties so far
	of   byte   // packet type, or will
	seen uint64 // bit 1<<id
}

// readProperties starts at the Property Length at b[off:] and returns where the properties end.
func readProperties(b []byte, off int, of byte) (r propertyReader, end int, err *Error) {
	n, off, err := readVarint(b, off)
	if err != nil {
		return r, 0, err
	}
	if int(n) > len(b)-off {
		return r, 0, malformed("property length beyond the end of the packet")
	}
	end = off + int(n)
	return propertyReader{b: b[:end], off: off, of: of}, end, nil
}

// next reads one property into p. It returns false at the end.
func (r *propertyReader) next(p *property) (bool, *Error) {
	if r.off == len(r.b) {
		return false, nil
	}
	// A property identifier is a variable byte integer, but all that exist fit one byte; 0x80 and above are unknown.
	id := r.b[r.off]
	r.off++
	if int(id) >= len(propertyRules) || propertyRules[id].in&(1<<r.of) == 0 {
		return false, malformed(fmt.Sprintf("property %d does not belong here", id)) // MQTT 5, 2.2.2.2
	}
	if bit := uint64(1) << id; id != packets.PropUser {
		if r.seen&bit != 0 {
			return false, protocolError(fmt.Sprintf("property %d is given twice", id))
		}
		r.seen |= bit
	}
	if id == packets.PropUser {
		if r.user++; r.user > MaxUserProperties {
			return false, &Error{Code: packets.ErrQuotaExceeded, Detail: DetailUserProperties}
		}
	}
	p.id = id
	var err *Error
	switch propertyRules[id].kind {
	case kindByte:
		p.number, r.off, err = readNumber(r.b, r.off, 1)
	case kindUint16:
		p.number, r.off, err = readNumber(r.b, r.off, 2)
	case kindUint32:
		p.number, r.off, err = readNumber(r.b, r.off, 4)
	case kindVarint:
		p.number, r.off, err = readVarint(r.b, r.off)
	case kindString:
		p.value, r.off, err = readString(r.b, r.off)
	case kindBinary:
		p.value, r.off, err = readBinary(r.b, r.off)
	case kindPair:
		if p.value, r.off, err = readString(r.b, r.off); err == nil {
			p.second, r.off, err = readString(r.b, r.off)
		}
	}
	if err == nil {
		err = p.check(r.of)
	}
	return err == nil, err
}

// check refuses values that the standard forbids whatever else the packet says.
func (p *property) check(of byte) *Error {
	switch p.id {
	case packets.PropPayloadFormat:
		if p.number > 1 { // MQTT 5, 3.3.2.3.2
			return protocolError("payload format indicator is neither 0 nor 1")
		}
	case packets.PropRequestProblemInfo, packets.PropRequestResponseInfo:
		if p.number > 1 { // MQTT 5, 3.1.2.11.6 and 3.1.2.11.7
			return protocolError("request information property is neither 0 nor 1")
		}
	case packets.PropReceiveMaximum:
		if p.number == 0 { // MQTT 5, 3.1.2.11.3
			return protocolError("receive maximum is 0")
		}
	case packets.PropMaximumPacketSize:
		if p.number == 0 { // MQTT 5, 3.1.2.11.4
			return protocolError("maximum packet size is 0")
		}
	case packets.PropTopicAlias:
		if p.number == 0 { // MQTT 5, 3.3.2-8
			return &Error{Code: packets.ErrTopicAliasInvalid, Detail: "topic alias is 0"}
		}
	case packets.PropSubscriptionIdentifier:
		if of == packets.Publish { // MQTT 5, 3.3.4-6
			return protocolError("a client's publish holds a subscription identifier")
		}
		if p.number == 0 { // MQTT 5, 3.8.2.1.2
			return protocolError("subscription identifier is 0")
		}
	case packets.PropResponseTopic:
		if bytes.ContainsAny(p.value, "+#") { // MQTT 5, 3.3.2-14: no reason code is named; Mosquitto and EMQX say this one
			return protocolError("response topic holds a wildcard")
		}
		if err := checkTopic(p.value); err != nil { // MQTT 5, 3.3.2-13
			err.Detail = "response topic: " + err.Detail
			return err
		}
	case packets.PropServerReference: // MQTT 5, 3.14.2.2.5: the server sends it
		return protocolError("a client's disconnect holds a server reference")
	}
	return nil
}

// publishProperties reads the properties of a PUBLISH or of a will into m. Only the will has a delay.
func (m *Publish) publishProperties(b []byte, off int, of byte) (delay uint32, end int, err *Error) {
	r, end, err := readProperties(b, off, of)
	if err != nil || r.off == end {
		return 0, end, err
	}
	var p property
	for {
		ok, err := r.next(&p)
		if err != nil {
			return 0, 0, err
		}
		if !ok {
			return delay, end, nil
		}
		switch p.id {
		case packets.PropMessageExpiryInterval:
			m.Expiry, m.HasExpiry = p.number, true
			continue
		case packets.PropTopicAlias:
			m.TopicAlias = uint16(p.number)
			continue
		case packets.PropWillDelayInterval:
			delay = p.number
			continue
		}
		if m.Properties == nil {
			m.Properties = new(spool.Properties)
		}
		q := m.Properties
		switch p.id {
		case packets.PropPayloadFormat:
			q.PayloadFormat, q.HasPayloadFormat = byte(p.number), true
		case packets.PropContentType:
			q.ContentType = text(p.value)
		case packets.PropResponseTopic:
			q.ResponseTopic = text(p.value)
		case packets.PropCorrelationData:
			q.CorrelationData = p.value
		case packets.PropUser:
			q.User = append(q.User, spool.UserProperty{Name: text(p.value), Value: text(p.second)})
		}
	}
}

// otherProperties reads the properties of every other packet: they are checked here, then decoded by the library.
func otherProperties(b []byte, off int, of byte) (q packets.Properties, seen uint64, end int, err *Error) {
	r, end, err := readProperties(b, off, of)
	if err != nil || r.off == end {
		return q, 0, end, err
	}
	var p property
	for {
		ok, err := r.next(&p)
		if err != nil {
			return q, 0, 0, err
		}
		if !ok {
			break
		}
	}
	if _, err := q.Decode(of, bytes.NewBuffer(b[off:end])); err != nil {
		// The walk above has accepted them, so the two disagree. Refuse: the stricter one wins.
		return q, 0, 0, malformed("properties: " + err.Error())
	}
	return q, r.seen, end, nil
}

func userProperties(q *packets.Properties) []spool.UserProperty {
	if len(q.User) == 0 {
		return nil
	}
	u := make([]spool.UserProperty, len(q.User))
	for i, p := range q.User {
		u[i] = spool.UserProperty{Name: p.Key, Value: p.Val}
	}
	return u
}

// readVarint reads a variable byte integer of at most four bytes (MQTT 5, 1.5.5).
func readVarint(b []byte, off int) (v uint32, next int, err *Error) {
	for i := range 4 {
		if off >= len(b) {
			return 0, 0, malformed("truncated variable byte integer")
		}
		c := b[off]
		off++
		v |= uint32(c&0x7F) << (7 * i)
		if c < 0x80 {
			return v, off, nil
		}
	}
	return 0, 0, malformed("variable byte integer is longer than four bytes")
}

func readNumber(b []byte, off, size int) (v uint32, next int, err *Error) {
	if size > len(b)-off {
		return 0, 0, malformed("truncated number")
	}
	for _, c := range b[off : off+size] {
		v = v<<8 | uint32(c)
	}
	return v, off + size, nil
}

func readBinary(b []byte, off int) (v []byte, next int, err *Error) {
	if len(b)-off < 2 {
		return nil, 0, malformed("truncated length")
	}
	n := int(binary.BigEndian.Uint16(b[off:]))
	off += 2
	if n > len(b)-off {
		return nil, 0, malformed("length beyond the end of the packet")
	}
	return b[off : off+n : off+n], off + n, nil
}

// readString reads a UTF-8 Encoded String (MQTT 5, 1.5.4).
func readString(b []byte, off int) (v []byte, next int, err *Error) {
	v, next, err = readBinary(b, off)
	if err == nil && !validString(v) {
		err = malformed("string is not UTF-8 or holds U+0000")
	}
	return v, next, err
}

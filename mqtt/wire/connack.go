package wire

import (
	"encoding/binary"

	"github.com/mochi-mqtt/server/v2/packets"
)

// AppendConnack appends a CONNACK.
func (p Peer) AppendConnack(b []byte, c *Connack) []byte {
	var flags byte
	if c.SessionPresent && c.Reason == 0 { // MQTT 5, 3.2.2-6
		flags = 1
	}
	if p.Version == Version311 {
		return append(appendHeader(b, packets.Connack<<4, 2), flags, c.Reason)
	}
	q := &c.Properties
	var room [128]byte
	must := appendConnackProperties(room[:0], q, false)
	if rest := 2 + varintSize(len(must)) + len(must); !p.fits(rest) {
		must = appendConnackProperties(room[:0], q, true)
	}
	text, props := p.fitReason(q.ReasonString, len(must), 2)
	user := q.User
	if with := props + userSize(user); p.fits(2 + varintSize(with) + with) {
		props = with
	} else {
		user = nil // MQTT 5, 3.2.2-20
	}
	rest := 2 + varintSize(props) + props
	if !p.fits(rest) {
		return b
	}
	b = appendHeader(b, packets.Connack<<4, rest)
	b = append(b, flags, c.Reason)
	b = appendVarint(b, props)
	b = append(b, must...)
	b = appendStringProperty(b, packets.PropReasonString, text)
	for _, u := range user {
		b = appendString(append(b, packets.PropUser), u.Key)
		b = appendString(b, u.Val)
	}
	return b
}

func userSize(user []packets.UserProperty) (n int) {
	for _, u := range user {
		n += 1 + 2 + len(u.Key) + 2 + len(u.Val)
	}
	return n
}

// appendConnackProperties appends the properties that tell the client what it must know (MQTT 5, 3.2.2.3). When room is
// scarce, those that say the same as their absence are left out.
func appendConnackProperties(b []byte, q *packets.Properties, scarce bool) []byte {
	flag := func(id byte, set bool, v byte) { // they say that something is not available with 0
		if set && !(scarce && v == 1) {
			b = append(b, id, v)
		}
	}
	number16 := func(id byte, set bool, v uint16) {
		if set {
			b = binary.BigEndian.AppendUint16(append(b, id), v)
		}
	}
	number32 := func(id byte, set bool, v uint32) {
		if set {
			b = binary.BigEndian.AppendUint32(append(b, id), v)
		}
	}
	number32(packets.PropSessionExpiryInterval, q.SessionExpiryIntervalFlag, q.SessionExpiryInterval)
	number16(packets.PropReceiveMaximum, q.ReceiveMaximum > 0 && !(scarce && q.ReceiveMaximum == 65535), q.ReceiveMaximum)
	if q.MaximumQosFlag && q.MaximumQos < 2 {
		b = append(b, packets.PropMaximumQos, q.MaximumQos)
	}
	flag(packets.PropRetainAvailable, q.RetainAvailableFlag, q.RetainAvailable)
	number32(packets.PropMaximumPacketSize, q.MaximumPacketSize > 0, q.MaximumPacketSize)
	b = appendStringProperty(b, packets.PropAssignedClientID, q.AssignedClientID)
	number16(packets.PropTopicAliasMaximum, q.TopicAliasMaximum > 0, q.TopicAliasMaximum)
	flag(packets.PropWildcardSubAvailable, q.WildcardSubAvailableFlag, q.WildcardSubAvailable)
	flag(packets.PropSubIDAvailable, q.SubIDAvailableFlag, q.SubIDAvailable)
	flag(packets.PropSharedSubAvailable, q.SharedSubAvailableFlag, q.SharedSubAvailable)
	number16(packets.PropServerKeepAlive, q.ServerKeepAliveFlag, q.ServerKeepAlive)
	b = appendStringProperty(b, packets.PropResponseInfo, q.ResponseInfo)
	b = appendStringProperty(b, packets.PropServerReference, q.ServerReference)
	b = appendStringProperty(b, packets.PropAuthenticationMethod, q.AuthenticationMethod)
	return appendBinaryProperty(b, packets.PropAuthenticationData, q.AuthenticationData)
}

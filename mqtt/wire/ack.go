package wire

import "github.com/mochi-mqtt/server/v2/packets"

// decodeShortAck decodes an acknowledgement of at most shortAck bytes, which has no properties. b is not kept.
func decodeShortAck(kind byte, b []byte, version byte) (*Ack, *Error) {
	id, _, err := readPacketID(b, 0)
	if err != nil {
		return nil, err
	}
	a := &Ack{Kind: kind, PacketID: id}
	if len(b) == 2 {
		return a, nil
	}
	if version == Version311 {
		return nil, malformed("trailing bytes")
	}
	a.Reason = b[2]
	if len(b) == 4 && b[3] != 0 {
		return nil, malformed("property length beyond the end of the packet")
	}
	return a, a.checkReason()
}

// decodeAck decodes an acknowledgement with properties.
func decodeAck(kind byte, b []byte, version byte) (*Ack, *Error) {
	a, err := decodeShortAck(kind, b[:3], version)
	if err != nil {
		return nil, err
	}
	q, _, end, err := otherProperties(b, 3, kind)
	if err != nil {
		return nil, err
	}
	if end != len(b) {
		return nil, malformed("trailing bytes")
	}
	a.ReasonString = q.ReasonString
	return a, nil
}

// checkReason refuses reason codes that the packet does not have (MQTT 5, 3.4.2-1, 3.5.2-1, 3.6.2-1, 3.7.2-1).
func (a *Ack) checkReason() *Error {
	ok := false
	switch a.Reason {
	case packets.CodeSuccess.Code:
		ok = true
	case packets.ErrPacketIdentifierNotFound.Code:
		ok = a.Kind == packets.Pubrel || a.Kind == packets.Pubcomp
	case packets.CodeNoMatchingSubscribers.Code, packets.ErrUnspecifiedError.Code,
		packets.ErrImplementationSpecificError.Code, packets.ErrNotAuthorized.Code, packets.ErrTopicNameInvalid.Code,
		packets.ErrPacketIdentifierInUse.Code, packets.ErrQuotaExceeded.Code, packets.ErrPayloadFormatInvalid.Code:
		ok = a.Kind == packets.Puback || a.Kind == packets.Pubrec
	}
	if !ok {
		return protocolError("reason code does not belong to the acknowledgement")
	}
	return nil
}

package wire

import "github.com/mochi-mqtt/server/v2/packets"

func decodeDisconnect(b []byte, version byte) (*Disconnect, *Error) {
	d := &Disconnect{}
	if len(b) == 0 {
		return d, nil
	}
	if version == Version311 {
		return nil, malformed("trailing bytes")
	}
	d.Reason = b[0]
	if len(b) > 1 { // MQTT 5, 3.14.2.2.1
		q, _, end, err := otherProperties(b, 1, packets.Disconnect)
		if err != nil {
			return nil, err
		}
		if end != len(b) {
			return nil, malformed("trailing bytes")
		}
		d.HasSessionExpiry = q.SessionExpiryIntervalFlag
		d.SessionExpiry = q.SessionExpiryInterval
		d.ReasonString = q.ReasonString
	}
	return d, d.checkReason()
}

// checkReason refuses reason codes that a client's DISCONNECT does not have (MQTT 5, 3.14.2-1 and table 3-10).
func (d *Disconnect) checkReason() *Error {
	switch d.Reason {
	case packets.CodeDisconnect.Code, packets.CodeDisconnectWillMessage.Code, packets.ErrUnspecifiedError.Code,
		packets.ErrMalformedPacket.Code, packets.ErrProtocolViolation.Code,
		packets.ErrImplementationSpecificError.Code, packets.ErrTopicNameInvalid.Code, packets.ErrReceiveMaximum.Code,
		packets.ErrTopicAliasInvalid.Code, packets.ErrPacketTooLarge.Code, packets.ErrMessageRateTooHigh.Code,
		packets.ErrQuotaExceeded.Code, packets.ErrAdministrativeAction.Code, packets.ErrPayloadFormatInvalid.Code:
		return nil
	}
	return protocolError("reason code does not belong to a client's disconnect")
}

func decodeAuth(b []byte) (*Auth, *Error) {
	if len(b) == 0 { // reason code 0x00, which only a server sends
		return nil, protocolError("a client's auth with reason code 0x00")
	}
	a := &Auth{Reason: b[0]}
	// MQTT 5, 3.15.2-1 and table 3-11
	if a.Reason != packets.CodeContinueAuthentication.Code && a.Reason != packets.CodeReAuthenticate.Code {
		return nil, protocolError("reason code does not belong to a client's auth")
	}
	q, seen, end, err := otherProperties(b, 1, packets.Auth)
	if err != nil {
		return nil, err
	}
	if end != len(b) {
		return nil, malformed("trailing bytes")
	}
	if seen&(1<<packets.PropAuthenticationMethod) == 0 { // MQTT 5, 3.15.2.2.2
		return nil, protocolError("auth without an authentication method")
	}
	a.Method, a.Data, a.ReasonString = q.AuthenticationMethod, q.AuthenticationData, q.ReasonString
	return a, nil
}

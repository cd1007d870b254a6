package wire

import (
	"fmt"

	"github.com/mochi-mqtt/server/v2/packets"
)

// Error says what a packet did wrong. Errors of the connection are returned by Decoder.Read as they came; io.EOF only
// between two packets, io.ErrUnexpectedEOF inside one.
type Error struct {
	// Code is the reason code that MQTT 5 names for the fault, whatever version the client speaks.
	Code packets.Code

	// Detail says what was wrong, without bytes of the client.
	Detail string

	// Version tells how an answer may be written: Version5 with Code in a CONNACK (before a CONNECT was read) or a
	// DISCONNECT (after it); Version311 only as a CONNACK, where 3.1.1 has a return code for Code (0x84 and 0x85),
	// otherwise close the connection; 0 close it without a word, the peer does not speak MQTT.
	Version byte
}

// Error returns code and detail.
func (e *Error) Error() string { return fmt.Sprintf("reason 0x%02X: %s", e.Code.Code, e.Detail) }

func malformed(detail string) *Error { return &Error{Code: packets.ErrMalformedPacket, Detail: detail} }

func protocolError(detail string) *Error {
	return &Error{Code: packets.ErrProtocolViolation, Detail: detail}
}

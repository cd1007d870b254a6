package mqtt

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/auth"
	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// The reason codes that the engine gives by itself.
const (
	reasonSuccess           = 0x00
	reasonNoSubscription    = 0x11
	reasonUnspecified       = 0x80
	reasonImplementation    = 0x83
	reasonClientIDInvalid   = 0x85
	reasonBadUserName       = 0x86
	reasonNotAuthorized     = 0x87
	reasonServerUnavailable = 0x88
	reasonServerBusy        = 0x89
	reasonBanned            = 0x8A
	reasonShuttingDown      = 0x8B
	reasonBadAuthMethod     = 0x8C
	reasonKeepAliveTimeout  = 0x8D
	reasonTakenOver         = 0x8E
	reasonFilterInvalid     = 0x8F
	reasonIDNotFound        = 0x92
	reasonMessageRate       = 0x96
	reasonQuotaExceeded     = 0x97
	reasonAdministrative    = 0x98
	reasonUseAnotherServer  = 0x9C
	reasonServerMoved       = 0x9D
	reasonConnectionRate    = 0x9F
	reasonConnectTime       = 0xA0
)

// The return codes of a CONNACK of MQTT 3.1.1.
const (
	returnAccepted         = 0
	returnBadVersion       = 1
	returnClientIDRejected = 2
	returnUnavailable      = 3
	returnBadUserName      = 4
	returnNotAuthorized    = 5
)

// reasonOf decides what an error means to a client. What is unknown is never a success.
func reasonOf(err error) byte {
	var we *wire.Error
	switch {
	case err == nil:
		return reasonSuccess
	case errors.As(err, &we):
		return we.Code.Code
	case errors.Is(err, spool.ErrFull), errors.Is(err, ErrQuotaExceeded), errors.Is(err, errBehind), errors.Is(err, errByteRate),
		errors.Is(err, errTooManyConnections), errors.Is(err, errTooManyFromAddress), errors.Is(err, errTooManyPending), errors.Is(err, errRetainedCount),
		errors.Is(err, errRetainedSize), errors.Is(err, errUserProperties), errors.Is(err, errAway):
		return reasonQuotaExceeded
	case errors.Is(err, errMessageRate):
		return reasonMessageRate
	case errors.Is(err, errTooFastFromAddress):
		return reasonConnectionRate
	case errors.Is(err, spool.ErrTooLarge), errors.Is(err, spool.ErrInvalid):
		return reasonImplementation // it never fits: the publisher must not try again; 0x95 is not for a PUBACK
	case errors.Is(err, ErrNotAuthorized):
		return reasonNotAuthorized
	case errors.Is(err, ErrBadUserNameOrPassword):
		return reasonBadUserName
	case errors.Is(err, ErrBanned):
		return reasonBanned
	case errors.Is(err, ErrServerBusy), errors.Is(err, errSuperseded), errors.Is(err, errLate):
		return reasonServerBusy
	case errors.Is(err, auth.ErrUnavailable):
		return reasonServerUnavailable
	case errors.Is(err, auth.ErrBadMethod):
		return reasonBadAuthMethod
	case errors.Is(err, auth.ErrProtocol):
		return packets.ErrProtocolViolation.Code
	case errors.Is(err, errBannedNow): // 0x8A is not for a DISCONNECT
		return reasonAdministrative
	case errors.Is(err, errCredentialsExpired): // maximum connect time: authorised for so long
		return reasonConnectTime
	case errors.Is(err, errTakenOver):
		return reasonTakenOver
	case errors.Is(err, errShuttingDown):
		return reasonShuttingDown // disconnect knows of another server
	case errors.Is(err, errOverflow):
		return reasonQuotaExceeded
	case errors.Is(err, spool.ErrClosed):
		return reasonShuttingDown
	case errors.Is(err, os.ErrDeadlineExceeded): // the read deadline: nothing came for one and a half keep-alives
		return reasonKeepAliveTimeout
	default:
		return reasonUnspecified
	}
}

// lost reports whether an error is the network's: there is nobody to tell.
func lost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, errWriteTimeout) || isNetError(err)
}

func isNetError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && !op.Timeout()
}

// returnCode turns a reason code into the return code of MQTT 3.1.1; ok is false when it has none and the connection is
// closed without a CONNACK (MQTT 3.1.1, 3.2.2.3).
func returnCode(reason byte) (code byte, ok bool) {
	switch reason {
	case reasonSuccess:
		return returnAccepted, true
	case packets.ErrUnsupportedProtocolVersion.Code:
		return returnBadVersion, true
	case reasonClientIDInvalid:
		return returnClientIDRejected, true
	case reasonServerUnavailable, reasonServerBusy, reasonQuotaExceeded, reasonShuttingDown, reasonServerMoved, reasonConnectionRate:
		return returnUnavailable, true
	case reasonBadUserName:
		return returnBadUserName, true
	case reasonNotAuthorized, reasonBanned:
		return returnNotAuthorized, true
	default:
		return 0, false
	}
}

// packetReasons are the reason codes that a packet of MQTT 5 may hold, of those that the engine gives (tables 3-1, 3-4, 3-5,
// 3.9.3 and 3-10).
var packetReasons = [16]string{
	packets.Connack: "\x00\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8A\x8C\x90\x95\x97\x99\x9A\x9B\x9C\x9D\x9F",
	packets.Puback:  "\x00\x10\x80\x83\x87\x90\x91\x97\x99",
	packets.Pubrec:  "\x00\x10\x80\x83\x87\x90\x91\x97\x99",
	packets.Suback:  "\x00\x01\x02\x80\x83\x87\x8F\x91\x97\x9E\xA1\xA2",
	packets.Disconnect: "\x00\x80\x81\x82\x83\x87\x89\x8B\x8C\x8D\x8E\x8F\x90\x93\x94\x95\x96\x97\x98\x99\x9A\x9B\x9C\x9D\x9E\x9F" +
		"\xA0\xA1\xA2",
}

// fit turns a reason into one that a packet of that type has (MQTT 5, 3.4.2-1 and others): an Access may answer anything.
func fit(kind, reason byte) byte {
	if strings.IndexByte(packetReasons[kind], reason) >= 0 {
		return reason
	}
	switch reason {
	case reasonBadUserName, reasonBanned, reasonBadAuthMethod:
		return reasonNotAuthorized
	case reasonShuttingDown: // of a CONNACK
		return reasonServerUnavailable
	case reasonMessageRate: // 0x96 is for a DISCONNECT
		return reasonQuotaExceeded
	default:
		return reasonUnspecified
	}
}

// The answers below are the only ways of a reason code to a client.

// refuse answers a CONNECT with a reason and closes the connection.
func (c *conn) refuse(peer wire.Peer, reason byte, text string) {
	reason = fit(packets.Connack, reason)
	c.srv.metrics.refused(reason)
	ack := &wire.Connack{Reason: reason}
	ack.Properties.ReasonString = text
	if reason == reasonServerMoved {
		ack.Properties.ServerReference = c.srv.cfg.ServerReference
	}
	switch peer.Version {
	case wire.Version5:
	case wire.Version311:
		code, ok := returnCode(reason)
		if !ok {
			c.out.finish(nil, lastWrite)
			return
		}
		ack = &wire.Connack{Reason: code}
	default: // not MQTT
		c.out.finish(nil, lastWrite)
		return
	}
	c.out.finish(func(b []byte) []byte { return peer.AppendConnack(b, ack) }, lastWrite)
}

// disconnect tells an MQTT 5 client why and closes the connection; MQTT 3.1.1 has no such packet from a server.
func (c *conn) disconnect(reason byte, text string) {
	d := &wire.Disconnect{Reason: fit(packets.Disconnect, reason), ReasonString: text}
	if reference := c.srv.cfg.ServerReference; reference != "" && reason == reasonShuttingDown { // MQTT 5, 4.13
		d.Reason, d.ServerReference = reasonUseAnotherServer, reference
		if c.srv.cfg.ServerMoved {
			d.Reason = reasonServerMoved
		}
	}
	c.out.finish(func(b []byte) []byte { return c.peer.AppendDisconnect(b, d) }, lastWrite)
}

// acknowledge appends PUBACKs and PUBRECs.
func (c *conn) acknowledge(list []ackSlot) {
	c.out.controls(len(list), func(b []byte) []byte {
		for _, s := range list {
			b = c.appendAck(b, s)
		}
		return b
	})
}

func (c *conn) appendAck(b []byte, s ackSlot) []byte {
	reason := fit(s.kind, s.reason)
	if reason >= 0x80 {
		c.srv.metrics.refused(reason)
	}
	text := ""
	if s.late {
		text = lateText
	}
	if s.kind == packets.Puback {
		return c.peer.AppendPuback(b, s.pid, reason, text)
	}
	return c.peer.AppendPubrec(b, s.pid, reason, text)
}

func (c *conn) pubrel(pid uint16, reason byte) {
	c.out.control(func(b []byte) []byte { return c.peer.AppendPubrel(b, pid, reason, "") })
}

func (c *conn) pubcomp(pid uint16, reason byte) {
	c.out.control(func(b []byte) []byte { return c.peer.AppendPubcomp(b, pid, reason, "") })
}

func (c *conn) suback(pid uint16, reasons []byte) {
	for i := range reasons {
		reasons[i] = fit(packets.Suback, reasons[i])
	}
	c.out.control(func(b []byte) []byte { return c.peer.AppendSuback(b, pid, reasons, "") })
}

func (c *conn) unsuback(pid uint16, reasons []byte) {
	c.out.control(func(b []byte) []byte { return c.peer.AppendUnsuback(b, pid, reasons, "") })
}

func (c *conn) pingresp() { c.out.control(c.peer.AppendPingresp) }

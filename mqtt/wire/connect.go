package wire

import (
	"math"

	"github.com/mochi-mqtt/server/v2/packets"
)

// Connect flags (MQTT 5, 3.1.2.3).
const (
	flagReserved   = 1 << 0
	flagCleanStart = 1 << 1
	flagWill       = 1 << 2
	flagWillQoS    = 3 << 3
	flagWillRetain = 1 << 5
	flagPassword   = 1 << 6
	flagUserName   = 1 << 7
)

// protocol reads protocol name and level. level is the answerable one: 0 when b is not MQTT.
func protocol(b []byte) (level, answer byte, next int, err *Error) {
	name, off, err := readBinary(b, 0)
	if err != nil {
		return 0, 0, 0, err
	}
	if off >= len(b) {
		return 0, 0, 0, malformed("connect without a protocol level")
	}
	level = b[off]
	switch string(name) {
	case "MQTT":
	case "MQIsdp": // MQTT 3.1, which knows the return codes of 3.1.1
		return 0, Version311, 0, &Error{
			Code: packets.ErrUnsupportedProtocolVersion, Detail: "MQTT 3.1 is not served", Version: Version311,
		}
	default: // MQTT 5, 3.1.2-1: it may be refused without a word, for who knows what it would understand
		return 0, 0, 0, &Error{Code: packets.ErrUnsupportedProtocolVersion, Detail: "protocol name is not MQTT"}
	}
	answer = Version5
	if level < Version5 {
		answer = Version311
	}
	return level, answer, off + 1, nil
}

func decodeConnect(b []byte) (*Connect, *Error) {
	level, answer, off, err := protocol(b)
	if err != nil {
		return nil, err
	}
	if level != Version311 && level != Version5 { // MQTT 5, 3.1.2-2
		return nil, &Error{
			Code: packets.ErrUnsupportedProtocolVersion, Detail: "protocol level is not served", Version: answer,
		}
	}
	c := &Connect{
		Version:            level,
		ReceiveMaximum:     math.MaxUint16,
		RequestProblemInfo: true,
	}
	if err := c.decode(b, off); err != nil {
		err.Version = level
		return nil, err
	}
	return c, nil
}

// decode decodes what follows the protocol level.
func (c *Connect) decode(b []byte, off int) (err *Error) {
	if len(b)-off < 3 {
		return malformed("truncated connect")
	}
	flags := b[off]
	if err := checkConnectFlags(flags, c.Version); err != nil {
		return err
	}
	c.CleanStart = flags&flagCleanStart != 0
	c.KeepAlive = uint16(b[off+1])<<8 | uint16(b[off+2])
	off += 3
	if c.Version == Version5 {
		if off, err = c.properties(b, off); err != nil {
			return err
		}
	} else if !c.CleanStart {
		c.SessionExpiry = math.MaxUint32
	}

	var s []byte
	if s, off, err = readString(b, off); err != nil { // MQTT 5, 3.1.3-4
		return err
	}
	c.ClientID = text(s)
	if c.ClientID == "" && c.Version == Version311 && !c.CleanStart { // MQTT 3.1.1, 3.1.3-8
		return &Error{Code: packets.ErrClientIdentifierNotValid, Detail: "empty client ID with a session to keep"}
	}
	if flags&flagWill != 0 {
		if off, err = c.will(flags, b, off); err != nil {
			return err
		}
	}
	if c.HasUserName = flags&flagUserName != 0; c.HasUserName {
		if s, off, err = readString(b, off); err != nil { // MQTT 5, 3.1.3-12
			return err
		}
		c.UserName = text(s)
	}
	if c.HasPassword = flags&flagPassword != 0; c.HasPassword {
		if c.Password, off, err = readBinary(b, off); err != nil {
			return err
		}
	}
	if off != len(b) {
		return malformed("trailing bytes")
	}
	return nil
}

func checkConnectFlags(flags, version byte) *Error {
	switch {
	case flags&flagReserved != 0: // MQTT 5, 3.1.2-3
		return malformed("reserved connect flag")
	case flags&flagWill == 0 && flags&(flagWillQoS|flagWillRetain) != 0: // MQTT 5, 3.1.2-11 and 3.1.2-13
		return malformed("will flags without a will")
	case flags&flagWillQoS == flagWillQoS: // MQTT 5, 3.1.2-12
		return malformed("will with QoS 3")
	case version == Version311 && flags&flagPassword != 0 && flags&flagUserName == 0: // MQTT 3.1.1, 3.1.2-22
		return malformed("password without a user name")
	}
	return nil
}

// will decodes will properties, topic and payload.
func (c *Connect) will(flags byte, b []byte, off int) (end int, err *Error) {
	w := &Will{Publish: Publish{
		QoS:    flags & flagWillQoS >> 3,
		Retain: flags&flagWillRetain != 0,
	}}
	if c.Version == Version5 {
		if w.Delay, off, err = w.publishProperties(b, off, will); err != nil {
			return 0, err
		}
	}
	topic, off, err := readBinary(b, off) // MQTT 5, 3.1.3-11
	if err != nil {
		return 0, err
	}
	if err := checkTopic(topic); err != nil {
		err.Detail = "will: " + err.Detail
		return 0, err
	}
	w.Topic = text(topic)
	if w.Payload, off, err = readBinary(b, off); err != nil {
		return 0, err
	}
	c.Will = w
	return off, nil
}

func (c *Connect) properties(b []byte, off int) (end int, err *Error) {
	q, seen, end, err := otherProperties(b, off, packets.Connect)
	if err != nil || seen == 0 && len(q.User) == 0 {
		return end, err
	}
	has := func(id byte) bool { return seen&(1<<id) != 0 }
	if has(packets.PropReceiveMaximum) {
		c.ReceiveMaximum = q.ReceiveMaximum
	}
	c.SessionExpiry = q.SessionExpiryInterval
	c.MaxPacketSize = q.MaximumPacketSize
	c.TopicAliasMaximum = q.TopicAliasMaximum
	c.RequestResponse = q.RequestResponseInfo == 1
	c.RequestProblemInfo = !has(packets.PropRequestProblemInfo) || q.RequestProblemInfo == 1
	c.HasAuthMethod = has(packets.PropAuthenticationMethod)
	c.AuthMethod = q.AuthenticationMethod
	c.AuthData = q.AuthenticationData
	if has(packets.PropAuthenticationData) && !c.HasAuthMethod { // MQTT 5, 3.1.2.11.10
		return 0, protocolError("authentication data without a method")
	}
	c.User = userProperties(&q)
	return end, nil
}

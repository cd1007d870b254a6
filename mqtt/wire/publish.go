package wire

import (
	"encoding/binary"

	"github.com/mochi-mqtt/server/v2/packets"
)

// decodePublish decodes a PUBLISH. It does not go through the library, because this is the hot path; a fuzz test holds it
// to what the library makes of the same bytes.
func decodePublish(head byte, b []byte, version byte) (*Publish, *Error) {
	topic, off, err := readBinary(b, 0)
	if err != nil {
		return nil, err
	}
	m := &Publish{
		QoS:    head >> 1 & 3,
		Dup:    head&0x08 != 0,
		Retain: head&0x01 != 0,
	}
	if m.QoS > 0 {
		if m.PacketID, off, err = readPacketID(b, off); err != nil {
			return nil, err
		}
	}
	if version == Version5 {
		if _, off, err = m.publishProperties(b, off, packets.Publish); err != nil {
			return nil, err
		}
	}
	switch {
	case len(topic) > 0:
		if err := checkTopic(topic); err != nil {
			return nil, err
		}
		m.Topic = text(topic)
	case m.TopicAlias == 0 && version == Version5: // MQTT 5, 3.3.2.1
		return nil, protocolError("publish with neither topic name nor topic alias")
	case m.TopicAlias == 0:
		return nil, malformed("topic name is empty") // MQTT 3.1.1, 4.7.3-1
	}
	m.Payload = b[off:]
	return m, nil
}

func readPacketID(b []byte, off int) (id uint16, next int, err *Error) {
	if len(b)-off < 2 {
		return 0, 0, malformed("truncated packet identifier")
	}
	if id = binary.BigEndian.Uint16(b[off:]); id == 0 { // MQTT 5, 2.2.1-3
		return 0, 0, protocolError("packet identifier is 0")
	}
	return id, off + 2, nil
}

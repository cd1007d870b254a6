package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Control packet types, the high nibble of the first byte (MQTT 5, 2.1.2).
const (
	connack   = 2
	publish   = 3
	puback    = 4
	pubrec    = 5
	pubrel    = 6
	pubcomp   = 7
	suback    = 9
	maxVarint = 128*128*128*128 - 1 // MQTT 5, 1.5.5: four bytes of seven bits
)

func appendVarint(b []byte, n int) []byte {
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// appendPacket adds a control packet with the given first byte and body.
func appendPacket(b []byte, first byte, body []byte) []byte {
	return append(appendVarint(append(b, first), len(body)), body...)
}

// connectPacket asks for a session of MQTT 5; keep says whether it outlives the connection.
func connectPacket(clientID string, keep bool) []byte {
	flags, expiry := byte(2), uint32(0) // clean start
	if keep {
		expiry = 3600
	}
	body := appendString(nil, "MQTT")
	body = append(body, 5, flags, 0, 0) // no keep-alive: the load itself keeps it alive
	props := append([]byte{0x11}, binary.BigEndian.AppendUint32(nil, expiry)...)
	props = append(props, 0x21, 0xff, 0xff) // Receive Maximum 65535
	body = append(appendVarint(body, len(props)), props...)
	return appendPacket(nil, 0x10, appendString(body, clientID))
}

func subscribePacket(filter string, qos byte) []byte {
	body := appendString([]byte{0, 1, 0}, filter)
	return appendPacket(nil, 0x82, append(body, qos))
}

// publishPacket returns an encoded PUBLISH and where its packet identifier stands, so that it can be patched.
func publishPacket(topic string, qos byte, payload []byte) (packet []byte, idAt int) {
	body := appendString(nil, topic)
	at := len(body)
	if qos > 0 {
		body = append(body, 0, 0)
	}
	body = append(append(body, 0), payload...)
	packet = appendPacket(nil, 0x30|qos<<1, body)
	return packet, len(packet) - len(body) + at
}

// packetReader reads control packets; the body it returns is valid until the next call.
type packetReader struct {
	r    *bufio.Reader
	body []byte
}

func (p *packetReader) next() (first byte, body []byte, err error) {
	if first, err = p.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, shift := 0, 0
	for {
		c, err := p.r.ReadByte()
		if err != nil {
			return 0, nil, err
		}
		n |= int(c&0x7f) << shift
		if shift += 7; c < 0x80 {
			break
		}
		if n > maxVarint || shift > 21 {
			return 0, nil, errors.New("remaining length has more than four bytes")
		}
	}
	if cap(p.body) < n {
		p.body = make([]byte, n)
	}
	p.body = p.body[:n]
	_, err = io.ReadFull(p.r, p.body)
	return first, p.body, err
}

// expect reads one packet of the given type.
func (p *packetReader) expect(kind byte) ([]byte, error) {
	first, body, err := p.next()
	if err != nil {
		return nil, err
	}
	if first>>4 != kind {
		return nil, fmt.Errorf("got packet type %d, want %d", first>>4, kind)
	}
	return body, nil
}

// receiveMaximum is what a CONNACK allows to be outstanding (MQTT 5, 3.2.2.3.3).
func receiveMaximum(body []byte) int {
	props := body[2:]
	if len(props) == 0 {
		return 65535
	}
	for p := props[1:]; len(p) > 0; { // every CONNACK here has fewer than 128 bytes of properties
		size := 0
		switch p[0] {
		case 0x24, 0x25, 0x28, 0x29, 0x2a:
			size = 1
		case 0x13, 0x22:
			size = 2
		case 0x11, 0x27:
			size = 4
		case 0x21:
			return int(binary.BigEndian.Uint16(p[1:]))
		case 0x12, 0x15, 0x16, 0x1a, 0x1c, 0x1f:
			size = 2 + int(binary.BigEndian.Uint16(p[1:]))
		default:
			return 65535
		}
		p = p[1+size:]
	}
	return 65535
}

// id is the packet identifier at the start of an acknowledgement, refused when its reason code is an error.
func id(body []byte) (uint16, error) {
	if len(body) < 2 {
		return 0, errors.New("acknowledgement without packet identifier")
	}
	if len(body) > 2 && body[2] >= 0x80 {
		return 0, fmt.Errorf("acknowledgement with reason code 0x%02x", body[2])
	}
	return binary.BigEndian.Uint16(body), nil
}

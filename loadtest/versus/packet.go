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
	pingresp  = 13
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

// dialect is how a broker is spoken to: version311 or version5.
type dialect byte

const (
	version311 dialect = 4
	version5   dialect = 5
)

// connect asks for a session; keep says whether it outlives the connection. Receive Maximum is left at its default of 65535.
func (v dialect) connect(clientID string, keep bool) []byte {
	flags := byte(2) // clean start
	if keep && v == version311 {
		flags = 0
	}
	body := appendString(nil, "MQTT")
	body = append(body, byte(v), flags, 0, 0) // no keep-alive: the load itself keeps it alive
	if v == version5 {
		expiry := uint32(0)
		if keep {
			expiry = 3600
		}
		body = binary.BigEndian.AppendUint32(append(body, 5, 0x11), expiry)
	}
	return appendPacket(nil, 0x10, appendString(body, clientID))
}

// noProperties is the empty property list that MQTT 5 wants and MQTT 3.1.1 does not know.
func (v dialect) noProperties(b []byte) []byte {
	if v == version5 {
		return append(b, 0)
	}
	return b
}

func (v dialect) subscribe(filter string, qos byte) []byte {
	body := appendString(v.noProperties([]byte{0, 1}), filter)
	return appendPacket(nil, 0x82, append(body, qos))
}

// publishHead is an encoded PUBLISH without its payload of the given size, and where its packet identifier stands.
func (v dialect) publishHead(topic string, qos byte, payload int) (head []byte, idAt int) {
	body := appendString(nil, topic)
	at := len(body)
	if qos > 0 {
		body = append(body, 0, 0)
	}
	body = v.noProperties(body)
	head = append(appendVarint([]byte{0x30 | qos<<1}, len(body)+payload), body...)
	return head, len(head) - len(body) + at
}

// delivery takes a PUBLISH apart.
func (v dialect) delivery(first byte, body []byte) (qos byte, pid uint16, payload []byte, err error) {
	short := errors.New("PUBLISH is too short")
	if len(body) < 2 {
		return 0, 0, nil, short
	}
	at := 2 + int(binary.BigEndian.Uint16(body))
	qos = first >> 1 & 3
	if qos > 0 {
		if len(body) < at+2 {
			return 0, 0, nil, short
		}
		pid = binary.BigEndian.Uint16(body[at:])
		at += 2
	}
	if v == version5 { // fewer than 128 bytes of properties: nobody set any
		if len(body) <= at {
			return 0, 0, nil, short
		}
		at += 1 + int(body[at])
	}
	if len(body) < at {
		return 0, 0, nil, short
	}
	return qos, pid, body[at:], nil
}

// packetReader reads control packets; the body it returns is valid until the next call.
type packetReader struct {
	r    *bufio.Reader
	body []byte
}

// newSmallReader is for a connection that reads a few small packets.
func newSmallReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 64) }

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
	if len(props) == 0 { // MQTT 3.1.1
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

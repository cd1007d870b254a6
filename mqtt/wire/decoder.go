package wire

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/mochi-mqtt/server/v2/packets"
)

// Limits bound what a client may send. Sizes are those of whole packets, fixed header included.
type Limits struct {
	Connect uint32 // largest CONNECT; small, because nobody is authenticated yet
	Packet  uint32 // largest packet after the CONNECT: the Maximum Packet Size of the CONNACK
	Filters uint32 // most topic filters in a packet: each costs far more than its bytes; 0 is no limit
}

const (
	// A Decoder that waits for a client holds this much and no more: with its other fields it fills the allocator's size
	// class of 512 bytes. A telemetry PUBLISH fits.
	smallBuffer = 512 - 64

	// A connection that has more waiting than smallBuffer borrows one of these while it drains.
	bigBuffer = 8 << 10

	// The body of a packet up to this size is allocated at once, a larger one grows as its bytes arrive: a client that
	// announces 16 MiB and sends nothing holds 64 KiB.
	eagerBody = 64 << 10

	// The same for a CONNECT: its sender is not known yet, and there may be as many of them as the limit of open files allows.
	eagerConnect = 1 << 10

	// The largest body of an acknowledgement without properties: packet identifier, reason code, property length.
	shortAck = 4

	maxRemaining = 1<<28 - 1 // MQTT 5, 2.1.4
	maxEmptyRead = 100       // reads in a row that return neither bytes nor an error, as bufio has it
)

var bigBuffers = sync.Pool{New: func() any { return new([bigBuffer]byte) }}

// Decoder reads a client's packets from a connection. It must not be copied nor used by two goroutines at once.
type Decoder struct {
	r          io.Reader
	big        *[bigBuffer]byte // nil unless borrowed
	start, end int32            // what is buffered, in big if there is one, otherwise in small
	limits     Limits
	version    byte // 0 until the CONNECT was read
	more       bool // the last read filled its buffer, so more is likely to wait
	ack        [shortAck]byte
	small      [smallBuffer]byte
}

// NewDecoder returns a Decoder that expects a CONNECT first.
func NewDecoder(r io.Reader, l Limits) *Decoder { return &Decoder{r: r, limits: l} }

// SetLimit changes the largest packet that is accepted from now on.
func (d *Decoder) SetLimit(packet uint32) { d.limits.Packet = packet }

// Buffered returns how many bytes were read from the connection and not yet returned: 0 means that the next Read may block.
func (d *Decoder) Buffered() int { return int(d.end - d.start) }

// Read returns the next packet. The version is taken from the CONNECT; a second one is an error. After an error of any
// kind Read must not be called again. It never panics, and never holds more than twice the bytes that came for a packet,
// or eagerBody.
func (d *Decoder) Read() (Packet, error) {
	head, n, err := d.header()
	if err != nil {
		return nil, d.fault(err)
	}
	p, err := d.packet(head, n)
	if err != nil {
		return nil, d.fault(err)
	}
	return p, nil
}

// fault completes an error: inside a packet the end of the connection is unexpected, and an *Error after the CONNECT is
// answered in the version of the connection.
func (d *Decoder) fault(err error) error {
	if e, ok := errors.AsType[*Error](err); ok && d.version != 0 {
		e.Version = d.version
	}
	return err
}

// header reads the fixed header: the first byte and the Remaining Length.
func (d *Decoder) header() (head byte, n int, err error) {
	if head, err = d.readByte(); err != nil {
		return 0, 0, err // io.EOF is the orderly end
	}
	if err := d.checkHead(head); err != nil {
		return 0, 0, err
	}
	size := 1
	for shift := 0; ; shift += 7 {
		c, err := d.readByte()
		if err != nil {
			return 0, 0, inside(err)
		}
		size++
		n |= int(c&0x7F) << shift
		if c < 0x80 {
			break
		}
		if shift == 21 {
			return 0, 0, malformed("remaining length is longer than four bytes") // MQTT 5, 2.1.4
		}
	}
	limit := d.limits.Packet
	if d.version == 0 {
		limit = d.limits.Connect
	}
	if uint64(size)+uint64(n) > uint64(limit) {
		return 0, 0, d.tooLarge(n)
	}
	return head, n, nil
}

// DetailTLS is the Detail of the Error of a client that begins with TLS where MQTT without TLS is spoken.
const DetailTLS = "a TLS handshake where MQTT without TLS is spoken"

// checkHead refuses a packet by its first byte.
func (d *Decoder) checkHead(head byte) error {
	t, flags := head>>4, head&0x0F
	if d.version == 0 {
		switch {
		case head == 0x16:
			return protocolError(DetailTLS)
		case t != packets.Connect: // MQTT 5, 3.1.0-1
			return protocolError("first packet is not a connect")
		}
	}
	switch t {
	case packets.Publish:
		switch {
		case flags&0x06 == 0x06: // MQTT 5, 3.3.1-4
			return malformed("publish with QoS 3")
		case flags&0x0E == 0x08: // MQTT 5, 3.3.1-2
			return protocolError("publish with QoS 0 and DUP")
		}
		return nil
	case packets.Pubrel, packets.Subscribe, packets.Unsubscribe:
		if flags != 2 { // MQTT 5, 3.6.1-1, 3.8.1-1, 3.10.1-1
			return malformed("reserved flags of the fixed header")
		}
		return nil
	case packets.Reserved:
		return malformed("packet type 0")
	case packets.Connack, packets.Suback, packets.Unsuback, packets.Pingresp:
		return protocolError("a client sent a packet that only servers send")
	case packets.Connect:
		if d.version != 0 { // MQTT 5, 3.1.0-2
			return protocolError("second connect")
		}
	case packets.Auth:
		if d.version == Version311 { // MQTT 3.1.1, 2.2.1: type 15 is forbidden
			return malformed("packet type 15")
		}
	}
	if flags != 0 { // MQTT 5, 2.1.3-1
		return malformed("reserved flags of the fixed header")
	}
	return nil
}

// tooLarge is the error for a packet with n bytes after the fixed header. Of a CONNECT it reads enough to know in which
// version to refuse it.
func (d *Decoder) tooLarge(n int) error {
	e := &Error{Code: packets.ErrPacketTooLarge, Detail: "packet is larger than the limit"}
	if d.version == 0 {
		var start [len("\x00\x04MQTT") + 1]byte
		if n < len(start) {
			return e
		}
		if err := d.readFull(start[:]); err != nil {
			return inside(err)
		}
		if _, version, _, err := protocol(start[:]); err == nil {
			e.Version = version
		}
	}
	return e
}

// packet reads and decodes what follows the fixed header.
func (d *Decoder) packet(head byte, n int) (p Packet, err error) {
	t := head >> 4
	switch t {
	case packets.Pingreq:
		if n != 0 {
			return nil, malformed("ping with a body")
		}
		return pingreq, nil
	case packets.Puback, packets.Pubrec, packets.Pubrel, packets.Pubcomp:
		if n <= shortAck {
			b := d.ack[:n]
			if err := d.readFull(b); err != nil {
				return nil, inside(err)
			}
			a, fault := decodeShortAck(t, b, d.version)
			if fault != nil {
				return nil, fault
			}
			return a, nil
		}
	}
	body, err := d.body(n)
	if err != nil {
		return nil, inside(err)
	}
	if t == packets.Publish {
		m, fault := decodePublish(head, body, d.version)
		if fault != nil {
			return nil, fault
		}
		return m, nil
	}
	return d.decode(t, body)
}

func (d *Decoder) maxFilters() int {
	if d.limits.Filters == 0 {
		return maxRemaining
	}
	return int(d.limits.Filters)
}

var pingreq = new(Pingreq)

// decode decodes the packets that are not on the hot path. The library is asked for their properties, so a panic is
// caught: it is a fault of that packet and ends that connection only.
func (d *Decoder) decode(t byte, b []byte) (p Packet, err error) {
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, malformed(fmt.Sprintf("decoder: %v", r))
		}
	}()
	var fault *Error
	switch t {
	case packets.Connect:
		var c *Connect
		if c, fault = decodeConnect(b); fault == nil {
			d.version = c.Version
		}
		p = c
	case packets.Puback, packets.Pubrec, packets.Pubrel, packets.Pubcomp:
		p, fault = decodeAck(t, b, d.version)
	case packets.Subscribe:
		p, fault = decodeSubscribe(b, d.version, d.maxFilters())
	case packets.Unsubscribe:
		p, fault = decodeUnsubscribe(b, d.version, d.maxFilters())
	case packets.Disconnect:
		p, fault = decodeDisconnect(b, d.version)
	case packets.Auth:
		p, fault = decodeAuth(b)
	}
	if fault != nil {
		return nil, fault
	}
	return p, nil
}

// body reads n bytes into memory of their own.
func (d *Decoder) body(n int) ([]byte, error) {
	eager := eagerBody
	if d.version == 0 {
		eager = eagerConnect
	}
	b := make([]byte, min(n, eager))
	for have := 0; ; {
		if err := d.readFull(b[have:]); err != nil {
			return nil, err
		}
		if have = len(b); have == n {
			return b, nil
		}
		grown := make([]byte, min(n, 2*have))
		copy(grown, b)
		b = grown
	}
}

func (d *Decoder) readByte() (byte, error) {
	if d.start == d.end {
		if err := d.fill(); err != nil {
			return 0, err
		}
	}
	c := d.buffer()[d.start]
	d.start++
	return c, nil
}

func (d *Decoder) readFull(b []byte) error {
	for len(b) > 0 {
		if d.start == d.end {
			if len(b) >= bigBuffer {
				d.more = false
				_, err := io.ReadFull(d.r, b)
				return err
			}
			if err := d.fill(); err != nil {
				return err
			}
		}
		n := copy(b, d.buffer()[d.start:d.end])
		d.start += int32(n)
		b = b[n:]
	}
	return nil
}

func (d *Decoder) buffer() []byte {
	if d.big != nil {
		return d.big[:]
	}
	return d.small[:]
}

// fill reads once from the connection; nothing is buffered. The big buffer is only taken when the last read left
// something behind, and given back before the read that may wait: so an idle connection never holds one, unless what it
// sent ended just where a buffer ends.
func (d *Decoder) fill() error {
	switch {
	case d.more && d.big == nil:
		d.big = bigBuffers.Get().(*[bigBuffer]byte)
	case !d.more && d.big != nil:
		bigBuffers.Put(d.big)
		d.big = nil
	}
	b := d.buffer()
	for range maxEmptyRead {
		n, err := d.r.Read(b)
		if n > 0 {
			d.start, d.end = 0, int32(n)
			d.more = n == len(b)
			return nil // err comes again with the next read
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// inside turns the end of the connection inside a packet into what it is.
func inside(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

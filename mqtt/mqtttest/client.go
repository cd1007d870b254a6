package mqtttest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
)

// patience is how long a client waits for what must come. It is only used up by a test that fails.
const patience = 30 * time.Second

// Client is one end of a connection to a server, without any behaviour of its own: it sends what the test says, and reads
// only when the test asks. Every method ends the test when something else happens than it says.
type Client struct {
	Version byte // of the last CONNECT that was sent

	t    testing.TB
	conn net.Conn
	in   []byte   // received and not yet returned
	back [][]byte // packets that were put back, before in
	id   uint16   // last packet identifier taken by NextID
}

// Dial connects to a TCP listener.
func Dial(t testing.TB, addr net.Addr) *Client {
	t.Helper()
	conn, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	return NewClient(t, conn)
}

// NewClient speaks over conn, and closes it when the test ends.
func NewClient(t testing.TB, conn net.Conn) *Client {
	t.Cleanup(func() { _ = conn.Close() })
	return &Client{t: t, conn: conn, Version: 5}
}

// Close closes the connection without a DISCONNECT.
func (c *Client) Close() { _ = c.conn.Close() }

// Conn is the connection underneath.
func (c *Client) Conn() net.Conn { return c.conn }

// Send sends bytes, written as Bytes describes.
func (c *Client) Send(notation string) {
	c.t.Helper()
	c.SendBytes(Bytes(c.t, notation))
}

// SendBytes sends b. That the server has closed the connection is no fault here: the test finds out when it reads.
func (c *Client) SendBytes(b []byte) {
	c.t.Helper()
	_ = c.conn.SetWriteDeadline(time.Now().Add(patience))
	if _, err := c.conn.Write(b); errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("send: %v", err)
	}
}

// NextID returns a packet identifier that this client has not used for a while.
func (c *Client) NextID() uint16 {
	if c.id++; c.id == 0 {
		c.id = 1
	}
	return c.id
}

// Next returns the next packet.
func (c *Client) Next() packets.Packet {
	c.t.Helper()
	pk, err := c.read(patience)
	if err != nil {
		c.t.Fatalf("next packet: %v", err)
	}
	return pk
}

// TryNext returns the next packet, or the error of the connection, os.ErrDeadlineExceeded when nothing comes in time.
func (c *Client) TryNext(wait time.Duration) (packets.Packet, error) { return c.read(wait) }

// Expect returns the next packet, which must be of the type.
func (c *Client) Expect(kind byte) packets.Packet {
	c.t.Helper()
	pk, err := c.read(patience)
	if err != nil {
		c.t.Fatalf("waiting for %s: %v", packets.PacketNames[kind], err)
	}
	if pk.FixedHeader.Type != kind {
		c.t.Fatalf("got %s, want %s", describe(pk), packets.PacketNames[kind])
	}
	return pk
}

// ExpectBytes reads the next packet, which must be exactly these bytes.
func (c *Client) ExpectBytes(notation string) {
	c.t.Helper()
	want := Bytes(c.t, notation)
	got, err := c.readRaw(patience)
	if err != nil {
		c.t.Fatalf("waiting for %x: %v", want, err)
	}
	if !bytes.Equal(got, want) {
		c.t.Fatalf("got %x, want %x", got, want)
	}
}

// ExpectAck reads the next packet, which must be the acknowledgement. Of the reason codes that mean success any will do.
func (c *Client) ExpectAck(kind byte, id uint16, reason byte) {
	c.t.Helper()
	pk := c.Expect(kind)
	same := pk.ReasonCode == reason || reason == 0 && pk.ReasonCode < 0x80
	if pk.PacketID != id || !same {
		c.t.Fatalf("got %s, want identifier %d and reason 0x%02x", describe(pk), id, reason)
	}
}

// ExpectDisconnect reads a DISCONNECT with the reason and then the end of the connection. From a server of 3.1.1 only the
// end may come.
func (c *Client) ExpectDisconnect(reason byte) {
	c.t.Helper()
	if c.Version == 5 {
		if pk := c.Expect(packets.Disconnect); pk.ReasonCode != reason {
			c.t.Fatalf("got %s, want reason 0x%02x", describe(pk), reason)
		}
	}
	c.ExpectClosed()
}

// ExpectClosed reads the end of the connection.
func (c *Client) ExpectClosed() {
	c.t.Helper()
	raw, err := c.readRaw(patience)
	switch {
	case err == nil:
		c.t.Fatalf("got %x, want the end of the connection", raw)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.t.Fatal("the connection is still open")
	case err == io.ErrUnexpectedEOF:
		c.t.Fatalf("the connection ended inside a packet: %x", c.in)
	}
}

// ExpectNothing fails when something comes within d, or the connection ends. Where a later packet can serve as a barrier,
// expect that one instead.
func (c *Client) ExpectNothing(d time.Duration) {
	c.t.Helper()
	pk, err := c.read(d)
	if err == nil {
		c.t.Fatalf("got %s, want nothing", describe(pk))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("want nothing, not even the end: %v", err)
	}
}

// Ping sends a PINGREQ, and the next packet must be the PINGRESP: everything that was sent before has been looked at.
func (c *Client) Ping() {
	c.t.Helper()
	c.Send(`c000`)
	c.Expect(packets.Pingresp)
}

// expectAside reads the acknowledgement, past PUBLISH packets that come before it. They are kept for later.
func (c *Client) expectAside(kind byte, id uint16) {
	c.t.Helper()
	for {
		raw, err := c.readConn(patience)
		if err != nil {
			c.t.Fatalf("waiting for %s: %v", packets.PacketNames[kind], err)
		}
		if raw[0]>>4 == packets.Publish {
			c.back = append(c.back, raw)
			continue
		}
		pk, err := decode(raw, c.Version)
		if err != nil {
			c.t.Fatal(err)
		}
		if pk.FixedHeader.Type != kind || pk.PacketID != id || pk.ReasonCode >= 0x80 {
			c.t.Fatalf("got %s, want %s for %d", describe(pk), packets.PacketNames[kind], id)
		}
		return
	}
}

func (c *Client) read(wait time.Duration) (packets.Packet, error) {
	raw, err := c.readRaw(wait)
	if err != nil {
		return packets.Packet{}, err
	}
	return decode(raw, c.Version)
}

// readRaw returns the bytes of the next packet.
func (c *Client) readRaw(wait time.Duration) ([]byte, error) {
	if len(c.back) > 0 {
		raw := c.back[0]
		c.back = c.back[1:]
		return raw, nil
	}
	return c.readConn(wait)
}

func (c *Client) readConn(wait time.Duration) ([]byte, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(wait))
	for {
		if n := packetLen(c.in); n > 0 && n <= len(c.in) {
			raw := c.in[:n:n]
			c.in = c.in[n:]
			return raw, nil
		}
		var b [4096]byte
		n, err := c.conn.Read(b[:])
		c.in = append(c.in, b[:n]...)
		if n > 0 {
			continue
		}
		if err == io.EOF && len(c.in) > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
	}
}

// packetLen returns the length of the packet at the start of b, 0 while that is not known.
func packetLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	n, size := binary.Uvarint(b[1:])
	if size <= 0 {
		return 0
	}
	return 1 + size + int(n)
}

// decode reads a server's packet with the library.
func decode(raw []byte, version byte) (pk packets.Packet, err error) {
	pk.ProtocolVersion = version
	if err := pk.FixedHeader.Decode(raw[0]); err != nil {
		return pk, fmt.Errorf("%x: %w", raw, err)
	}
	n, size := binary.Uvarint(raw[1:])
	body := raw[1+size:]
	pk.FixedHeader.Remaining = int(n)
	switch pk.FixedHeader.Type {
	case packets.Connack:
		err = pk.ConnackDecode(body)
	case packets.Publish:
		err = pk.PublishDecode(body)
	case packets.Puback, packets.Pubrec, packets.Pubrel, packets.Pubcomp:
		err = pk.PubackDecode(body)
	case packets.Suback:
		err = pk.SubackDecode(body)
	case packets.Unsuback:
		err = pk.UnsubackDecode(body)
	case packets.Pingresp:
	case packets.Disconnect:
		if len(body) > 0 { // the library overlooks a reason code that stands alone
			pk.ReasonCode = body[0]
		}
		err = pk.DisconnectDecode(body)
	case packets.Auth:
		err = pk.AuthDecode(body)
	default:
		err = errors.New("a server does not send this")
	}
	if err != nil {
		return pk, fmt.Errorf("%x: %w", raw, err)
	}
	return pk, nil
}

func describe(pk packets.Packet) string {
	s := packets.PacketNames[pk.FixedHeader.Type]
	switch pk.FixedHeader.Type {
	case packets.Publish:
		return fmt.Sprintf("%s %q to %q, QoS %d, identifier %d, dup %t, retain %t",
			s, pk.Payload, pk.TopicName, pk.FixedHeader.Qos, pk.PacketID, pk.FixedHeader.Dup, pk.FixedHeader.Retain)
	case packets.Suback, packets.Unsuback:
		return fmt.Sprintf("%s for %d, reasons %x", s, pk.PacketID, pk.ReasonCodes)
	}
	return fmt.Sprintf("%s for %d, reason 0x%02x %s", s, pk.PacketID, pk.ReasonCode, pk.Properties.ReasonString)
}

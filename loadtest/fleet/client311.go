package fleet

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// client311 is a device that speaks MQTT 3.1.1. It is written by hand, because the library for that version sends new
// messages while it still repeats old ones, and then the order of a device is its own fault and not the broker's. It
// only publishes.
type client311 struct {
	fleet *Fleet
	id    string
	notes sessionNotes
	slots chan struct{}

	conn      *conn
	down      chan struct{}
	connected bool           // once
	workers   sync.WaitGroup // of the current connection

	mu      sync.Mutex
	flights map[uint16]*flight311
	serial  int    // of the latest message: the order in which they are repeated
	lastID  uint16 // packet identifier given last
}

// flight311 is a message of QoS 1 or 2 that is not settled.
type flight311 struct {
	flight
	serial   int
	packet   []byte // the PUBLISH, to be sent again
	released bool   // PUBREC has come: PUBREL is sent again instead
}

var _ client = (*client311)(nil)

func newClient311(f *Fleet, id string, notes sessionNotes) *client311 {
	return &client311{
		fleet: f, id: id, notes: notes, slots: make(chan struct{}, f.cfg.Window),
		down: never, flights: make(map[uint16]*flight311),
	}
}

// Packet types as they stand in the first byte, flags included (MQTT 3.1.1, 2.2).
const (
	connectByte    = 1 << 4
	connackByte    = 2 << 4
	publishByte    = 3 << 4
	pubackByte     = 4 << 4
	pubrecByte     = 5 << 4
	pubrelByte     = 6<<4 | 2
	pubcompByte    = 7 << 4
	pingreqByte    = 12 << 4
	pingrespByte   = 13 << 4
	disconnectByte = 14 << 4

	dupFlag = 8
)

// Slots implements client.
func (c *client311) Slots() chan struct{} { return c.slots }

// Down implements client.
func (c *client311) Down() <-chan struct{} { return c.down }

// InFlight implements client.
func (c *client311) InFlight() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.flights)
}

// Connect implements client.
func (c *client311) Connect(ctx context.Context) (present bool, err error) {
	if c.conn != nil {
		c.conn.Close()
		c.workers.Wait()
	}
	err = c.fleet.retry(ctx, c.id, func(ctx context.Context) error {
		present, err = c.connect(ctx, false)
		return err
	})
	return present, err
}

// connect tries once.
func (c *client311) connect(ctx context.Context, clean bool) (present bool, err error) {
	nc, err := dial(ctx, c.fleet.url)
	if err != nil {
		return false, err
	}
	conn := nc
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	b := []byte{connectByte, byte(12 + len(c.id)), 0, 4, 'M', 'Q', 'T', 'T', 4, 0, 0, keepAlive}
	if clean {
		b[9] = 2
	}
	b = binary.BigEndian.AppendUint16(b, uint16(len(c.id)))
	conn.Write(append(b, c.id...))
	r := bufio.NewReader(conn)
	kind, body, err := readPacket311(r)
	if err != nil || kind != connackByte || len(body) != 2 || body[1] != 0 {
		conn.Close()
		return false, cmp.Or(err, fmt.Errorf("packet %#x % x instead of a CONNACK of success", kind, body))
	}
	present = body[0]&1 != 0
	if clean {
		return present, conn.Close()
	}
	c.begin(conn, present)
	c.workers.Go(func() { c.receive(r) })
	c.workers.Go(c.ping)
	c.fleet.connected(c.connected, present)
	c.connected = true
	return present, nil
}

// begin repeats what is in flight, in the order in which it was first sent. If the broker has lost the session, what was
// in flight is lost with it, as for MQTT 5: see deviceSession.
func (c *client311) begin(conn *conn, present bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn, c.down = conn, make(chan struct{})
	if !present {
		for id := range c.flights {
			delete(c.flights, id)
			<-c.slots
		}
	}
	var ids []uint16
	for id := range c.flights {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b uint16) int { return cmp.Compare(c.flights[a].serial, c.flights[b].serial) })
	for _, id := range ids {
		if f := c.flights[id]; f.released {
			conn.Write(ack311(pubrelByte, id))
		} else {
			f.packet[0] |= dupFlag
			conn.Write(f.packet)
		}
	}
}

// Publish implements client.
func (c *client311) Publish(_ context.Context, f flight, qos uint8, topic string, payload []byte) (taken bool, err error) {
	c.conn.awaitRoom()
	c.mu.Lock()
	defer c.mu.Unlock()
	var id uint16
	if qos > 0 {
		id = c.freeIDLocked()
	}
	p := publish311(qos, id, topic, payload)
	if qos > 0 {
		c.serial++
		c.flights[id] = &flight311{flight: f, serial: c.serial, packet: p}
		c.notes.sent(f)
	}
	c.conn.Write(p) // a failure closes Down, and the message is repeated on the next connection
	return true, nil
}

// freeIDLocked is the next packet identifier that is not in use; the window is much smaller than their number.
func (c *client311) freeIDLocked() uint16 {
	for {
		c.lastID++
		if _, used := c.flights[c.lastID]; !used && c.lastID != 0 {
			return c.lastID
		}
	}
}

// receive settles what the broker acknowledges, until the connection ends.
func (c *client311) receive(r *bufio.Reader) {
	defer close(c.down)
	defer c.conn.Close()
	for {
		kind, body, err := readPacket311(r)
		if err != nil {
			return
		}
		if kind == pingrespByte {
			continue
		}
		if len(body) != 2 {
			return
		}
		c.acknowledged(kind, binary.BigEndian.Uint16(body))
	}
}

// acknowledged acts on PUBACK, PUBREC and PUBCOMP. MQTT 3.1.1 knows no refusal.
func (c *client311) acknowledged(kind byte, id uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.flights[id]
	if f != nil && !f.told {
		f.told = true
		c.notes.settled(f.flight, 0)
	}
	if kind == pubrecByte {
		if f != nil {
			f.released, f.packet = true, nil
		}
		c.conn.Write(ack311(pubrelByte, id))
		return
	}
	if f != nil {
		delete(c.flights, id)
		<-c.slots
	}
}

// ping keeps the connection alive.
func (c *client311) ping() {
	t := time.NewTicker(keepAlive * time.Second / 2)
	defer t.Stop()
	for {
		select {
		case <-c.down:
			return
		case <-t.C:
			c.conn.Write([]byte{pingreqByte, 0})
		}
	}
}

// Disconnect implements client. A session of MQTT 3.1.1 is dropped by connecting once more with CleanSession.
func (c *client311) Disconnect(forget bool) {
	if c.conn == nil {
		return
	}
	c.conn.Write([]byte{disconnectByte, 0})
	c.conn.Close()
	c.workers.Wait()
	if forget {
		ctx, cancel := context.WithTimeout(context.Background(), closeWait)
		defer cancel()
		c.connect(ctx, true) // a courtesy
	}
}

// publish311 encodes a PUBLISH.
func publish311(qos uint8, id uint16, topic string, payload []byte) []byte {
	n := 2 + len(topic) + len(payload)
	if qos > 0 {
		n += 2
	}
	b := make([]byte, 0, n+5)
	b = append(b, publishByte|qos<<1)
	b = binary.AppendUvarint(b, uint64(n)) // the variable byte integer of MQTT has the same form
	b = binary.BigEndian.AppendUint16(b, uint16(len(topic)))
	b = append(b, topic...)
	if qos > 0 {
		b = binary.BigEndian.AppendUint16(b, id)
	}
	return append(b, payload...)
}

func ack311(kind byte, id uint16) []byte { return []byte{kind, 2, byte(id >> 8), byte(id)} }

// readPacket311 reads one packet of those that a broker sends to a client without subscriptions.
func readPacket311(r *bufio.Reader) (kind byte, body []byte, err error) {
	if kind, err = r.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, nil, err
	}
	if n > 2 {
		return 0, nil, errors.New("a packet that was not asked for")
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return kind, body, err
}

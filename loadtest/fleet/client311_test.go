package fleet

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// broker311 takes the publishes of one MQTT 3.1.1 client and cuts its connection now and then, before or after an
// acknowledgement. It has a session, as a good broker has.
type broker311 struct {
	t    *testing.T
	ln   net.Listener
	wg   sync.WaitGroup
	cuts map[int]bool // numbers of packets after which the connection is cut

	mu      sync.Mutex
	packets int
	known   bool
	open    map[uint16]bool // QoS 2 identifiers
	log     []string        // PUBLISH packets in order: sequence number, DUP
	done    map[int]int     // how often a message was accepted
}

func newBroker311(t *testing.T, cuts ...int) *broker311 {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &broker311{t: t, ln: ln, cuts: make(map[int]bool), open: make(map[uint16]bool), done: make(map[int]int)}
	for _, n := range cuts {
		b.cuts[n] = true
	}
	b.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b.serve(c) // one client, one connection at a time
			c.Close()
		}
	})
	t.Cleanup(func() {
		ln.Close()
		b.wg.Wait()
	})
	return b
}

func (b *broker311) serve(c net.Conn) {
	r := bufio.NewReader(c)
	for {
		kind, err := r.ReadByte()
		if err != nil {
			return
		}
		n, shift := 0, 0
		for {
			d, err := r.ReadByte()
			if err != nil {
				return
			}
			n |= int(d&127) << shift
			if shift += 7; d < 128 {
				break
			}
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(r, body); err != nil || !b.handle(c, kind, body) {
			return
		}
	}
}

func (b *broker311) handle(c net.Conn, kind byte, body []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.packets++; b.cuts[b.packets] {
		return false
	}
	switch kind >> 4 {
	case connectByte >> 4:
		if !bytes.HasPrefix(body, []byte("\x00\x04MQTT\x04")) {
			b.t.Errorf("CONNECT % x", body)
		}
		present := byte(0)
		if b.known && body[7]&2 == 0 {
			present = 1
		}
		b.known = body[7]&2 == 0
		c.Write([]byte{connackByte, 2, present, 0})
	case publishByte >> 4:
		qos := kind >> 1 & 3
		topic := 2 + int(body[0])<<8 + int(body[1])
		var id uint16
		payload := body[topic:]
		if qos > 0 {
			id = uint16(payload[0])<<8 | uint16(payload[1])
			payload = payload[2:]
		}
		m, err := parsePayload(payload, string(payload[8:14]))
		if err != nil {
			b.t.Errorf("payload: %v", err)
		}
		b.log = append(b.log, fmt.Sprint(m.seq, " ", kind&dupFlag != 0))
		if !b.open[id] || qos < 2 {
			b.done[m.seq]++
		}
		switch qos {
		case 1:
			c.Write(ack311(pubackByte, id))
		case 2:
			b.open[id] = true
			c.Write(ack311(pubrecByte, id))
		}
	case pubrelByte >> 4:
		id := uint16(body[0])<<8 | uint16(body[1])
		delete(b.open, id)
		c.Write(ack311(pubcompByte, id))
	case disconnectByte >> 4:
		return false
	}
	return true
}

func TestMQTT311RepeatsInOrderWhatIsInFlight(t *testing.T) {
	b := newBroker311(t, 20, 21, 90, 91, 95, 200)
	r := run(t, Config{
		Broker: b.ln.Addr().String(), Protocol: MQTT311, Devices: 1, Count: 150, Mix: Mix{1, 2, 7}, Payload: 150, Window: 10,
		Drain: 30 * time.Second, Settle: 100 * time.Millisecond,
	})
	v := r.Verdict
	if !v.Reconciled || v.Acknowledged.Total() != v.Sent[1]+v.Sent[2] || r.Reconnects < 4 || r.SessionsLost != 0 {
		t.Errorf("%d reconnects, %d sessions lost: %s", r.Reconnects, r.SessionsLost, r.Text())
	}
	for seq := range 150 {
		q := (Mix{1, 2, 7}).QoS(0, seq)
		if n := b.done[seq]; q == 2 && n != 1 || q == 1 && n < 1 {
			t.Errorf("message %d (QoS %d) was accepted %d times", seq, q, n)
		}
	}
	if len(b.open) != 0 {
		t.Errorf("%d QoS 2 exchanges are not over", len(b.open))
	}
	// First appearances are in order, and a repetition says so.
	next := 0
	for _, l := range b.log {
		var seq int
		var dup bool
		fmt.Sscan(l, &seq, &dup)
		for missed := next; missed < seq; missed++ {
			if (Mix{1, 2, 7}).QoS(0, missed) > 0 {
				t.Errorf("message %d came before %d", seq, missed)
			}
		}
		if seq < next && !dup {
			t.Errorf("message %d is repeated without DUP", seq)
		}
		next = max(next, seq+1)
	}
}

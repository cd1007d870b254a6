package proof

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// machine is a device with a persistent session that publishes numbered messages, one after the other: even ones at QoS 1, odd ones at
// QoS 2, every twentieth to be retained. Cut off in the middle of one, it connects again and goes on with that.
type machine struct {
	id, addr string
	quit     chan struct{}
	wg       sync.WaitGroup
	acked    atomic.Int64 // so many messages are acknowledged in full: the next one may be

	conn     net.Conn
	r        *bufio.Reader
	sent     bool // message acked was sent before
	released bool // and PUBREL is next for it
}

const retainEvery = 20

// machines start so many, named with a prefix.
func machines(t testing.TB, g *gateway, prefix string, n int) (all []*machine) {
	t.Helper()
	for i := range n {
		m := &machine{id: fmt.Sprintf("%s%d", prefix, i), addr: g.mqtt, quit: make(chan struct{})}
		m.wg.Go(m.run)
		all = append(all, m)
		t.Cleanup(m.stop)
	}
	return all
}

func (m *machine) topic() string { return "drill/" + m.id }

func (m *machine) payload(n int) string { return fmt.Sprintf("%s/%d", m.id, n) }

// numberOf is a payload's machine and number.
func numberOf(payload string) (id string, n int) {
	id, num, _ := strings.Cut(payload, "/")
	_, _ = fmt.Sscan(num, &n)
	return id, n
}

func (m *machine) stop() {
	select {
	case <-m.quit:
	default:
		close(m.quit)
	}
	m.wg.Wait()
}

func (m *machine) run() {
	for {
		err := m.connect()
		for err == nil {
			select {
			case <-m.quit:
				m.conn.Close()
				return
			case <-time.After(2 * time.Millisecond): // the rate
			}
			err = m.publish()
		}
		if m.conn != nil {
			m.conn.Close()
		}
		select {
		case <-m.quit:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (m *machine) connect() (err error) {
	if m.conn, err = net.DialTimeout("tcp", m.addr, 5*time.Second); err != nil {
		m.conn = nil
		return err
	}
	m.r = bufio.NewReader(m.conn)
	return m.ask(packet(0x10, text(append(text(nil, "MQTT"), 4, 0, 0, 0), m.id)), 0x20)
}

// ask writes a packet and waits for the one that answers it.
func (m *machine) ask(out []byte, want byte) error {
	_ = m.conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := m.conn.Write(out); err != nil {
		return err
	}
	head, body, err := readPacket(m.r)
	if err == nil && (head != want || want == 0x20 && body[1] != 0) {
		err = fmt.Errorf("answer 0x%02x %x, want 0x%02x", head, body, want)
	}
	return err
}

func (m *machine) publish() error {
	n := int(m.acked.Load())
	id := []byte{0, byte(1 + n%2)} // of one in flight no other needs to be told
	qos := byte(1 + n%2)
	if !m.released {
		head := 0x30 | qos<<1
		if m.sent {
			head |= 8
		}
		if n%retainEvery == 0 {
			head |= 1
		}
		m.sent = true
		answer := byte(0x40)
		if qos == 2 {
			answer = 0x50
		}
		if err := m.ask(packet(head, append(append(text(nil, m.topic()), id...), m.payload(n)...)), answer); err != nil {
			return err
		}
	}
	if qos == 2 {
		m.released = true
		if err := m.ask(packet(0x62, id), 0x70); err != nil {
			return err
		}
	}
	m.sent, m.released = false, false
	m.acked.Add(1)
	return nil
}

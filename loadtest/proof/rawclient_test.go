package proof

import (
	"bufio"
	wire "encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// rawSubscriber is an MQTT 3.1.1 client with a persistent session that counts what comes, and outlives the gateway: it connects again
// whenever it is cut off, and keeps its half of QoS 2.
type rawSubscriber struct {
	t      testing.TB
	id     string
	qos    byte
	filter string
	addr   string
	quit   chan struct{}
	wg     sync.WaitGroup

	mu       sync.Mutex
	conn     net.Conn
	ready    bool // subscribed once
	open     map[uint16]bool
	payloads []string // in the order of arrival; QoS 2 without what has come before
	topics   map[string]bool
}

func subscribeRaw(t testing.TB, g *gateway, id, filter string, qos byte) *rawSubscriber {
	t.Helper()
	s := &rawSubscriber{t: t, id: id, qos: qos, filter: filter, open: make(map[uint16]bool), topics: make(map[string]bool)}
	s.connect(g)
	t.Cleanup(s.stop)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s.mu.Lock()
		ready := s.ready
		s.mu.Unlock()
		if ready {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not subscribed after 30 s", id)
		}
	}
}

// connect begins the session, or goes on with it after stop, on another gateway too.
func (s *rawSubscriber) connect(g *gateway) {
	s.addr, s.quit = g.mqtt, make(chan struct{})
	s.wg.Go(func() {
		for {
			_ = s.session(s.filter)
			select {
			case <-s.quit:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}

func (s *rawSubscriber) stop() {
	s.mu.Lock()
	select {
	case <-s.quit:
	default:
		close(s.quit)
	}
	if s.conn != nil {
		s.conn.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func text(b []byte, s string) []byte {
	return append(wire.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func packet(head byte, body []byte) []byte {
	return append(wire.AppendUvarint([]byte{head}, uint64(len(body))), body...)
}

// session is one connection.
func (s *rawSubscriber) session(filter string) error {
	conn, err := net.DialTimeout("tcp", s.addr, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	s.mu.Lock()
	s.conn = conn
	ready := s.ready
	s.mu.Unlock()
	select {
	case <-s.quit:
		return nil
	default:
	}
	connect := append(text(nil, "MQTT"), 4, 0, 0, 0) // keeps its session, no keep-alive
	if _, err := conn.Write(packet(0x10, text(connect, s.id))); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	for {
		head, body, err := readPacket(r)
		if err != nil {
			return err
		}
		var answer []byte
		switch head >> 4 {
		case 2:
			if body[1] != 0 {
				return fmt.Errorf("refused: %d", body[1])
			}
			if !ready {
				answer = packet(0x82, append(text([]byte{0, 1}, filter), s.qos))
			}
		case 9:
			s.mu.Lock()
			s.ready = true
			s.mu.Unlock()
		case 3:
			answer = s.publish(head, body)
		case 6: // PUBREL
			s.mu.Lock()
			delete(s.open, wire.BigEndian.Uint16(body))
			s.mu.Unlock()
			answer = packet(0x70, body[:2])
		}
		if len(answer) > 0 {
			if _, err := conn.Write(answer); err != nil {
				return err
			}
		}
	}
}

func (s *rawSubscriber) publish(head byte, body []byte) []byte {
	n := int(wire.BigEndian.Uint16(body))
	topic, rest := string(body[2:2+n]), body[2+n:]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topics[topic] = true
	switch head >> 1 & 3 {
	case 1:
		s.payloads = append(s.payloads, string(rest[2:]))
		return packet(0x40, rest[:2])
	case 2:
		if id := wire.BigEndian.Uint16(rest); !s.open[id] {
			s.open[id] = true
			s.payloads = append(s.payloads, string(rest[2:]))
		}
		return packet(0x50, rest[:2])
	}
	s.payloads = append(s.payloads, string(rest))
	return nil
}

// publishRaw publishes at QoS 1 and waits for each acknowledgement.
func publishRaw(t testing.TB, g *gateway, topic string, payloads ...string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", g.mqtt, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	r := bufio.NewReader(conn)
	out := packet(0x10, text(append(text(nil, "MQTT"), 4, 2, 0, 0), "device"))
	for i := -1; i < len(payloads); i++ {
		if i >= 0 {
			out = packet(0x32, append(append(text(nil, topic), 0, 1), payloads[i]...))
		}
		if _, err := conn.Write(out); err != nil {
			t.Fatal(err)
		}
		if head, _, err := readPacket(r); err != nil || head != 0x20 && head != 0x40 {
			t.Fatalf("publish: answer 0x%02x, %v", head, err)
		}
	}
}

func readPacket(r *bufio.Reader) (head byte, body []byte, err error) {
	if head, err = r.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := wire.ReadUvarint(r)
	if err != nil {
		return 0, nil, err
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return head, body, err
}

func (s *rawSubscriber) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.payloads...)
}

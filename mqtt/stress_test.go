package mqtt_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// peer is an MQTT 5 client that keeps its session over any number of connections: it sends again what was not
// acknowledged, in order, and remembers the QoS 2 identifiers that it has received. It checks what it gets.
type peer struct {
	id   string
	addr func() net.Addr
	rnd  *rand.Rand
	slow time.Duration // longest pause before an acknowledgement

	mu      sync.Mutex
	conn    net.Conn
	up      bool // CONNACK has come
	err     error
	nextID  uint16
	out     []outMsg // not completed, in order
	in      map[uint16]bool
	got     map[int][]int // publisher → numbers in order of arrival
	seen    map[int]map[int]int
	resume  bool
	changed chan struct{}

	subscribed bool // SUBACK has come
}

type outMsg struct {
	id       uint16
	qos      byte
	topic    string
	payload  string
	released bool
}

func newPeer(id string, addr func() net.Addr, seed uint64) *peer {
	return &peer{
		id: id, addr: addr, rnd: rand.New(rand.NewPCG(seed, 7)), in: make(map[uint16]bool), got: make(map[int][]int),
		seen: make(map[int]map[int]int), changed: make(chan struct{}, 1),
	}
}

func packet(head byte, body []byte) []byte {
	b := []byte{head}
	for n := len(body); ; {
		c := byte(n & 0x7f)
		if n >>= 7; n > 0 {
			b = append(b, c|0x80)
			continue
		}
		return append(append(b, c), body...)
	}
}

func str(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func ackPacket(head byte, id uint16) []byte {
	return packet(head, binary.BigEndian.AppendUint16(nil, id))
}

// connect opens a connection, whatever becomes of the one before, and starts its reader.
func (p *peer) connect() error {
	nc, err := net.Dial("tcp", p.addr().String())
	if err != nil {
		return err
	}
	body := str(nil, "MQTT")
	flags := byte(0)
	if !p.resume {
		flags = 2
	}
	body = append(body, 5, flags, 0, 0, 5, 0x11, 0, 0, 0x0e, 0x10)
	body = str(body, p.id)
	p.mu.Lock()
	old := p.conn
	p.conn, p.up = nc, false
	p.mu.Unlock()
	if _, err := nc.Write(packet(0x10, body)); err != nil {
		return err
	}
	ready := make(chan error, 1)
	go p.read(nc, ready)
	select {
	case err = <-ready:
	case <-time.After(20 * time.Second):
		err = fmt.Errorf("%s: no connack", p.id)
	}
	if old != nil {
		old.Close() // after the new one has taken over
	}
	return err
}

func (p *peer) signal() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *peer) read(nc net.Conn, ready chan error) {
	r := bufio.NewReader(nc)
	defer nc.Close()
	for {
		head, err := r.ReadByte()
		var n uint64
		if err == nil {
			n, err = binary.ReadUvarint(r)
		}
		body := make([]byte, n)
		if err == nil {
			_, err = io.ReadFull(r, body)
		}
		if err != nil {
			p.mu.Lock()
			if p.conn == nc {
				p.up = false
			}
			p.mu.Unlock()
			p.signal()
			select {
			case ready <- err:
			default:
			}
			return
		}
		if head>>4 == 3 && p.slow > 0 && rand.IntN(8) == 0 {
			time.Sleep(time.Duration(rand.Int64N(int64(p.slow))))
		}
		p.mu.Lock()
		if p.conn == nc {
			err = p.handleLocked(nc, head, body)
		}
		if err != nil && p.err == nil {
			p.err = err
		}
		p.mu.Unlock()
		if head>>4 == 2 {
			ready <- nil
		}
		p.signal()
	}
}

func (p *peer) handleLocked(nc net.Conn, head byte, b []byte) error {
	switch head >> 4 {
	case 2:
		if b[1] != 0 {
			return fmt.Errorf("%s: connack 0x%02x", p.id, b[1])
		}
		if p.resume && b[0]&1 == 0 {
			return fmt.Errorf("%s: session lost", p.id)
		}
		p.up, p.resume = true, true
		for _, m := range p.out {
			nc.Write(m.encode(true))
		}
	case 3:
		return p.deliveredLocked(nc, head, b)
	case 4: // PUBACK
		p.completeLocked(binary.BigEndian.Uint16(b))
	case 5: // PUBREC
		id := binary.BigEndian.Uint16(b)
		for i := range p.out {
			if p.out[i].id == id && p.out[i].qos == 2 {
				p.out[i].released = true
			}
		}
		nc.Write(ackPacket(0x62, id))
	case 6: // PUBREL
		id := binary.BigEndian.Uint16(b)
		delete(p.in, id)
		nc.Write(ackPacket(0x70, id))
	case 9: // SUBACK
		p.subscribed = true
	case 7: // PUBCOMP
		p.completeLocked(binary.BigEndian.Uint16(b))
	case 14:
		if len(b) > 0 && b[0] != 0x8e && b[0] != 0x8b {
			return fmt.Errorf("%s: disconnect 0x%02x", p.id, b[0])
		}
	}
	return nil
}

func (m outMsg) encode(dup bool) []byte {
	if m.released {
		return ackPacket(0x62, m.id)
	}
	head := 0x30 | m.qos<<1
	if dup {
		head |= 8
	}
	body := str(nil, m.topic)
	body = binary.BigEndian.AppendUint16(body, m.id)
	return packet(head, append(append(body, 0), m.payload...))
}

func (p *peer) completeLocked(id uint16) {
	for i := range p.out {
		if p.out[i].id == id {
			p.out = slices.Delete(p.out, i, i+1)
			return
		}
	}
}

func (p *peer) deliveredLocked(nc net.Conn, head byte, b []byte) error {
	qos := head >> 1 & 3
	n := int(binary.BigEndian.Uint16(b))
	b = b[2+n:]
	var id uint16
	if qos > 0 {
		id, b = binary.BigEndian.Uint16(b), b[2:]
	}
	b = b[1+int(b[0]):]
	var from, num int
	if _, err := fmt.Sscanf(string(b), "%d:%d", &from, &num); err != nil {
		return fmt.Errorf("payload %q: %w", b, err)
	}
	switch qos {
	case 1:
		nc.Write(ackPacket(0x40, id))
	case 2:
		nc.Write(ackPacket(0x50, id))
		if p.in[id] {
			return nil // a repetition
		}
		p.in[id] = true
	}
	if p.seen[from] == nil {
		p.seen[from] = make(map[int]int)
	}
	p.seen[from][num]++
	if p.seen[from][num] == 1 {
		p.got[from] = append(p.got[from], num)
	}
	return nil
}

// publish sends a message when there is room for it in the window.
func (p *peer) publish(topic, payload string, qos byte, window int) {
	for {
		p.mu.Lock()
		if len(p.out) < window {
			for used := true; used; {
				p.nextID++
				used = p.nextID == 0 || slices.ContainsFunc(p.out, func(m outMsg) bool { return m.id == p.nextID })
			}
			m := outMsg{id: p.nextID, qos: qos, topic: topic, payload: payload}
			p.out = append(p.out, m)
			if p.up {
				p.conn.Write(m.encode(false))
			}
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		p.heal()
		<-p.changed
	}
}

// heal connects again when the connection is down.
func (p *peer) heal() {
	p.mu.Lock()
	up := p.up
	p.mu.Unlock()
	for tries := 0; !up && tries < 200; tries++ {
		if p.connect() == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *peer) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		p.conn.Close()
		p.up = false
	}
}

// subscribe returns when the server has taken it: what is published from then on comes.
func (p *peer) subscribe(filter string, qos byte) error {
	body := append([]byte{0, 1, 0}, str(nil, filter)...)
	p.mu.Lock()
	p.conn.Write(packet(0x82, append(body, qos)))
	p.mu.Unlock()
	for late := time.After(30 * time.Second); ; {
		p.mu.Lock()
		done := p.subscribed
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-p.changed:
		case <-late:
			return fmt.Errorf("%s: no suback", p.id)
		}
	}
}

// missing says what is not there yet of total messages of each publisher.
func (p *peer) missing(publishers, total int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err.Error()
	}
	for i := range publishers {
		if n := len(p.got[i]); n < total {
			for j := range total {
				if p.seen[i][j] == 0 {
					return fmt.Sprintf("%s has %d of %d of publisher %d, first missing %d", p.id, n, total, i, j)
				}
			}
		}
	}
	return ""
}

// check proves order and that no QoS 2 message came twice.
func (p *peer) check(t *testing.T, publishers int, qos func(n int) byte) {
	t.Helper()
	for i := range publishers {
		if !slices.IsSorted(p.got[i]) {
			for j := 1; j < len(p.got[i]); j++ {
				if p.got[i][j] < p.got[i][j-1] {
					t.Errorf("%s: publisher %d: %d came after %d", p.id, i, p.got[i][j], p.got[i][j-1])
					break
				}
			}
		}
		for n, times := range p.seen[i] {
			if times > 1 && qos(n) == 2 {
				t.Errorf("%s: publisher %d: QoS 2 message %d came %d times", p.id, i, n, times)
			}
		}
	}
}

// run publishes numbered messages from several publishers to several subscribers with sessions, while connections of all
// of them break and are taken over, and disturb does what it likes. Nothing may be lost, nothing of QoS 2 doubled, and
// order is kept.
func numbered(t *testing.T, addr func() net.Addr, publishers, subscribers, total int, disturb func(n int)) {
	t.Helper()
	const window = 40
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	qos := func(n int) byte { return byte(1 + n%2) }

	var subs []*peer
	for i := range subscribers {
		s := newPeer(fmt.Sprint("sub", i), addr, seed+uint64(i))
		if i == 0 {
			s.slow = 300 * time.Microsecond
		}
		if err := s.connect(); err != nil {
			t.Fatal(err)
		}
		if err := s.subscribe("s/#", 2); err != nil {
			t.Fatal(err)
		}
		subs = append(subs, s)
	}
	stop := make(chan struct{})
	var wg, breakers sync.WaitGroup
	for _, s := range subs {
		breakers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(20+s.rnd.IntN(150)) * time.Millisecond):
				}
				if s.rnd.IntN(2) == 0 {
					s.drop()
				}
				if err := s.connect(); err != nil { // a take-over when it was not dropped
					s.heal()
				}
			}
		})
	}
	for i := range publishers {
		wg.Go(func() {
			p := newPeer(fmt.Sprint("pub", i), addr, seed+100+uint64(i))
			p.heal()
			for n := range total {
				p.publish(fmt.Sprint("s/", i), fmt.Sprintf("%d:%d", i, n), qos(n), window)
				if p.rnd.IntN(300) == 0 {
					if p.rnd.IntN(2) == 0 {
						p.drop()
					}
					p.connect()
				}
				if i == 0 && disturb != nil {
					disturb(n)
				}
			}
			for {
				p.mu.Lock()
				n, err := len(p.out), p.err
				p.mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				if n == 0 || err != nil {
					p.drop()
					return
				}
				p.heal()
				select {
				case <-p.changed:
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	breakers.Wait()
	deadline := time.Now().Add(60 * time.Second)
	for _, s := range subs {
		for s.missing(publishers, total) != "" && time.Now().Before(deadline) {
			s.heal()
			select {
			case <-s.changed:
			case <-time.After(100 * time.Millisecond):
			}
		}
		if m := s.missing(publishers, total); m != "" {
			t.Error(m)
		}
		s.drop()
	}
	time.Sleep(10 * time.Millisecond)
	for _, s := range subs {
		s.mu.Lock()
		s.check(t, publishers, qos)
		s.mu.Unlock()
	}
}

// long returns the first number, or the second when FOREBAY_LONG is set: for make race and soak.
func long(short, long int) int {
	if os.Getenv("FOREBAY_LONG") != "" {
		return long
	}
	return short
}

func TestNumberedMessagesSurviveBrokenConnections(t *testing.T) {
	s := start(t)
	numbered(t, func() net.Addr { return s.tcp }, 4, 4, long(4000, 20000), nil)
}

func TestNumberedMessagesSurviveRestarts(t *testing.T) {
	s := start(t)
	var mu sync.Mutex
	numbered(t, func() net.Addr { mu.Lock(); defer mu.Unlock(); return s.tcp }, 3, 3, long(4000, 20000), func(n int) {
		if n%1000 == 999 {
			mu.Lock()
			defer mu.Unlock()
			s.restart(t)
		}
	})
}

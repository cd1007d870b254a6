package mqtt_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// rawConn is a connection that costs the load generator little.
type rawConn struct {
	net.Conn
	r *bufio.Reader
}

func rawDial(tb testing.TB, addr net.Addr, id string, expiry uint32, filter string, qos byte) *rawConn {
	tb.Helper()
	nc, err := net.Dial("tcp", addr.String())
	if err != nil {
		tb.Fatal(err)
	}
	c := &rawConn{nc, bufio.NewReaderSize(nc, 512)}
	body := append(str(nil, "MQTT"), 5, 2, 0, 0, 5, 0x11)
	body = binary.BigEndian.AppendUint32(body, expiry)
	nc.Write(packet(0x10, str(body, id)))
	c.expect(tb, 2)
	if filter != "" {
		nc.Write(packet(0x82, append(append([]byte{0, 1, 0}, str(nil, filter)...), qos)))
		c.expect(tb, 9)
	}
	return c
}

func (c *rawConn) expect(tb testing.TB, kind byte) {
	tb.Helper()
	head, _, err := c.next()
	if err != nil || head>>4 != kind {
		tb.Fatalf("got packet 0x%02x, error %v, want type %d", head, err, kind)
	}
}

func (c *rawConn) next() (head byte, body []byte, err error) {
	if head, err = c.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := binary.ReadUvarint(c.r)
	if err != nil {
		return 0, nil, err
	}
	body = make([]byte, n)
	_, err = io.ReadFull(c.r, body)
	return head, body, err
}

// BenchmarkDurable measures acknowledged publishes: 50 publishers, 200 bytes.
func BenchmarkDurable(b *testing.B) {
	for _, qos := range []byte{1, 2} {
		for _, window := range []int{1, 100} {
			for _, subs := range []int{0, 5} {
				b.Run(fmt.Sprintf("qos=%d/window=%d/subs=%d", qos, window, subs), func(b *testing.B) {
					benchDurable(b, qos, window, subs)
				})
			}
		}
	}
}

func benchDurable(b *testing.B, qos byte, window, subs int) {
	c := startChild(b)
	var delivered atomic.Int64
	for i := range subs {
		s := rawDial(b, c.address(), fmt.Sprint("sub", i), 3600, "#", qos)
		defer s.Close()
		go s.absorb(&delivered)
	}
	const publishers = 50
	left := atomic.Int64{}
	left.Store(int64(b.N))
	b.ResetTimer()
	began := time.Now()
	var wg sync.WaitGroup
	for i := range publishers {
		wg.Go(func() {
			p := rawDial(b, c.address(), fmt.Sprint("pub", i), 0, "", 0)
			defer p.Close()
			p.pump(qos, window, fmt.Sprint("bench/", i), &left)
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "msg/s")
	for deadline := time.Now().Add(20 * time.Second); subs > 0 && delivered.Load() < int64(subs*b.N); {
		if time.Now().After(deadline) {
			b.Errorf("%d of %d delivered", delivered.Load(), subs*b.N)
			break
		}
		time.Sleep(time.Millisecond)
	}
	if subs > 0 {
		b.ReportMetric(float64(delivered.Load())/time.Since(began).Seconds(), "deliveries/s")
	}
}

// absorb acknowledges deliveries.
func (c *rawConn) absorb(n *atomic.Int64) {
	var out []byte
	c.r = bufio.NewReaderSize(c.Conn, 64<<10)
	for {
		head, body, err := c.next()
		if err != nil {
			return
		}
		switch head >> 4 {
		case 3:
			at := 2 + int(binary.BigEndian.Uint16(body))
			if qos := head >> 1 & 3; qos > 0 {
				out = append(out, 0x30+qos<<4, 2, body[at], body[at+1])
			}
			n.Add(1)
		case 6:
			out = append(out, 0x70, 2, body[0], body[1])
		}
		if c.r.Buffered() == 0 && len(out) > 0 {
			c.Write(out)
			out = out[:0]
		}
	}
}

// pump publishes with window messages in flight.
func (c *rawConn) pump(qos byte, window int, topic string, left *atomic.Int64) {
	c.r = bufio.NewReaderSize(c.Conn, 16<<10)
	payload := strings.Repeat("x", 200)
	var out []byte
	id := uint16(0)
	flying := 0
	for {
		for flying < window && left.Add(-1) >= 0 {
			id++
			if id == 0 {
				id = 1
			}
			body := append(binary.BigEndian.AppendUint16(str(nil, topic), id), 0)
			out = append(out, packet(0x30|qos<<1, append(body, payload...))...)
			flying++
		}
		if len(out) > 0 {
			c.Write(out)
			out = out[:0]
		}
		if flying == 0 {
			return
		}
		for {
			head, body, err := c.next()
			if err != nil {
				return
			}
			switch head >> 4 {
			case 4, 7:
				flying--
			case 5:
				out = append(out, 0x62, 2, body[0], body[1])
			}
			if c.r.Buffered() == 0 {
				break
			}
		}
	}
}

// BenchmarkIdle reports the resident memory of an idle connection.
func BenchmarkIdle(b *testing.B) {
	for _, filter := range []string{"", "cmd/%d/#"} {
		b.Run(fmt.Sprintf("filter=%t", filter != ""), func(b *testing.B) {
			const n = 5000
			c := startChild(b)
			warm := rawDial(b, c.address(), "warm", 0, "", 0)
			defer warm.Close()
			before := c.resident(b)
			conns := make([]*rawConn, 0, n)
			for i := range n {
				f := ""
				if filter != "" {
					f = fmt.Sprintf(filter, i)
				}
				conns = append(conns, rawDial(b, c.address(), fmt.Sprint("device", i), 0, f, 1))
			}
			time.Sleep(3 * time.Second)
			b.ReportMetric(float64(c.resident(b)-before)/n/1024, "KiB/conn")
			for _, nc := range conns {
				nc.Close()
			}
		})
	}
}

func (c *child) resident(tb testing.TB) int64 {
	tb.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		tb.Skip(err)
	}
	for line := range strings.Lines(string(b)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	tb.Fatal("no VmRSS")
	return 0
}

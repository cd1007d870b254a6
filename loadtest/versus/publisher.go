package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// dial opens a session and returns what the server allows to be outstanding.
func dial(b target, clientID string, keep bool) (net.Conn, *packetReader, int, error) {
	conn, err := net.DialTimeout("tcp", b.addr, 5*time.Second)
	if err != nil {
		return nil, nil, 0, err
	}
	r := &packetReader{r: bufio.NewReaderSize(conn, 64<<10)}
	if _, err = conn.Write(b.speaks.connect(clientID, keep)); err == nil {
		var body []byte
		if body, err = r.expect(connack); err == nil && body[1] != 0 {
			err = fmt.Errorf("CONNACK reason code 0x%02x", body[1])
		}
		if err == nil {
			return conn, r, receiveMaximum(body), nil
		}
	}
	conn.Close()
	return nil, nil, 0, fmt.Errorf("connect %s to %s: %w", clientID, b.addr, err)
}

// publisher keeps window messages outstanding until its deadline and times each until its flow is complete.
type publisher struct {
	id       int
	qos      byte
	window   int
	payloads [][]byte
	rate     float64 // messages a second; 0 is as fast as acknowledgements allow
	gate     *gate   // nil: subscribers need not keep up

	sent    atomic.Uint64
	done    uint64 // flows completed; those of QoS 0 are complete when they are sent
	latency *hdrhistogram.Histogram

	head []byte // of a PUBLISH
	idAt int
}

const slowest = 60_000_000 // microseconds that a latency is told up to

// open connects; run publishes when it may.
func (p *publisher) open(b target) (net.Conn, *packetReader, error) {
	conn, r, allowed, err := dial(b, fmt.Sprintf("pub-%d", p.id), false)
	if err != nil {
		return nil, nil, err
	}
	p.window = min(p.window, allowed, 65535)
	p.latency = hdrhistogram.New(1, slowest, 3)
	p.head, p.idAt = b.speaks.publishHead(fmt.Sprintf("bench/%d", p.id), p.qos, len(p.payloads[0]))
	return conn, r, nil
}

// run publishes until the deadline has passed, then waits for what is outstanding.
func (p *publisher) run(conn net.Conn, r *packetReader, measure time.Duration) error {
	defer conn.Close()
	f := newFlights(p.qos, p.window)
	begin := time.Now()
	deadline := begin.Add(measure)
	conn.SetDeadline(deadline.Add(30 * time.Second))
	var out []byte
	var err error
	for {
		now := time.Now()
		out = p.fill(out, f, now, begin, deadline)
		if len(out) > 0 {
			if _, err := conn.Write(out); err != nil {
				return err
			}
			out = out[:0]
			if p.qos == 0 {
				continue
			}
		}
		if f.empty() {
			if !now.Before(deadline) {
				return nil
			}
			time.Sleep(max(20*time.Microsecond, p.pause(p.sent.Load(), time.Since(begin))))
			continue
		}
		if out, err = p.acknowledged(r, out, f); err != nil {
			return err
		}
	}
}

// fill appends the messages that may be sent now: a write of 64 KiB already carries hundreds of them.
func (p *publisher) fill(out []byte, f *flights, now, begin, deadline time.Time) []byte {
	if !now.Before(deadline) {
		return out
	}
	elapsed := now.Sub(begin)
	for seq := p.sent.Load(); len(f.free) > 0 && len(out) < 64<<10 && p.due(seq, elapsed) && p.gate.open(seq, now); seq++ {
		at := len(out)
		out = append(out, p.head...)
		if p.qos > 0 {
			binary.BigEndian.PutUint16(out[at+p.idAt:], f.take(now))
		} else {
			p.done++
		}
		at = len(out)
		out = append(out, p.payloads[(int(seq)*31+p.id*977)%len(p.payloads)]...)
		number(out[at:], p.id, seq)
		p.sent.Store(seq + 1)
	}
	return out
}

// acknowledged reads at least one packet and all that are buffered behind it. It returns what must be sent in answer.
func (p *publisher) acknowledged(r *packetReader, out []byte, f *flights) ([]byte, error) {
	for {
		first, body, err := r.next()
		if err != nil {
			return nil, err
		}
		pid, err := id(body)
		if err != nil {
			return nil, err
		}
		complete, err := f.answered(first>>4, pid)
		if err != nil {
			return nil, err
		}
		if complete {
			p.done++
			_ = p.latency.RecordValue(max(1, time.Since(f.sentAt[pid]).Microseconds()))
		} else {
			out = append(out, 0x62, 2, byte(pid>>8), byte(pid))
		}
		if r.r.Buffered() == 0 {
			return out, nil
		}
	}
}

// due says whether the next message is due after elapsed.
func (p *publisher) due(sent uint64, elapsed time.Duration) bool {
	return p.rate == 0 || float64(sent) <= p.rate*elapsed.Seconds()
}

// pause is how long to wait until the next message is due.
func (p *publisher) pause(sent uint64, elapsed time.Duration) time.Duration {
	if p.rate == 0 {
		return 0
	}
	return max(0, time.Duration(float64(sent)/p.rate*float64(time.Second))-elapsed)
}

// gate lets the one publisher of a fan-out be so many messages ahead of the slowest subscriber and no more: what is measured
// is what arrives, and no broker has to drop.
type gate struct {
	ahead uint64
	subs  []*subscriber

	floor  uint64 // everything below has arrived, or never will
	moved  time.Time
	passed uint64
}

const gateStall = 250 * time.Millisecond // without any delivery: what is outstanding is lost

func (g *gate) open(seq uint64, now time.Time) bool {
	if g == nil || seq < g.floor+g.ahead {
		return true
	}
	low := seq
	for _, s := range g.subs {
		low = min(low, s.passed.Load())
	}
	if low != g.passed || g.moved.IsZero() {
		g.passed, g.moved = low, now
	}
	g.floor = max(g.floor, low)
	if now.Sub(g.moved) > gateStall {
		g.floor, g.moved = seq, now
	}
	return seq < g.floor+g.ahead
}

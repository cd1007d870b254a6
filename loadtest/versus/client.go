package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// dial opens a session and returns what the server allows to be outstanding.
func dial(addr, clientID string, keep bool) (net.Conn, *packetReader, int, error) {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, nil, 0, err
	}
	r := &packetReader{r: bufio.NewReaderSize(conn, 64<<10)}
	if _, err = conn.Write(connectPacket(clientID, keep)); err == nil {
		var body []byte
		if body, err = r.expect(connack); err == nil && body[1] != 0 {
			err = fmt.Errorf("CONNACK reason code 0x%02x", body[1])
		}
		if err == nil {
			return conn, r, receiveMaximum(body), nil
		}
	}
	conn.Close()
	return nil, nil, 0, fmt.Errorf("connect %s to %s: %w", clientID, addr, err)
}

// publisher keeps window messages outstanding until its deadline and times each until its flow is complete.
type publisher struct {
	id      int
	qos     byte
	window  int
	payload []byte
	rate    float64 // messages a second; 0 is as fast as acknowledgements allow

	done    uint64 // flows completed
	latency *hdrhistogram.Histogram
}

// run publishes to addr until the deadline has passed, then waits for what is outstanding.
func (p *publisher) run(addr string, start <-chan struct{}, measure time.Duration) error {
	conn, r, allowed, err := dial(addr, fmt.Sprintf("pub-%d", p.id), false)
	if err != nil {
		return err
	}
	defer conn.Close()
	p.latency = hdrhistogram.New(1, 60_000_000, 3) // microseconds
	window := min(p.window, allowed, 65535)
	packet, idAt := publishPacket(fmt.Sprintf("bench/%d", p.id), p.qos, p.payload)
	sentAt := make([]time.Time, window+1)
	free := make([]uint16, 0, window)
	for i := range window {
		free = append(free, uint16(window-i))
	}

	<-start
	begin := time.Now()
	deadline := begin.Add(measure)
	conn.SetDeadline(deadline.Add(30 * time.Second))
	var out []byte
	var sent uint64
	for {
		now := time.Now()
		for len(free) > 0 && now.Before(deadline) && p.due(sent, now.Sub(begin)) {
			pid := free[len(free)-1]
			free = free[:len(free)-1]
			at := len(out)
			out = append(out, packet...)
			binary.BigEndian.PutUint16(out[at+idAt:], pid)
			sentAt[pid] = now
			sent++
			if len(out) > 64<<10 {
				break // a write of this size already carries hundreds of messages
			}
		}
		if len(out) > 0 {
			if _, err := conn.Write(out); err != nil {
				return err
			}
			out = out[:0]
		}
		if len(free) == window {
			if !now.Before(deadline) {
				return nil
			}
			time.Sleep(p.pause(sent, time.Since(begin)))
			continue
		}
		if out, free, err = p.acknowledged(r, out, free, sentAt); err != nil {
			return err
		}
	}
}

// acknowledged reads at least one packet and all that are buffered behind it. It returns what must be sent in answer.
func (p *publisher) acknowledged(r *packetReader, out []byte, free []uint16, sentAt []time.Time) ([]byte, []uint16, error) {
	for {
		first, body, err := r.next()
		if err != nil {
			return nil, nil, err
		}
		pid, err := id(body)
		if err != nil {
			return nil, nil, err
		}
		switch first >> 4 {
		case puback, pubcomp:
			p.done++
			_ = p.latency.RecordValue(max(1, time.Since(sentAt[pid]).Microseconds()))
			free = append(free, pid)
		case pubrec:
			out = append(out, 0x62, 2, byte(pid>>8), byte(pid))
		default:
			return nil, nil, fmt.Errorf("got packet type %d", first>>4)
		}
		if r.r.Buffered() == 0 {
			return out, free, nil
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

// subscriber counts deliveries and acknowledges them.
type subscriber struct {
	id       int
	qos      byte
	received atomic.Uint64
	conn     net.Conn
}

// subscribe opens the session and returns once the server has granted the subscription.
func (s *subscriber) subscribe(addr string, keep bool) (*packetReader, error) {
	conn, r, _, err := dial(addr, fmt.Sprintf("sub-%d", s.id), keep)
	if err != nil {
		return nil, err
	}
	s.conn = conn
	if _, err = conn.Write(subscribePacket("bench/#", s.qos)); err == nil {
		var body []byte
		if body, err = r.expect(suback); err == nil && body[len(body)-1] >= 0x80 {
			err = fmt.Errorf("SUBACK reason code 0x%02x", body[len(body)-1])
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return r, nil
}

// run receives until the connection is closed.
func (s *subscriber) run(r *packetReader) error {
	var out []byte
	for {
		first, body, err := r.next()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		switch first >> 4 {
		case publish:
			s.received.Add(1)
			topic := int(binary.BigEndian.Uint16(body))
			switch first >> 1 & 3 {
			case 1:
				out = append(out, 0x40, 2, body[2+topic], body[3+topic])
			case 2:
				out = append(out, 0x50, 2, body[2+topic], body[3+topic])
			}
		case pubrel:
			out = append(out, 0x70, 2, body[0], body[1])
		}
		if len(out) > 0 && (r.r.Buffered() == 0 || len(out) > 16<<10) {
			if _, err := s.conn.Write(out); err != nil && !errors.Is(err, net.ErrClosed) {
				return err
			}
			out = out[:0]
		}
	}
}

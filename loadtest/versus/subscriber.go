package main

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
)

// subscriber acknowledges deliveries and holds them against the numbers of their messages.
type subscriber struct {
	id   int
	qos  byte
	conn net.Conn

	received atomic.Uint64
	passed   atomic.Uint64 // number after the highest of the last publisher that was heard of; a fan-out has one
	skipped  atomic.Uint64 // numbers that were left out
	again    atomic.Uint64 // deliveries below a number that had come: doubled or out of order

	next []uint64 // by publisher, of the reader
	open []bool   // QoS 2 by packet identifier: PUBREL is due
}

// subscribe opens the session and returns once the server has granted the subscription.
func (s *subscriber) subscribe(b target, keep bool, publishers int) (*packetReader, error) {
	conn, r, _, err := dial(b, fmt.Sprintf("sub-%d", s.id), keep)
	if err != nil {
		return nil, err
	}
	s.conn, s.next = conn, make([]uint64, publishers)
	if s.qos == 2 {
		s.open = make([]bool, 1<<16)
	}
	if _, err = conn.Write(b.speaks.subscribe("bench/#", s.qos)); err == nil {
		var body []byte
		if body, err = r.expect(suback); err == nil && body[len(body)-1] != s.qos {
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
func (s *subscriber) run(r *packetReader, v dialect) error {
	var out []byte
	for {
		first, body, err := r.next()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if out, err = s.take(v, first, body, out); err != nil {
			return err
		}
		if len(out) > 0 && (r.r.Buffered() == 0 || len(out) > 16<<10) {
			if _, err := s.conn.Write(out); err != nil && !errors.Is(err, net.ErrClosed) {
				return err
			}
			out = out[:0]
		}
	}
}

// take deals with one packet and appends the answer to out.
func (s *subscriber) take(v dialect, first byte, body, out []byte) ([]byte, error) {
	switch first >> 4 {
	case publish:
		qos, pid, payload, err := v.delivery(first, body)
		if err != nil {
			return nil, err
		}
		if qos != s.qos {
			return nil, fmt.Errorf("delivery of QoS %d, subscribed and published with %d", qos, s.qos)
		}
		switch qos {
		case 1:
			out = append(out, 0x40, 2, byte(pid>>8), byte(pid))
		case 2:
			if s.open[pid] {
				return nil, fmt.Errorf("identifier %d is used again before its PUBREL", pid)
			}
			s.open[pid] = true
			out = append(out, 0x50, 2, byte(pid>>8), byte(pid))
		}
		return out, s.count(payload)
	case pubrel:
		pid, err := id(body)
		if err != nil {
			return nil, err
		}
		if s.qos != 2 || !s.open[pid] {
			return nil, fmt.Errorf("PUBREL for identifier %d, which no delivery has", pid)
		}
		s.open[pid] = false
		return append(out, 0x70, 2, byte(pid>>8), byte(pid)), nil
	}
	return nil, fmt.Errorf("got packet type %d", first>>4)
}

func (s *subscriber) count(payload []byte) error {
	from, seq, err := numberOf(payload)
	if err != nil {
		return err
	}
	if from >= len(s.next) {
		return errForeign
	}
	switch next := s.next[from]; {
	case seq < next:
		s.again.Add(1)
	default:
		s.skipped.Add(seq - next)
		s.next[from] = seq + 1
		s.passed.Store(seq + 1)
	}
	s.received.Add(1)
	return nil
}

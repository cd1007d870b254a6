package mqtt

import (
	"errors"

	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// What becomes of a publish that has waited for the upstream. A QoS 2 identifier stays pending while it waits:
//
//	pending ─arrived, or accepted▶ stored (PUBREC)
//	        ─refused▶ refused ─durable▶ forgotten (PUBREC with 0x97: the client may use the identifier for another message)
//	        ─disconnected, or the client is gone▶ unsure ─PUBLISH again▶ pending
//
// so that the record is in the spool once, and a repetition is answered by what has become of it.

// refuseLate answers a publish that is known to wait in vain. It is not stored.
func (c *conn) refuseLate(p *wire.Publish, err error) bool {
	if errors.Is(err, errLate) {
		c.closeFor(err)
		return false
	}
	return c.refusePublish(p, err)
}

// succeed acknowledges, and returns the connection to flush.
func (in *inbound) succeed() *conn {
	if in.qos == 2 {
		return in.c.sess.keep(in)
	}
	in.c.acks.resolve(in.number, reasonSuccess, in.c.acknowledge)
	return in.c
}

// abandoned reports whether nobody is there to be told.
func (in *inbound) abandoned() bool {
	if in.qos == 1 {
		return in.c.acks.isEnded()
	}
	s := in.c.sess
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.inbound[in.pid]
	return !ok || id.gen != in.gen || s.conn == nil || s.conn != id.conn
}

// refuse tells an MQTT 5 client that its message may not have arrived.
func (in *inbound) refuse() *conn {
	if in.qos == 1 {
		in.c.acks.resolveLate(in.number, in.c.acknowledge)
		return in.c
	}
	s := in.c.sess
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.inbound[in.pid]
	if !ok || id.gen != in.gen {
		return nil
	}
	if !s.durable {
		return s.refuseLocked(in.pid)
	}
	id.state = inboundRefused
	s.inbound[in.pid] = id
	s.srv.writer.put(stateEntry{
		changes: []spool.Change{{Space: spaceInbound, Key: inboundKey(s.id, s.epoch, in.pid)}},
		done:    func(_ *spool.Record, err error) { s.forgotten(in, err) },
	})
	return nil
}

// forgotten runs when the deletion of a refused identifier is durable. Before that PUBREC must not leave: after a crash the client's next
// message with the identifier would be taken for a repetition.
func (s *session) forgotten(in *inbound, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.inbound[in.pid]
	switch {
	case !ok || id.gen != in.gen:
	case err != nil:
		if s.conn != nil {
			s.conn.closeFor(err)
		}
	default:
		if c := s.refuseLocked(in.pid); c != nil {
			c.out.wake()
		}
	}
}

// refuseLocked forgets an identifier and refuses what waits for it.
func (s *session) refuseLocked(pid uint16) *conn {
	delete(s.inbound, pid)
	c := s.conn
	switch {
	case c == nil:
	case c.peer.Version != wire.Version5: // it came back as another client, which cannot be told
		c.closeFor(errLate)
	default:
		c.acks.resolvePID(pid, reasonQuotaExceeded, c.acknowledge)
	}
	return c
}

// unsure leaves open what has become of a publish, and ends the connection that waits for it, if err is not nil. What was of QoS 1 is
// sent again and stored again; of QoS 2 the next repetition waits anew.
func (in *inbound) unsure(w *Awaited, err error) {
	c := in.c
	if in.qos == 2 {
		s := c.sess
		s.mu.Lock()
		if id, ok := s.inbound[in.pid]; ok && id.gen == in.gen {
			if id.conn != nil {
				c = id.conn
			}
			id.state = inboundUnsure
			s.inbound[in.pid] = id
			if s.awaited == nil {
				s.awaited = make(map[uint16]*Awaited)
			}
			s.awaited[in.pid] = w
		}
		s.mu.Unlock()
	}
	if err != nil {
		c.closeFor(err)
	}
}

// askAgainLocked is what a repetition on c has to wait for, nil when what is known is enough to answer it.
func (s *session) askAgainLocked(c *conn, pid uint16, id *inboundID, topic string) (w *Awaited) {
	u := s.srv.upstream
	switch {
	case u == nil:
		return nil
	case id.state == inboundUnsure:
		was := s.awaited[pid]
		delete(s.awaited, pid)
		w = &Awaited{u: u, s: was.s, partition: was.partition, at: was.at, earlier: was.earlier}
	case id.state == inboundStored && id.gen == 0: // of an earlier run: all that is known is that the record is there
		st := u.streams[s.srv.spool.StreamFor(topic)]
		if st == nil {
			return nil
		}
		s.nextGen++
		id.gen = s.nextGen
		w = &Awaited{u: u, s: st, earlier: true}
	default:
		return nil
	}
	id.state = inboundPending
	w.in = &inbound{c: c, pid: pid, qos: 2, gen: id.gen}
	return w
}

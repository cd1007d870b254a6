package mqtt

import (
	"context"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// inboundID is a packet identifier of a QoS 2 publish of the client, from the PUBLISH to the PUBCOMP.
//
//	PUBLISH ▶ pending ─durable▶ stored (PUBREC) ─PUBREL▶ releasing ─durable▶ forgotten (PUBCOMP)
//
// The identifier is durable in the same group as the record, so that a repetition after a crash is known. It is deleted
// before PUBCOMP, so that the next message with the identifier is new.
type inboundID struct {
	state inboundState
	gen   uint32 // tells a completion that it is about an earlier use
	conn  *conn  // whose Receive Maximum it counts against; nil after a restart
}

type inboundState byte

const (
	inboundPending inboundState = iota
	inboundStored
	inboundReleasing
	inboundUnsure  // stored, and waited for the upstream in vain; see late.go
	inboundRefused // the same, and its deletion is not durable yet
)

// repeated answers a QoS 2 publish to a topic whose identifier was accepted and not released. It is of a message that was allowed and
// is stored, and nothing else of it is looked at: a refusal would let the client give the identifier to another message,
// which would then be taken for a repetition. Nor does it count against Receive Maximum again.
func (c *conn) repeated(pid uint16, topic string) bool {
	c.acks.wait(2 * c.srv.cfg.ReceiveMaximum) // however often it comes, what it costs is bounded
	s := c.sess
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.inbound[pid]
	if s.conn != c || !ok || id.state == inboundReleasing {
		return false
	}
	n := c.acks.add(packets.Pubrec, pid, id.conn != c)
	id.conn = c
	again := s.askAgainLocked(c, pid, &id, topic)
	s.inbound[pid] = id
	if again != nil {
		again.begin()
	}
	if id.state == inboundStored {
		c.acks.resolve(n, reasonSuccess, c.acknowledge)
		c.out.wake()
	} // otherwise stored answers on the session's connection
	c.srv.metrics.repeated.Inc()
	return true
}

// publish2 stores a QoS 2 publish that is no repetition; false ends the connection.
func (c *conn) publish2(ctx context.Context, rec *spool.Record, in *inbound) bool {
	s, pid := c.sess, in.pid
	s.mu.Lock()
	if s.conn != c {
		s.mu.Unlock()
		c.srv.retained.release(in.room)
		return false
	}
	s.nextGen++
	in.gen = s.nextGen
	if s.inbound == nil {
		s.inbound = make(map[uint16]inboundID)
	}
	s.inbound[pid] = inboundID{state: inboundPending, gen: in.gen, conn: c}
	in.number = c.acks.add(packets.Pubrec, pid, true)
	durable := s.durable
	s.mu.Unlock()

	e := spool.Entry{Record: rec, Done: in, Reserve: c.srv.clears(rec)}
	if durable {
		e.Changes = append(e.Changes, spool.Change{Space: spaceInbound, Key: inboundKey(s.id, s.epoch, pid), Value: []byte{stateVersion}})
	}
	if rec.Retain {
		e.Changes = append(e.Changes, retainedChange(rec))
	}
	err := c.append(ctx, e)
	if err == nil {
		return true
	}
	c.srv.retained.release(in.room)
	s.forget(in, err)
	if c.peer.Version == wire.Version5 && final(err) {
		c.acks.resolve(in.number, reasonOf(err), c.acknowledge)
		c.out.wake()
		return true
	}
	c.closeFor(err)
	return false
}

// forget takes back an identifier whose record was not accepted. A repetition that came on another connection meanwhile
// waits for it in vain: that connection is closed, and the client sends it again.
func (s *session) forget(in *inbound, err error) {
	s.mu.Lock()
	id, ok := s.inbound[in.pid]
	if !ok || id.gen != in.gen {
		s.mu.Unlock()
		return
	}
	delete(s.inbound, in.pid)
	s.mu.Unlock()
	if id.conn != in.c {
		id.conn.closeFor(err)
	}
}

// stored is called when the record and its identifier are durable, or have failed. The connection may be another one by
// now; a repetition on it has its own PUBREC waiting.
func (s *session) stored(in *inbound, err error) {
	if err != nil {
		s.forget(in, err)
		in.c.closeFor(err)
		return
	}
	s.srv.acknowledgeStored()
	if c := s.keep(in); c != nil {
		s.srv.flushAfterGroup(c)
	}
}

// keep answers all that wait for an identifier whose record is where it has to be, and returns the connection to flush.
func (s *session) keep(in *inbound) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.inbound[in.pid]
	if !ok || id.gen != in.gen {
		return nil
	}
	id.state = inboundStored
	s.inbound[in.pid] = id
	if c := s.conn; c != nil {
		c.acks.resolvePID(in.pid, reasonSuccess, c.acknowledge)
		return c
	}
	return nil
}

// released deals with a PUBREL; false ends the connection.
func (c *conn) released(ctx context.Context, p *wire.Ack) bool {
	s := c.sess
	s.mu.Lock()
	id, ok := s.inbound[p.PacketID]
	switch {
	case s.conn != c:
		s.mu.Unlock()
		return false
	case !ok:
		s.mu.Unlock()
		c.pubcomp(p.PacketID, reasonIDNotFound) // MQTT 3.1.1 has no reason: PUBCOMP it is
		c.out.wake()
		return true
	case id.state == inboundPending, id.state == inboundUnsure, id.state == inboundRefused:
		s.mu.Unlock()
		c.closeFor(protocolError("PUBREL before PUBREC"))
		return false
	case id.state == inboundReleasing:
		s.mu.Unlock() // its PUBCOMP is on the way
		return true
	case !s.durable:
		delete(s.inbound, p.PacketID)
		s.mu.Unlock()
		c.complete(id, p.PacketID)
		c.out.wake()
		return true
	}
	s.nextGen++
	id.state, id.gen = inboundReleasing, s.nextGen
	s.inbound[p.PacketID] = id
	s.mu.Unlock()

	c.acks.finish(1)
	err := c.srv.spool.Append(ctx, spool.Entry{
		Changes: []spool.Change{{Space: spaceInbound, Key: inboundKey(s.id, s.epoch, p.PacketID)}},
		Done:    &release{s: s, c: c, pid: p.PacketID, gen: id.gen},
	})
	if err == nil {
		return true
	}
	c.acks.finish(-1)
	s.mu.Lock()
	if now, ok := s.inbound[p.PacketID]; ok && now.gen == id.gen {
		now.state = inboundStored // the client sends PUBREL again when it is back
		s.inbound[p.PacketID] = now
		if s.conn != nil && s.conn != c { // and may have done so already, on a connection that waits for this one
			s.conn.closeFor(err)
		}
	}
	s.mu.Unlock()
	c.closeFor(err)
	return false
}

// complete sends PUBCOMP, which ends the place in Receive Maximum.
func (c *conn) complete(id inboundID, pid uint16) {
	c.pubcomp(pid, reasonSuccess)
	if id.conn == c {
		c.acks.completed()
	}
}

// release is the completion of a PUBREL.
type release struct {
	s   *session
	c   *conn // on which it came
	pid uint16
	gen uint32
}

// Durable implements spool.Completion.
func (r *release) Durable(_ *spool.Record, err error) {
	r.s.srv.acknowledgeStored()
	defer r.c.acks.finish(-1) // after PUBCOMP
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	c := r.s.conn
	id, ok := r.s.inbound[r.pid]
	if err != nil {
		if c != nil {
			c.closeFor(err)
		}
		return
	}
	if !ok || id.gen != r.gen {
		return
	}
	delete(r.s.inbound, r.pid)
	if c != nil {
		c.complete(id, r.pid)
		r.s.srv.flushAfterGroup(c)
	}
}

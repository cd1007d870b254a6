package mqtt

import (
	"encoding/binary"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/audit"
	"github.com/forebay-gateway/forebay/mqtt/auth"
	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// will is the message that is published when a client goes without a word. It is durable before CONNACK, so that it is
// published after a crash of the gateway too, and deleted in the same group as its record is written: once.
type will struct {
	rec    *spool.Record
	who    *auth.Subject // whose it is; nil after a restart: then it was allowed when it came
	expiry uint32        // Message Expiry Interval, counted from the moment of publishing
	delay  uint32        // seconds
	has    bool          // expiry is set
	due    int64         // own time in nanoseconds at which it is published; 0 while the client is connected
}

func newWill(w *wire.Will, c *conn, now time.Time) *will {
	who := c.admitted.Load().subject
	rec := w.Publish.Record(who.ClientID, who.Identity.User, now)
	rec.ExpiresAt = 0
	return &will{rec: rec, who: &who, expiry: w.Expiry, has: w.HasExpiry, delay: w.Delay}
}

// change keeps the will: version 1 | has expiry 1 | expiry uvarint | delay uvarint | due varint | message.
func (w *will) change(clientID string) spool.Change {
	b := []byte{stateVersion, byte(b2i(w.has))}
	b = binary.AppendUvarint(b, uint64(w.expiry))
	b = binary.AppendUvarint(b, uint64(w.delay))
	b = binary.AppendVarint(b, w.due)
	return spool.Change{Space: spaceWill, Key: clientID, Value: appendMessage(b, w.rec)}
}

func restoreWill(value []byte) (*will, error) {
	d := openState(value)
	w := &will{has: d.byte() == 1}
	w.expiry = uint32(d.uvarint())
	w.delay = uint32(d.uvarint())
	w.due = d.varint()
	w.rec = d.message()
	return w, d.err
}

func deleteWill(clientID string) spool.Change { return spool.Change{Space: spaceWill, Key: clientID} }

// publishWill appends the will and deletes it in the same group.
func (srv *Server) publishWill(w *will, clientID string) {
	now := srv.now()
	rec := *w.rec
	rec.ReceivedAt = now.UnixNano()
	if w.has {
		rec.ExpiresAt = rec.ReceivedAt + int64(w.expiry)*second
	}
	changes := []spool.Change{deleteWill(clientID)}
	if a := srv.auth; a != nil && w.who != nil && !a.Permissions(*w.who).Publish(rec.Topic, rec.QoS, rec.Retain) {
		srv.metrics.drop(dropDenied) // the rules have changed since the CONNECT
		srv.writer.put(stateEntry{changes: changes})
		return
	}
	var room reservation
	if rec.Retain {
		var err error
		if room, err = srv.reserveRetained(&rec); err != nil {
			// There is nobody to refuse any more: it goes to those who are there, and is not kept.
			srv.metrics.limits.WithLabelValues(limitOf(err)).Inc()
			srv.audit.Record(audit.Event{Name: audit.LimitReached, Client: clientID, Topic: rec.Topic, Limit: limitOf(err), Detail: "a will is not retained"})
			rec.Retain = false
		} else {
			changes = append(changes, retainedChange(&rec))
		}
	}
	expires := rec.ExpiresAt
	srv.writer.put(stateEntry{rec: &rec, changes: changes, otherwise: changes[:1:1], done: func(rec *spool.Record, err error) {
		defer srv.retained.release(room)
		switch {
		case final(err): // no room is left, not even for wills
			srv.metrics.drop(dropNotStored)
			srv.log.Warn("a will is lost: the spool does not take it", "client", clientID, "err", err)
		case err == nil:
			srv.metrics.wills.Inc()
			if rec.Retain {
				srv.retained.apply(asGiven(rec, expires))
			}
			srv.lanes.acknowledged(srv.spool.StreamFor(rec.Topic), rec) // a subscription that is made now begins behind it
		}
	}})
}

// willGone decides what becomes of the will when its connection ends without DISCONNECT, with 0x04, or by a take-over.
// The session's end, if it ends now, has been decided before: a will is never later than it (MQTT 5, 3.1.2-8).
func (s *session) willGoneLocked(ends bool) {
	w := s.will
	if w == nil {
		return
	}
	if w.delay == 0 || ends {
		s.setWillLocked(nil)
		s.srv.publishWill(w, s.id)
		return
	}
	wait := w.delay
	if s.expiry != expiryNever {
		wait = min(wait, s.expiry)
	}
	w.due = s.srv.own().UnixNano() + int64(wait)*second
	s.srv.writer.put(stateEntry{changes: []spool.Change{w.change(s.id)}})
}

// dropWillLocked forgets the will (MQTT 5, 3.1.2-10).
func (s *session) dropWillLocked() {
	if s.will != nil {
		s.setWillLocked(nil)
		s.srv.writer.put(stateEntry{changes: []spool.Change{deleteWill(s.id)}})
	}
}

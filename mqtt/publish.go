package mqtt

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/auth"
	"github.com/forebay-gateway/forebay/mqtt/wire"
	"github.com/forebay-gateway/forebay/spool"
)

// publish deals with a PUBLISH of the client; false ends the connection.
func (c *conn) publish(ctx context.Context, p *wire.Publish) bool {
	if err := c.resolveAlias(p); err != nil {
		c.tellLimit(err)
		c.closeFor(err)
		return false
	}
	c.srv.metrics.received[p.QoS].Inc()
	c.srv.metrics.payloadIn.Add(float64(len(p.Payload)))
	if err := c.lst.offer.allows(p.QoS, p.Retain); err != nil {
		c.srv.metrics.drop(dropRefusedIn)
		c.tellLimit(err)
		c.closeFor(err)
		return false
	}
	if p.QoS == 2 && c.repeated(p.PacketID, p.Topic) {
		return true
	}
	if p.QoS > 0 && !c.admit() {
		return false
	}
	if err := c.check(p); err != nil {
		return c.refusePublish(p, err)
	}
	in, rec := newInbound(c, p)
	p.Into(rec, c.sess.id, c.userName, c.srv.now())
	if p.QoS > 0 {
		if err := c.mayWait(rec); err != nil {
			return c.refuseLate(p, err)
		}
	}
	var room reservation
	if p.Retain {
		var err error
		if room, err = c.srv.reserveRetained(rec); err != nil {
			return c.refusePublish(p, err)
		}
	}
	if in != nil {
		in.expires, in.room = rec.ExpiresAt, room
	}
	switch p.QoS {
	case 0:
		return c.publish0(ctx, rec, in)
	case 1:
		return c.publish1(ctx, rec, in)
	default:
		return c.publish2(ctx, rec, in)
	}
}

// admit keeps Receive Maximum: MQTT 5 has a reason code for a client that ignores it (3.3.4-9), a 3.1.1 client does not
// know of it and is not read until there is room.
func (c *conn) admit() bool {
	limit := c.srv.cfg.ReceiveMaximum
	if c.peer.Version != wire.Version5 {
		c.acks.wait(limit)
		return true
	}
	if c.acks.outstanding() < limit {
		return true
	}
	err := &wire.Error{Code: packets.ErrReceiveMaximum, Detail: "receive maximum exceeded", Version: wire.Version5}
	c.tellLimit(err)
	c.closeFor(err)
	return false
}

var (
	errTopicName     = &wire.Error{Code: packets.ErrTopicNameInvalid, Detail: "topic name is reserved", Version: wire.Version5}
	errTopicDepth    = &wire.Error{Code: packets.ErrTopicNameInvalid, Detail: "topic name has too many levels", Version: wire.Version5}
	errTopicLong     = &wire.Error{Code: packets.ErrTopicNameInvalid, Detail: "topic name is too long", Version: wire.Version5}
	errTopicLength   = &wire.Error{Code: packets.ErrTopicNameInvalid, Detail: "topic name is too long for a retained message", Version: wire.Version5}
	errPayloadFormat = &wire.Error{Code: packets.ErrPayloadFormatInvalid, Detail: "payload is not UTF-8", Version: wire.Version5}
)

func (c *conn) check(p *wire.Publish) error {
	if reserved(p.Topic) {
		return errTopicName
	}
	if c.overRate != nil {
		return c.overRate
	}
	if c.srv.tooDeep(p.Topic) {
		return errTopicDepth
	}
	if len(p.Topic) > c.srv.cfg.MaxTopicLength {
		return errTopicLong
	}
	if p.Properties != nil && len(p.Properties.User) > c.srv.cfg.MaxUserProperties {
		return errUserProperties
	}
	if p.Retain && len(p.Topic) > spool.MaxKey {
		return errTopicLength
	}
	if !p.PayloadFormatValid() {
		return errPayloadFormat
	}
	if err := c.mayPublish(p.Topic, p.QoS, p.Retain); err != nil {
		return err
	}
	return nil
}

// tooDeep reports whether a topic or filter has more levels than are allowed: each costs a node where it is kept.
func (srv *Server) tooDeep(topic string) bool {
	return strings.Count(topic, "/") >= srv.cfg.MaxTopicLevels
}

// ours are the topics of what the gateway itself puts into the spool: audit events, dead letters.
func ours(topic string) bool {
	return strings.HasPrefix(topic, "$forebay/") || topic == "$forebay"
}

// reserved topics are not for clients to publish to (MQTT 5, 4.7.2).
func reserved(topic string) bool {
	return strings.HasPrefix(topic, "$SYS/") || topic == "$SYS" || strings.HasPrefix(topic, "$share/") || ours(topic)
}

// refusePublish answers a publish that is not stored. What is not stored is never acknowledged with success: a 3.1.1
// client, which can be told nothing, loses its connection instead (MQTT 3.1.1, 3.3.5-2). The one exception is the operator's
// own choice, auth.acl.denied_311: drop.
func (c *conn) refusePublish(p *wire.Publish, err error) bool {
	reason, denied := reasonOf(err), errors.Is(err, ErrNotAuthorized)
	c.tellLimit(err)
	if denied {
		c.srv.metrics.drop(dropDenied)
		c.recordDenied("publish", p.Topic)
	} else {
		c.srv.metrics.drop(dropRefusedIn)
	}
	if c.peer.Version != wire.Version5 {
		drop := denied && c.srv.cfg.Auth.ACL.Denied311 == auth.DeniedDrop
		if !drop && (denied || p.QoS > 0) {
			c.closeFor(err)
			return false
		}
		reason = reasonSuccess
	}
	if p.QoS == 0 {
		return true
	}
	kind := byte(packets.Puback)
	if p.QoS == 2 {
		kind = packets.Pubrec
	}
	n := c.acks.add(kind, p.PacketID, true)
	c.acks.resolve(n, reason, c.acknowledge)
	c.out.wake()
	return true
}

// inbound is the completion of a publish.
type inbound struct {
	c       *conn
	number  uint64 // of the acknowledgement; QoS 1
	expires int64  // as the publisher gave it, Unix time in nanoseconds; of a retained message
	gen     uint32 // of the identifier; QoS 2
	pid     uint16
	qos     byte
	retain  bool
	room    reservation
}

// newInbound makes the completion and the record of a publish in one piece. The store of retained messages keeps the record, and must
// not keep the connection with it; and nobody waits for one of QoS 0.
func newInbound(c *conn, p *wire.Publish) (*inbound, *spool.Record) {
	switch {
	case p.Retain:
		return &inbound{c: c, pid: p.PacketID, qos: p.QoS, retain: true}, new(spool.Record)
	case p.QoS == 0:
		return nil, new(spool.Record)
	}
	both := &struct {
		in  inbound
		rec spool.Record
	}{in: inbound{c: c, pid: p.PacketID, qos: p.QoS}}
	return &both.in, &both.rec
}

// Durable implements spool.Completion: the acknowledgement leaves now, and with it everything that waited behind it.
func (in *inbound) Durable(rec *spool.Record, err error) {
	c := in.c
	defer c.srv.retained.release(in.room)
	if err == nil {
		if in.retain {
			c.srv.retained.apply(asGiven(rec, in.expires))
		}
		stream := c.srv.spool.StreamFor(rec.Topic)
		c.srv.lanes.acknowledged(stream, rec)
		if u := c.srv.upstream; u != nil && in.qos > 0 && rec.Offset != spool.NoOffset { // without an offset the stream's policy let it go
			if s := u.streams[stream]; s != nil {
				u.stored(s, in, rec)
				return
			}
		}
	}
	switch {
	case in.qos == 2:
		c.sess.stored(in, err)
	case in.qos == 1 && err == nil:
		c.srv.stored = append(c.srv.stored, storedAck{c, in.number})
		c.srv.flushAfterGroup(c)
	case err != nil:
		c.closeFor(err)
	}
}

// unacked is the completion of a QoS 0 publish.
type unacked struct{ srv *Server }

// Durable implements spool.Completion.
func (u unacked) Durable(rec *spool.Record, err error) {
	if err == nil {
		u.srv.lanes.acknowledged(u.srv.spool.StreamFor(rec.Topic), rec)
	}
}

func (c *conn) publish0(ctx context.Context, rec *spool.Record, in *inbound) bool {
	e := spool.Entry{Record: rec, Done: unacked{c.srv}, Reserve: c.srv.clears(rec)}
	if rec.Retain {
		e.Changes = []spool.Change{retainedChange(rec)}
		e.Done = in
	}
	c.unacked = true
	err := c.srv.spool.Append(ctx, e)
	if err == nil {
		return true
	}
	if in != nil {
		c.srv.retained.release(in.room)
	}
	c.srv.metrics.drop(dropNotStored) // nobody sends it again, whatever the reason
	if errors.Is(err, spool.ErrClosed) || errors.Is(err, spool.ErrFailed) || ctx.Err() != nil {
		c.closeFor(err)
		return false
	}
	return true
}

func (c *conn) publish1(ctx context.Context, rec *spool.Record, in *inbound) bool {
	in.number = c.acks.add(packets.Puback, in.pid, true)
	e := spool.Entry{Record: rec, Done: in, Reserve: c.srv.clears(rec)}
	if rec.Retain {
		e.Changes = []spool.Change{retainedChange(rec)}
	}
	err := c.append(ctx, e)
	if err == nil {
		return true
	}
	c.srv.retained.release(in.room)
	if c.peer.Version == wire.Version5 && final(err) {
		c.acks.resolve(in.number, reasonOf(err), c.acknowledge)
		c.out.wake()
		return true
	}
	c.closeFor(err)
	return false
}

// final reports whether an error concerns one message and may be answered in its acknowledgement. Others concern the
// connection or the log: the client keeps the message and sends it again.
func final(err error) bool {
	return errors.Is(err, spool.ErrFull) || errors.Is(err, spool.ErrTooLarge) || errors.Is(err, spool.ErrInvalid)
}

// append hands a publish of QoS 1 or 2 to the log. An MQTT 5 client is told when there is no room; a 3.1.1 client waits
// for some time and then loses its connection, so that it sends the message again.
func (c *conn) append(ctx context.Context, e spool.Entry) error {
	err := c.srv.spool.Append(ctx, e)
	if !errors.Is(err, spool.ErrFull) || c.peer.Version == wire.Version5 {
		return err
	}
	c.srv.metrics.held.Inc()
	const again = 250 * time.Millisecond
	for left := c.srv.cfg.FullHold.Std(); left > 0 && errors.Is(err, spool.ErrFull); left -= again {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(again, left)):
		}
		err = c.srv.spool.Append(ctx, e)
	}
	return err
}

package mqtt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/forebay-gateway/forebay/mqtt/audit"
	"github.com/forebay-gateway/forebay/spool"
)

// ErrUnpublishable means that the gateway itself cannot publish a record, now or later, as a client could not.
var ErrUnpublishable = errors.New("cannot be published")

// Publish publishes what does not come from a client: e.Record, with e.Changes in the same group of the log. It blocks and fails as an
// append to the log does, and nobody's rules are asked whether it may: who receives it is up to the rules of the subscribers. An error that
// wraps ErrUnpublishable is about the record. e.Record belongs to the log from then on.
func (srv *Server) Publish(ctx context.Context, e spool.Entry) error {
	rec := e.Record
	if err := srv.publishable(rec); err != nil {
		return fmt.Errorf("%w: %w", ErrUnpublishable, err)
	}
	in := internal{srv: srv, done: e.Done, retain: rec.Retain, expires: rec.ExpiresAt}
	if rec.Retain {
		var err error
		if in.room, err = srv.reserveRetained(rec); err != nil {
			srv.metrics.limits.WithLabelValues(limitOf(err)).Inc()
			srv.audit.Record(audit.Event{Name: audit.LimitReached, Client: rec.ClientID, Topic: rec.Topic, Limit: limitOf(err), Detail: "a publish of the gateway"})
			return fmt.Errorf("%w: %w", ErrUnpublishable, err)
		}
		e.Changes = append(e.Changes[:len(e.Changes):len(e.Changes)], retainedChange(rec))
	}
	e.Done, e.Reserve = in, srv.clears(rec)
	err := srv.spool.Append(ctx, e)
	if err != nil {
		srv.retained.release(in.room)
	}
	return err
}

// publishable is what a client's publish has to pass, but for its rights.
func (srv *Server) publishable(rec *spool.Record) error {
	switch {
	case rec.Topic == "" || strings.ContainsAny(rec.Topic, "+#\x00") || !utf8.ValidString(rec.Topic):
		return errors.New("topic name is not valid")
	case reserved(rec.Topic):
		return errTopicName
	case srv.tooDeep(rec.Topic):
		return errTopicDepth
	case len(rec.Topic) > srv.cfg.MaxTopicLength:
		return errTopicLong
	case rec.Properties != nil && len(rec.Properties.User) > srv.cfg.MaxUserProperties:
		return errUserProperties
	case rec.Retain && len(rec.Topic) > spool.MaxKey:
		return errTopicLength
	}
	return nil
}

// internal is the completion of a publish of the gateway.
type internal struct {
	srv     *Server
	done    spool.Completion // may be nil
	expires int64            // as it was given
	retain  bool
	room    reservation
}

// Durable implements spool.Completion.
func (in internal) Durable(rec *spool.Record, err error) {
	if err == nil {
		if in.retain {
			in.srv.retained.apply(asGiven(rec, in.expires))
		}
		in.srv.lanes.acknowledged(in.srv.spool.StreamFor(rec.Topic), rec)
	}
	in.srv.retained.release(in.room)
	if in.done != nil {
		in.done.Durable(rec, err)
	}
}

// internalClient reports whether a client ID is one of the gateway's own, which no client may have: it would pass for the gateway.
func internalClient(id string) bool { return strings.HasPrefix(id, "$forebay/") }

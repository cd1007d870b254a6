package downlink

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// The reasons of poison beside those of the mapping.
const (
	reasonTooLarge = "too_large" // for the spool
	reasonRefused  = "refused"   // by the MQTT front: too many levels, too long, a limit of retained messages
)

// reasonOf names why no publish can be made.
func reasonOf(err error) (reason, hint string) {
	if f, ok := errors.AsType[*mapping.Fault](err); ok {
		switch f.Reason {
		case mapping.MissingField:
			hint = "give the field a |text in the template, or let the producer set it"
		case mapping.InvalidJSON, mapping.JSONTooLarge:
			hint = "the templates ask for a field of a JSON value: see max_json, or take key or header.NAME"
		case mapping.BadTopic, mapping.BadResponseTopic:
			hint = "the producer must not put wildcards, control characters or empty levels there; several levels need :path behind the field"
		case mapping.TooLarge:
			hint = "raise max_payload of the downlink"
		}
		return f.Reason.String(), hint
	}
	if errors.Is(err, spool.ErrTooLarge) {
		return reasonTooLarge, "the record does not fit into the spool: see spool.journal.file_size and spool.queue_size"
	}
	return reasonRefused, "see the limits of mqtt: max_topic_levels, max_topic_length, max_retained, max_retained_size"
}

// poison deals with a record of which no publish can be made: it becomes a dead letter in one entry with the position. It returns false
// when ctx has ended before that.
func (p *partition) poison(ctx context.Context, rec *kafka.Incoming, why error, before place) bool {
	d := p.d
	reason, hint := reasonOf(why)
	l := Letter{Downlink: d.cfg.Name, Upstream: d.cfg.Upstream, Record: rec, Reason: reason, Hint: hint, Err: why}
	count := func() { d.counts.poisoned(reason) }
	if d.cfg.OnPoison == Skip {
		count()
		p.dirty = true
		p.tell(&l)
		return true
	}
	l.Cut = len(rec.Value) > int(d.cfg.MaxPayload)
	for {
		ok, err := p.append(ctx, func() error {
			r, err := d.e.o.Bury(l)
			if err != nil {
				return err
			}
			r.ClientID, r.ReceivedAt = p.clientID, d.e.o.Now().UnixNano()
			e := p.entry(r, count)
			e.Stream = d.e.o.DeadLetters
			return d.e.o.Log.Append(ctx, e)
		})
		switch {
		case ok:
			p.tell(&l)
			return true
		case err != nil && !l.Cut: // not even as a dead letter
			l.Cut = true
			continue
		case err != nil: // the record's place is all that is left of it, and the log says where it is
			d.log.Error("record cannot be kept as a dead letter; it is skipped", "partition", p.String(), "offset", rec.Offset, "reason", reason, "err", err)
			count()
			p.dirty = true
			return true
		}
		p.at = before
		return false
	}
}

// tell logs a dead letter, now and then: a producer may write many of them.
func (p *partition) tell(l *Letter) {
	d := p.d
	if n, now := d.counts.poison.tell(time.Now()); now {
		d.log.Warn("record cannot be published", "partition", p.String(), "offset", l.Record.Offset, "reason", l.Reason, "err", l.Err, "hint", l.Hint,
			"policy", d.cfg.OnPoison, "records", n)
	}
}

// throttle keeps the log readable.
type throttle struct {
	mu   sync.Mutex
	told time.Time
	n    int
}

// tell counts one, and reports whether the log should say so, and of how many.
func (t *throttle) tell(now time.Time) (n int, tell bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
	if !t.told.IsZero() && now.Sub(t.told) < time.Minute {
		return 0, false
	}
	n, t.n, t.told = t.n, 0, now
	return n, true
}

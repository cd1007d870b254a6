package mqtt

import (
	"errors"
	"fmt"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// Upstream knows when records have arrived where they are to go. The engine asks it for streams whose publishers wait for that.
type Upstream interface {
	// Await has w told when a record, which is durable here, is dealt with by everything that must have it. It must not block, and may
	// tell w before it returns.
	Await(stream string, partition int, at spool.Offset, w *Awaited)

	// AwaitEarlier is Await for everything that was in the stream when the gateway started.
	AwaitEarlier(stream string, w *Awaited)

	// Away says why what comes to a partition of the stream now cannot arrive in time, empty when that is not known. It is asked for
	// each publish.
	Away(stream string, partition int) (reason string)
}

// AckRule is how the acknowledgements of one stream wait for the upstream.
type AckRule struct {
	Timeout  time.Duration // longest wait
	Fallback AckFallback
}

// AckFallback is what a publisher is told when its message has not arrived in time.
type AckFallback string

// The fallbacks.
const (
	AckAccept     AckFallback = spool.AckAccept     // success: the message is durable here
	AckRefuse     AckFallback = spool.AckRefuse     // 0x97; a 3.1.1 client, which cannot be told, loses its connection
	AckDisconnect AckFallback = spool.AckDisconnect // the connection ends, and the client sends the message again
)

// Why a publisher is not told what it waits for, by itself or by Upstream. They are label values.
const (
	lateTimeout     = "timeout"     // the wait is over
	lateTooMany     = "too_many"    // maxAwaited others wait
	lateUnreachable = "unreachable" // the upstream does not answer
	latePaused      = "paused"      // an operator has paused the way
	lateHeld        = "held"        // a part of the way waits for somebody to act
	lateBehind      = "behind"      // what is before it has waited too long already
	lateLost        = "lost"        // the record is gone
	lateOther       = "other"

	unrouted = "unrouted" // nothing must have it: success
)

var lateReasons = []string{lateTimeout, lateTooMany, lateUnreachable, latePaused, lateHeld, lateBehind, lateLost, lateOther}

// lateText is the reason string of a refusal: the message is in the spool all the same.
const lateText = "not confirmed by the upstream in time; it is stored and may still be sent"

var (
	errAway = errors.New("upstream is away, the message is not stored")          // 0x97
	errLate = errors.New("message has not reached the upstream in the time set") // ends a connection: 0x89
)

// refuses says why a publish is not even stored: what is known not to arrive would be refused afterwards, and sent all the same.
func (u *upstreamAcks) refuses(rec *spool.Record) error {
	stream, partition := u.srv.spool.PlaceFor(rec)
	s := u.streams[stream]
	if s == nil || s.rule.Fallback == AckAccept {
		return nil
	}
	reason := u.up.Away(s.name, partition)
	if reason == "" {
		return nil
	}
	u.mu.Lock()
	s.fellLocked(reason, time.Now())
	u.mu.Unlock()
	u.tell()
	if s.rule.Fallback == AckDisconnect {
		return errLate
	}
	return errAway
}

// mayWait says why a publish of QoS 1 or 2 would wait for the upstream in vain.
func (c *conn) mayWait(rec *spool.Record) error {
	if c.srv.upstream == nil {
		return nil
	}
	return c.srv.upstream.refuses(rec)
}

// health is nil, or names the streams whose publishers were lately not told what they wait for.
func (u *upstreamAcks) health(now time.Time) error {
	var errs []error
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.list {
		if !s.falling || now.Sub(s.fellAt) > fallingFor {
			continue
		}
		errs = append(errs, fmt.Errorf("stream %s: acknowledgements do not wait for the upstream since %s: %s, fallback %s; %s",
			s.name, s.fallingSince.UTC().Format(time.RFC3339), s.why, s.rule.Fallback, ackHint(s.why)))
	}
	return errors.Join(errs...)
}

// ackHint is what an operator can do.
func ackHint(reason string) string {
	switch reason {
	case lateTooMany:
		return "more publishers wait than may: look at the route's delay, or lower mqtt.receive_maximum"
	case latePaused:
		return "forebay route resume"
	case lateHeld:
		return "forebay route show tells what holds the lane"
	case lateBehind:
		return "the route is behind: it catches up by itself, unless its rate does not let it"
	case lateLost:
		return "look at the health of the spool"
	}
	return "look at the route and its upstream, or raise ack_timeout of the stream"
}

package kafka

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// hooks tell the client what happens on its connections: faults of the network, TLS and login never reach a record's
// outcome, the record just stays buffered.
type hooks struct{ c *Client }

var (
	_ kgo.HookBrokerConnect  = hooks{}
	_ kgo.HookBrokerWrite    = hooks{}
	_ kgo.HookBrokerRead     = hooks{}
	_ kgo.HookBrokerThrottle = hooks{}
)

func (h hooks) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	h.failed(err)
}

func (h hooks) OnBrokerRead(_ kgo.BrokerMetadata, _ int16, _ int, _, _ time.Duration, err error) {
	h.failed(err)
}

func (h hooks) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	h.failed(err)
	if key == kmsg.InitProducerID.Int16() {
		h.c.initialising(time.Now())
	}
}

func (h hooks) OnBrokerThrottle(_ kgo.BrokerMetadata, wait time.Duration, _ bool) {
	h.c.mu.Lock()
	h.c.throttled += wait
	h.c.mu.Unlock()
}

// txnHooks are those of transactional producers. Their InitProducerID requests are not counted: one after each failure is how they
// work.
type txnHooks struct{ h hooks }

var (
	_ kgo.HookBrokerConnect  = txnHooks{}
	_ kgo.HookBrokerRead     = txnHooks{}
	_ kgo.HookBrokerThrottle = txnHooks{}
)

func (t txnHooks) OnBrokerConnect(meta kgo.BrokerMetadata, d time.Duration, c net.Conn, err error) {
	t.h.OnBrokerConnect(meta, d, c, err)
}

func (t txnHooks) OnBrokerRead(meta kgo.BrokerMetadata, key int16, n int, wait, read time.Duration, err error) {
	t.h.OnBrokerRead(meta, key, n, wait, read, err)
}

func (t txnHooks) OnBrokerThrottle(meta kgo.BrokerMetadata, wait time.Duration, after bool) {
	t.h.OnBrokerThrottle(meta, wait, after)
}

func (h hooks) failed(err error) {
	if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, kgo.ErrClientClosed) || errors.Is(err, context.Canceled) { // we closed it
		return
	}
	if _, held := errors.AsType[*heldError](err); held {
		return // nothing new
	}
	reason, _ := ConnectionReason(err)
	h.c.mu.Lock()
	h.c.connErr, h.c.connErrAt = err, time.Now()
	h.c.connErrors[reason]++
	h.c.mu.Unlock()
}

// initialising watches for a producer that spins: it answers REQUEST_TIMED_OUT of InitProducerID, which some brokers give,
// with the next request at once, 17,000 in a second.
func (c *Client) initialising(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.initSince) > time.Second {
		c.initSince, c.initCount = now, 0
	}
	if c.initCount++; c.initCount > maxInitPerSec {
		c.initCount = 0
		c.condemnLocked(Verdict{Class: Dead, Reason: "init_producer_id_storm", Hint: "the cluster does not give producer IDs: look at its brokers"})
	}
}

// kgoLogger passes the producer's log on. Its info is about single requests and is debug here.
type kgoLogger struct{ c *Client }

func (l kgoLogger) Level() kgo.LogLevel {
	if l.c.log.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelError
}

func (l kgoLogger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	// A refused InitProducerID sticks: from here on the producer fails every record with it, also when the reason is gone.
	// Nothing else tells: the records' errors are the same that a produce request may get.
	if strings.HasPrefix(msg, "fatal InitProducerID error") {
		v := Verdict{Class: Dead, Reason: "init_producer_id"}
		for _, kv := range keyvals {
			if err, ok := kv.(error); ok {
				v = Classify(err)
				v.Class = Dead
			}
		}
		l.c.mu.Lock()
		l.c.condemnLocked(v)
		l.c.mu.Unlock()
	}
	to := slog.LevelDebug
	if level == kgo.LogLevelError {
		to = slog.LevelWarn
		ok, times := l.c.mayRepeat(msg, time.Now())
		if !ok {
			return
		}
		if times > 0 {
			keyvals = append(keyvals[:len(keyvals):len(keyvals)], "repeated", times)
		}
	}
	l.c.log.Log(context.Background(), to, "producer: "+msg, keyvals...)
}

// said is when a message of the producer was last logged, and how often it came since.
type said struct {
	at    time.Time
	times int
}

// mayRepeat lets each of the producer's messages, which are constants, through once a minute: a port that is not Kafka's gives one
// for each try. times is how many were left out.
func (c *Client) mayRepeat(msg string, now time.Time) (ok bool, times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, before := c.said[msg]
	if before && now.Sub(s.at) < time.Minute {
		s.times++
		c.said[msg] = s
		return false, 0
	}
	c.said[msg] = said{at: now}
	return true, s.times
}

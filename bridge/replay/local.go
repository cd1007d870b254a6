package replay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// The user properties of a record that is published again, and the header of the same name of a Kafka record.
const (
	Header           = "forebay.replay" // the job's ID
	HeaderID         = "forebay.id"
	HeaderReceivedAt = "forebay.received_at"
)

// Local is the way to the gateway's own MQTT subscribers: a stream of the log that takes nothing else. They get what is in it as they get
// the rest: with its QoS, also when they were away, and in the order of each device. Routes do not read it, unless one is made that
// does.
//
// A record that is published again was received now, as sessions count how far they are behind by that; when it really was
// is in a user property. Its RETAIN flag is cleared: the past is nobody's last known value. What is left of its time is left; the
// time to live of the stream that it comes from is not its own.
type Local struct {
	Log    Log
	Stream string
	Prefix string
	Who    mapping.Identity // of the records
	Job    string
	DryRun bool

	mu       sync.Mutex
	problem  *Problem
	previews Previews
}

var _ Sink = (*Local)(nil)

// Close implements Sink.
func (l *Local) Close() {}

// Preview implements Previewer.
func (l *Local) Preview() Preview {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.previews.Preview()
}

// Problem implements Sink.
func (l *Local) Problem() *Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.problem
}

func (l *Local) wait(p *Problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problem = p
}

// Send implements Sink. Each record and the position behind it are one entry: none is published twice.
func (l *Local) Send(ctx context.Context, p *Page) (Tally, error) {
	var t Tally
	done := make(durable, len(p.Records))
	sent := 0
	for i := range p.Records {
		rec := &p.Records[i]
		topic := l.Prefix + rec.Topic
		if len(topic) > maxTopic {
			t.Refuse(rec, "topic_too_long", nil)
			continue
		}
		if l.DryRun {
			l.show(rec, topic)
			t.Sent, t.Bytes = t.Sent+1, t.Bytes+uint64(len(rec.Payload))
			continue
		}
		before := t
		t.Sent, t.Bytes = t.Sent+1, t.Bytes+uint64(len(rec.Payload))
		err := l.append(ctx, spool.Entry{Record: l.again(rec, topic), Stream: l.Stream, Changes: []spool.Change{p.mark(i+1, t)}, Done: done})
		if errors.Is(err, spool.ErrTooLarge) || errors.Is(err, spool.ErrInvalid) { // with what is added to it: it must not hold the others
			t = before
			t.Refuse(rec, "too_large", err)
			continue
		}
		if err != nil {
			return t, err
		}
		p.took(i+1, t)
		sent++
	}
	for range sent {
		if err := done.wait(ctx); err != nil {
			return t, err
		}
	}
	return t, nil
}

const maxTopic = 65535

// append waits while the stream has no room.
func (l *Local) append(ctx context.Context, e spool.Entry) error {
	for {
		soon, cancel := context.WithTimeout(ctx, fullAfter)
		err := l.Log.Append(soon, e)
		cancel()
		full := err != nil && ctx.Err() == nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, spool.ErrFull))
		if !full {
			l.wait(nil)
			if err != nil {
				return fmt.Errorf("replay: %w", err)
			}
			return nil
		}
		if l.Problem() == nil {
			l.wait(&Problem{
				Reason: "stream_full", Error: fmt.Sprintf("stream %s has no room", l.Stream), Since: time.Now(),
				Hint: "wait for its retention, or raise its max_size below spool.streams",
			})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(fullRetry):
		}
	}
}

const (
	fullAfter = 2 * time.Second // of waiting for room: then somebody is told
	fullRetry = 250 * time.Millisecond
)

// again is rec as it is published again.
func (l *Local) again(rec *spool.Record, topic string) *spool.Record {
	own := *rec
	own.Topic, own.Retain, own.ReceivedAt, own.Offset, own.Partition = topic, false, 0, 0, 0
	if own.StreamTTL {
		own.ExpiresAt, own.StreamTTL = 0, false
	}
	var props spool.Properties
	if rec.Properties != nil {
		props = *rec.Properties
	}
	users := make([]spool.UserProperty, 0, len(props.User)+3)
	for _, u := range props.User {
		if u.Name != Header && u.Name != HeaderID && u.Name != HeaderReceivedAt {
			users = append(users, u)
		}
	}
	props.User = append(users,
		spool.UserProperty{Name: Header, Value: l.Job},
		spool.UserProperty{Name: HeaderID, Value: string(l.Who.AppendID(nil, rec.Partition, rec.Offset))},
		spool.UserProperty{Name: HeaderReceivedAt, Value: time.Unix(0, rec.ReceivedAt).UTC().Format(time.RFC3339Nano)},
	)
	own.Properties = &props
	return &own
}

func (l *Local) show(rec *spool.Record, topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.previews.Add(topic, len(rec.Payload), func() Sample { return SampleOf(rec, topic) })
}

// SampleOf is a sample without what only its way knows.
func SampleOf(rec *spool.Record, topic string) Sample {
	return Sample{
		Partition: int(rec.Partition), Offset: rec.Offset, ReceivedAt: time.Unix(0, rec.ReceivedAt).UTC(), MQTTTopic: rec.Topic,
		ClientID: rec.ClientID, Topic: topic, Bytes: len(rec.Payload),
	}
}

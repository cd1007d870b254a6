package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// A dead letter is a record of the dead-letter stream: the record that Kafka will not take with its payload, client ID, time
// and properties as they were, but for
//
//	topic     $forebay/deadletter/<route>   no subscriber of the record's topic gets it a second time
//	expiry    none                          it was in time when Kafka refused it
//
// and with two user properties behind those of the device, always in this order:
//
//	forebay.topic         the record's topic
//	forebay.dead_letter   a deadMeta as JSON
const (
	deadTopicPrefix   = "$forebay/deadletter/"
	deadTopicProperty = "forebay.topic"
	deadMetaProperty  = "forebay.dead_letter"
	deadVersion       = 1

	maxDeadError = 1 << 10 // of the error's text: brokers quote what they refuse
)

// deadMeta is what is known about a dead letter beside the record.
type deadMeta struct {
	Version        int          `json:"v"`
	At             time.Time    `json:"at"`
	Route          string       `json:"route"`
	Upstream       string       `json:"upstream"`
	Stream         string       `json:"stream"`
	Partition      uint16       `json:"partition"`
	Offset         spool.Offset `json:"offset"`
	ID             string       `json:"id"`
	ExpiresAt      time.Time    `json:"expires_at,omitzero"`
	KafkaTopic     string       `json:"kafka_topic"`
	KafkaPartition int32        `json:"kafka_partition"`
	Reason         string       `json:"reason"`
	Error          string       `json:"error"`
	Hint           string       `json:"hint,omitempty"`
	Attempts       int          `json:"attempts"`

	Downlink *deadIncoming `json:"downlink,omitempty"` // of a record that a downlink could not publish; Route is the downlink then
}

// deadRecord makes the dead letter of rec.
func deadRecord(rec *spool.Record, meta deadMeta) (*spool.Record, error) {
	dead := *rec
	dead.Topic, dead.ExpiresAt, dead.StreamTTL = deadTopicPrefix+meta.Route, 0, false
	text, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	props := spool.Properties{}
	if rec.Properties != nil {
		props = *rec.Properties
	}
	props.User = append(props.User[:len(props.User):len(props.User)],
		spool.UserProperty{Name: deadTopicProperty, Value: rec.Topic},
		spool.UserProperty{Name: deadMetaProperty, Value: string(text)})
	dead.Properties = &props
	return &dead, nil
}

// splitDead is deadRecord the other way round: the record as it was, at its own place, and what is known about it.
func splitDead(dead *spool.Record) (*spool.Record, deadMeta, error) {
	var meta deadMeta
	bad := func(why string) (*spool.Record, deadMeta, error) {
		return nil, meta, fmt.Errorf("offset %d of partition %d is no dead letter: %s", dead.Offset, dead.Partition, why)
	}
	if dead.Properties == nil || len(dead.Properties.User) < 2 {
		return bad("user properties are missing")
	}
	props := *dead.Properties
	n := len(props.User) - 2
	topic, text := props.User[n], props.User[n+1]
	if topic.Name != deadTopicProperty || text.Name != deadMetaProperty {
		return bad("its last user properties are not those of the gateway")
	}
	if err := json.Unmarshal([]byte(text.Value), &meta); err != nil {
		return bad(err.Error())
	}
	if meta.Version != deadVersion {
		return nil, meta, fmt.Errorf("dead letter of version %d: %w", meta.Version, spool.ErrUnsupported)
	}
	rec := *dead
	rec.Topic, rec.Partition, rec.Offset = topic.Value, meta.Partition, meta.Offset
	if !meta.ExpiresAt.IsZero() {
		rec.ExpiresAt = meta.ExpiresAt.UnixNano()
	}
	props.User = props.User[:n:n]
	rec.Properties = &props
	return &rec, meta, nil
}

// bury makes dead letters of the records that hold their lanes.
func (f *feeder) bury(ctx context.Context) {
	f.mu.Lock()
	var lanes []*lane
	for _, l := range f.lanes {
		if l.poison && !time.Now().Before(l.notBefore) {
			lanes = append(lanes, l)
		}
	}
	f.mu.Unlock()
	for _, l := range lanes {
		f.mu.Lock()
		at, v, attempts := l.next, l.verdict, l.attempts
		f.mu.Unlock()
		kept, err := f.buryOne(ctx, l, at, v, attempts)
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		if err != nil {
			// A dead letter that cannot be kept must not be lost: the lane waits for room.
			l.verdict.Err, l.verdict.Hint = err, "make room in the spool for the dead-letter stream"
			l.failures++
			if !l.held {
				l.held, l.heldSince = true, time.Now()
				f.log.Error("dead letter cannot be stored; its lane is held", "topic", l.out.topic.Name, "kafka_partition", l.partition,
					"offset", at, "err", err)
			}
			l.retryIn(backoff(faultBackoff, maxFault, l.failures))
			f.mu.Unlock()
			continue
		}
		l.poison, l.held, l.failures, l.attempts = false, false, 0, 0
		l.next, l.nextTime = at+1, 0
		l.progress = time.Now()
		if kept {
			l.out.owed--
			f.r.counts.deadLettered.Add(1)
			f.log.Warn("record is a dead letter: kafka will not take it", "topic", l.out.topic.Name, "kafka_partition", l.partition,
				"offset", at, "reason", v.Reason, "err", v.Err, "hint", v.Hint)
		}
		signal(f.saveC)
		signal(f.catchC)
		f.mu.Unlock()
	}
}

// buryOne reads the record at an offset again and returns when it is durable in the dead-letter stream; false when its time
// is over, or retention has taken it.
func (f *feeder) buryOne(ctx context.Context, l *lane, at spool.Offset, v kafka.Verdict, attempts int) (kept bool, err error) {
	if f.r.dead {
		return true, nil // it is a dead letter and stays one
	}
	r, err := f.source.NewReader(f.r.cfg.Stream, f.partition, at)
	if err != nil {
		return false, err
	}
	defer r.Close()
	b, ok, err := r.TryNext()
	if err != nil {
		return false, err
	}
	if !ok {
		return false, errors.New("the record is not in the spool any more")
	}
	for i := range b.Records {
		if b.Records[i].Offset == at {
			return true, f.appendDead(ctx, l, &b.Records[i], v, attempts)
		}
	}
	return false, nil
}

func (f *feeder) appendDead(ctx context.Context, l *lane, rec *spool.Record, v kafka.Verdict, attempts int) error {
	meta := f.deadMeta(rec, v.Reason, v.Hint, v.Err)
	meta.KafkaTopic, meta.KafkaPartition, meta.Attempts = l.out.topic.Name, l.partition, attempts
	dead, err := deadRecord(rec, meta)
	if err != nil {
		return err
	}
	done := make(durable, 1)
	if err := f.source.Append(ctx, spool.Entry{Record: dead, Stream: f.deadLetters, Done: done}); err != nil {
		return err
	}
	return done.wait(ctx)
}

// deadMeta is what is known about a dead letter that never was on its way.
func (f *feeder) deadMeta(rec *spool.Record, reason, hint string, err error) deadMeta {
	meta := deadMeta{
		Version: deadVersion, At: f.wall().UTC(), Route: f.r.cfg.Name, Upstream: f.up.Name(),
		Stream: f.r.cfg.Stream, Partition: rec.Partition, Offset: rec.Offset, ID: f.r.id(rec),
		KafkaPartition: -1, Reason: reason, Hint: hint,
	}
	if rec.ExpiresAt != 0 {
		meta.ExpiresAt = time.Unix(0, rec.ExpiresAt).UTC()
	}
	if err != nil {
		meta.Error = strings.ToValidUTF8(err.Error()[:min(len(err.Error()), maxDeadError)], "")
	}
	return meta
}

// durable receives what became of an entry. It has room for it.
type durable chan error

// Durable implements spool.Completion.
func (d durable) Durable(rec *spool.Record, err error) {
	if err == nil && rec != nil && rec.Offset == spool.NoOffset {
		err = errors.New("the dead-letter stream dropped the record: its when_full must not be drop_new")
	}
	d <- err
}

func (d durable) wait(ctx context.Context) error {
	select {
	case err := <-d:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// The headers that a route of the dead-letter stream adds to those of the record.
func addDeadHeaders(m *kafka.Message, meta *deadMeta) {
	m.AddHeader("forebay.dead.route", []byte(meta.Route))
	m.AddHeader("forebay.dead.reason", []byte(meta.Reason))
	m.AddHeader("forebay.dead.error", []byte(meta.Error))
	m.AddHeader("forebay.dead.attempts", strconv.AppendInt(nil, int64(meta.Attempts), 10))
	m.AddHeader("forebay.dead.topic", []byte(meta.KafkaTopic))
	m.AddHeader("forebay.dead.partition", strconv.AppendInt(nil, int64(meta.KafkaPartition), 10))
	m.AddHeader("forebay.dead.id", []byte(meta.ID))
	m.AddHeader("forebay.dead.at", meta.At.AppendFormat(nil, time.RFC3339Nano))
}

package replay

import (
	"context"
	"errors"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// Log is where jobs are remembered, and where those to MQTT publish. *spool.Spool is one.
type Log interface {
	Streams() []spool.StreamInfo
	Load(space string, fn func(key string, value []byte) error) error
	Append(ctx context.Context, e spool.Entry) error
}

// Source is what jobs read: the log, and what was taken out of it and is kept elsewhere, as one.
type Source interface {
	// Bounds are the first offset of a partition that is anywhere, and the durable log end.
	Bounds(stream string, partition int) (first, end spool.Offset)

	// NewReader starts at an offset. What m does not select may be left out.
	NewReader(stream string, partition int, from spool.Offset, m spool.Match) (Reader, error)

	// Outside are offsets whose records were certainly not received in [since, until); zero is no bound. It may know none.
	Outside(stream string, partition int, since, until time.Time) ([]Range, error)
}

// Reader reads one partition in the order of offsets. Its batches speak for every offset: what is gone comes as a gap.
type Reader interface {
	Next(ctx context.Context) (spool.Batch, error)
	Close()
}

// Sinks make the ways that records go.
type Sinks interface {
	// Check says what is wrong with where a request wants to go; the stream of the request may be empty: then it is
	// returned, when the target has one of its own.
	Check(r Request) (stream string, err error)

	// Open makes the way of a job. It does not wait for the other end.
	Open(r Request, job string) (Sink, error)
}

// Sink is the way of one job. Send is called for several partitions at the same time.
type Sink interface {
	// Send delivers the page's records in their order, and returns when each has an outcome. It waits as long as the way is closed. With
	// an error, which is ctx's or one that trying again does not help, any of them may have been sent.
	Send(ctx context.Context, p *Page) (Tally, error)

	// Problem is what it waits for that somebody may have to do something about; nil when it goes on.
	Problem() *Problem

	Close()
}

// Placed is a Sink whose upstream is not always the same: a route goes on with another one.
type Placed interface{ Upstream() string }

// Previewer is a Sink of a dry run.
type Previewer interface{ Preview() Preview }

// Page is what is sent in one piece.
type Page struct {
	Partition int
	Records   []spool.Record // read-only

	// mark is the state that says: the first n records have the outcomes t. took says that it is on its way to the disk with the
	// last of them: whatever becomes of the rest, the job goes on behind them.
	mark func(n int, t Tally) spool.Change
	took func(n int, t Tally)
}

// Tally counts outcomes of records.
type Tally struct {
	Sent    uint64 `json:"sent"`     // acknowledged
	Bytes   uint64 `json:"bytes"`    // of the payloads of those
	LeftOut uint64 `json:"left_out"` // by the mapping of the route
	Refused uint64 `json:"refused"`  // Kafka, or a mapping, will never take them

	Refusals []Refusal `json:"-"` // some of those
}

func (t *Tally) add(o Tally) {
	t.Sent += o.Sent
	t.Bytes += o.Bytes
	t.LeftOut += o.LeftOut
	t.Refused += o.Refused
}

// Refuse counts a record that is refused.
func (t *Tally) Refuse(rec *spool.Record, reason string, err error) {
	t.Refused++
	if len(t.Refusals) < maxRefusals {
		r := Refusal{Partition: int(rec.Partition), Offset: rec.Offset, Topic: rec.Topic, Reason: reason}
		if err != nil {
			r.Error = err.Error()
		}
		t.Refusals = append(t.Refusals, r)
	}
}

// Refusal is a record that will never be taken.
type Refusal struct {
	Partition int          `json:"partition"`
	Offset    spool.Offset `json:"offset"`
	Topic     string       `json:"topic"`
	Reason    string       `json:"reason"`
	Error     string       `json:"error,omitempty"`
}

const maxRefusals = 10 // that a job shows

// Problem is what a job waits for.
type Problem struct {
	Reason string    `json:"reason"`
	Error  string    `json:"error,omitempty"`
	Hint   string    `json:"hint,omitempty"`
	Since  time.Time `json:"since,omitzero"`
}

// durable receives what became of an entry. It has room for it.
type durable chan error

// Durable implements spool.Completion.
func (d durable) Durable(rec *spool.Record, err error) {
	if err == nil && rec != nil && rec.Offset == spool.NoOffset {
		err = errDropped
	}
	d <- err
}

var errDropped = errors.New("the stream drops new records: its when_full must not be drop_new")

func (d durable) wait(ctx context.Context) error {
	select {
	case err := <-d:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

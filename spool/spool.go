package spool

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Options are what the program wires; zero values mean: no log, a private registry, the operating system, the system clock.
type Options struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	FS         vfs.FS           // for the journal and the lock; bbolt files always are on the operating system's
	Now        func() time.Time // with its monotonic reading, like time.Now
}

// Spool is an open spool directory. Its methods may be called by many goroutines at the same time.
type Spool struct{}

// Entry is what one Append hands over: a record, changes of state, or both in one atomic piece.
type Entry struct {
	Record  *Record    // nil when only state changes
	Stream  string     // "" is chosen by the streams' topic filters
	Changes []Change   // become durable in the same atomic group as Record
	Done    Completion // nil is fire and forget
}

// Completion is told when an entry is durable.
type Completion interface {
	// Durable is called exactly once for each accepted entry that has a Completion, on the spool's commit goroutine, in
	// the order of acceptance. It must not block, nor wait for anything of the spool.
	//
	// With err == nil the record is synced, and rec.Offset and rec.Partition are set; rec is nil when the entry had none.
	// A record that policy drop_new left out has rec.Offset == NoOffset: the operator wants its publisher acknowledged,
	// and it is counted as dropped. With an error nothing of the entry may be acknowledged.
	Durable(rec *Record, err error)
}

// Open takes the directory, recovers it and starts the spool. A directory that does not exist is made. Damage does not
// stop it: what is damaged is set aside, logged, and readers see a Gap.
func Open(cfg Config, opts Options) (*Spool, error) { return nil, errors.ErrUnsupported }

// Close stops accepting, makes durable what was accepted, moves it to segments, and gives the directory back. A second
// call waits for the first and returns the same.
func (s *Spool) Close() error { return nil }

// Append queues e. It blocks while the queue is full, or while the stream has no room and its policy is block, until ctx
// ends. The order of acceptance is the order in the log. An error means that e was not accepted, and Done will not be
// called: ErrFull under policy reject, ErrTooLarge, ErrInvalid, ErrUnknownStream, ErrClosed, ErrFailed, or ctx's.
func (s *Spool) Append(ctx context.Context, e Entry) error { return nil }

// OnGroup registers fn to run on the commit goroutine each time after all completions of a group have run, so that many
// acknowledgements can leave in one write. It must not block.
func (s *Spool) OnGroup(fn func()) {}

// Now is the spool's clock: the wall clock when the spool was opened (never before what the spool has seen earlier), and
// the monotonic clock from there. It does not step when the wall clock does. ReceivedAt and ExpiresAt are in its terms.
func (s *Spool) Now() time.Time { return time.Time{} }

// StreamInfo names a stream.
type StreamInfo struct {
	Name       string
	Partitions int
}

// Streams lists the streams in the order of the configuration, default last when the configuration does not name it.
func (s *Spool) Streams() []StreamInfo { return nil }

// StreamFor is the stream that takes a topic.
func (s *Spool) StreamFor(topic string) string { return "" }

// Bounds are the log start and the durable log end (the next offset) of a partition; both 0 when there is no such one.
func (s *Spool) Bounds(stream string, partition int) (start, end Offset) { return 0, 0 }

// SeekTime is the offset of the first record that was received at t or later; the log end when there is none.
func (s *Spool) SeekTime(stream string, partition int, t time.Time) (Offset, error) { return 0, nil }

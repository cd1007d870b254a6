package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/spool/crypt"
	"github.com/forebay-gateway/forebay/spool/journal"
	"github.com/forebay-gateway/forebay/spool/segment"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Options are what the program wires; zero values mean: no log, a private registry, the operating system, the system clock.
type Options struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	FS         vfs.FS           // for the journal and the lock; bbolt files always are on the operating system's
	Now        func() time.Time // with its monotonic reading, like time.Now

	// Keep is asked before retention removes a sealed segment that everybody has had, because it may not be stored elsewhere yet; nil
	// keeps none. It must not block, nor call the spool.
	Keep func(SegmentID) Keep

	Monotonic func() time.Duration // time that never steps; nil is the monotonic reading of Now
	Boot      func() bootTime      // nil is the system's, and with Now none

	system bool // Now is the system's clock, of which the monotonic half is read alone where that is enough
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.Boot == nil && o.Now == nil {
		o.Boot = systemBoot
	}
	if o.Boot == nil {
		o.Boot = func() bootTime { return bootTime{} }
	}
	if o.Now == nil {
		o.Now, o.system = time.Now, true
	}
	return o
}

// Entry is what one Append hands over: a record, changes of state, or both in one atomic piece.
type Entry struct {
	Record  *Record    // nil when only state changes
	Stream  string     // "" is chosen by the streams' topic filters
	Changes []Change   // become durable in the same atomic group as Record
	Done    Completion // nil is fire and forget

	// Reserve lets the record take from a reserve while there is no room, whatever the stream's policy: for what must not hold up
	// others, such as a will, or makes room itself. ErrFull says that the reserve is used up; Append never waits for it.
	Reserve bool
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

// Spool is an open spool directory. Its methods may be called by many goroutines at the same time.
type Spool struct {
	cfg     Config
	log     *slog.Logger
	fs      vfs.FS
	clock   *clock
	boot    func() bootTime
	metrics *metrics
	keep    func(SegmentID) Keep
	codec   segment.Codec
	keys    *crypt.Keyring
	pool    *segment.Pool // of sealed segments

	lock    io.Closer
	meta    *meta
	journal *journal.Journal
	tail    *tail
	cursors *cursorSet
	streams []*stream // fixed after Open
	byName  map[string]*stream
	forks   []Fork // fixed after Open

	groupCap     int   // payload bytes of a group
	maxEntry     int   // payload bytes of one entry
	unappliedMax int64 // memory for what is in the journal only

	// mu guards what producers and the committer share. Nothing is waited for while it is held.
	mu        sync.Mutex
	waiting   []*group      // the last one is being filled
	spare     []*group      // for reuse
	queued    int64         // memory of waiting groups and of the one that is being written
	unapplied int64         // memory of what is durable in the journal only
	reserved  int64         // memory of records that came by Entry.Reserve since there was room
	groups    uint64        // written
	room      chan struct{} // closed when there may be more room; nil when nobody waits
	failed    error
	gaveUp    chan struct{} // closed when failed is set
	closing   bool

	work          chan struct{} // a group waits
	cursorWork    chan struct{} // a cursor has changed
	cursorsDue    atomic.Bool
	released      chan struct{} // the journal may have room again
	committerDone chan struct{}
	frame         []byte // the committer's

	onGroupMu sync.Mutex
	onGroup   []func()
	onSealed  []func() // likewise guarded

	materialiseMu sync.Mutex       // held while records move to segments. Taken after cleanMu
	roundBegan    time.Time        // guarded by materialiseMu, as the next two
	busy          bool             // see busyNow
	batches       []segment.Batch  // memory for the next round
	metaChanges   []pendingChanges // taken from the tail, not yet in meta.db; guarded by materialiseMu
	metaApplied   uint64           // likewise
	metaWritten   int64            // likewise, time
	releasedOnce  bool             // likewise: the journal was told what it may recycle
	materialNow   chan struct{}
	materialWaits chan struct{}
	hurry         atomic.Bool
	unappliedRaw  atomic.Int64 // bytes of groups since the last round

	pins            []pin       // fixed after Open
	gone            atomic.Bool // the files in the directory are others
	cleanMu         sync.Mutex  // held by a round of the janitor
	keptSince       keptSince   // likewise
	hot             hot         // the janitor's
	hashed          atomic.Bool // a hash is not in the catalog yet
	nextHash        int64       // likewise: when a segment of an earlier version gets its hash
	nextLook        int         // likewise: the segment whose file is looked after next
	janitorNow      chan struct{}
	full            atomic.Bool // no room on the disk
	noSpace         atomic.Bool // the last round of the materialiser met a full disk
	diskFree        atomic.Int64
	quarantineBytes atomic.Int64
	quarantined     atomic.Uint64
	clockTold       int64 // the janitor's: the skew that the log knows
	throttle        throttle

	healthMu       sync.Mutex
	journalErr     error
	materialiseErr error
	fullWhy        string
	aside          aside
	repaired       chan struct{} // closed after damaged segments were set aside

	closeOnce sync.Once
	closeErr  error
	closed    chan struct{} // readers end
	abandon   chan struct{} // the committer gives up waiting
	wg        sync.WaitGroup
	stopRest  context.CancelFunc
	restDone  chan struct{}
}

// Open takes the directory, recovers it and starts the spool. A directory that does not exist is made. Damage does not
// stop it: what is damaged is set aside, logged, and readers see a Gap.
func Open(cfg Config, opts Options) (*Spool, error) {
	if cfg.Dir == "" {
		return nil, errors.New("spool: open: dir is not set")
	}
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("spool: open: %w", err)
	}
	s := newSpool(cfg, opts.withDefaults())
	if err := s.recover(opts.withDefaults()); err != nil {
		s.metrics.unregister()
		return nil, errors.Join(fmt.Errorf("spool: open %s: %w", cfg.Dir, err), s.release())
	}
	s.pinFiles()
	s.start()
	return s, nil
}

// Free is nil when nobody has the spool in dir, or there is none. It changes nothing. Its error wraps ErrInUse, and names who.
func Free(dir string) error {
	lock, err := vfs.LockShared(filepath.Join(dir, "LOCK"))
	switch {
	case errors.Is(err, vfs.ErrLocked):
		return fmt.Errorf("spool: %w: %w", ErrInUse, err)
	case err != nil: // there is none; or Open says more
		return nil
	}
	return lock.Close()
}

func newSpool(cfg Config, opts Options) *Spool {
	s := &Spool{
		cfg:           cfg,
		log:           opts.Logger,
		fs:            opts.FS,
		keep:          opts.Keep,
		boot:          opts.Boot,
		byName:        make(map[string]*stream),
		tail:          &tail{limit: int64(cfg.TailSize)},
		unappliedMax:  int64(cfg.TailSize) / 4 * 3,
		work:          make(chan struct{}, 1),
		cursorWork:    make(chan struct{}, 1),
		released:      make(chan struct{}, 1),
		committerDone: make(chan struct{}),
		materialNow:   make(chan struct{}, 1),
		materialWaits: make(chan struct{}, 1),
		janitorNow:    make(chan struct{}, 1),
		repaired:      make(chan struct{}),
		gaveUp:        make(chan struct{}),
		closed:        make(chan struct{}),
		abandon:       make(chan struct{}),
		restDone:      make(chan struct{}),
		keptSince:     make(keptSince),
	}
	s.pool = segment.NewPool(openSegments())
	s.codec, _ = segment.ParseCodec(cfg.Segment.Codec) // Validate has seen it
	s.cursors = newCursorSet(s)
	return s
}

func (s *Spool) start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.stopRest = cancel
	go s.commitLoop()
	s.wg.Go(func() { s.materialiseLoop(ctx.Done()) })
	s.wg.Go(func() { s.janitorLoop(ctx) })
}

const closeDeadline = 10 * time.Second // for a journal that waits for room; what was not acknowledged then, never is

// Close stops accepting, makes durable what was accepted, moves it to segments, and gives the directory back. A second
// call waits for the first and returns the same.
func (s *Spool) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closing = true
		s.roomChangedLocked()
		s.mu.Unlock()
		s.wakeCommitter()
		deadline := time.AfterFunc(closeDeadline, func() { close(s.abandon) })
		<-s.committerDone
		deadline.Stop()
		close(s.closed)
		s.stopRest()
		s.wg.Wait()
		if err := s.materialise(true); errors.Is(err, errGone) {
			s.log.Error("what is not in segments is lost with the files that were removed", "err", err)
		} else if err != nil {
			s.log.Warn("not all records are in segments; they are in the journal and follow at the next start", "err", err)
		}
		s.closeErr = s.release()
		s.metrics.unregister()
		s.log.Info("spool closed")
	})
	return s.closeErr
}

// release closes what is open, the lock last.
func (s *Spool) release() error {
	var errs []error
	if s.journal != nil {
		errs = append(errs, s.journal.Close())
	}
	for _, st := range s.streams {
		for _, f := range st.segments() {
			errs = append(errs, f.close())
		}
	}
	errs = append(errs, s.meta.close())
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("spool: close: %w", err)
	}
	return nil
}

// OnGroup registers fn to run on the commit goroutine each time after all completions of a group have run, so that many
// acknowledgements can leave in one write. It must not block.
func (s *Spool) OnGroup(fn func()) {
	s.onGroupMu.Lock()
	defer s.onGroupMu.Unlock()
	s.onGroup = append(s.onGroup[:len(s.onGroup):len(s.onGroup)], fn)
}

// Now is the wall clock. ReceivedAt and ExpiresAt are in its terms: when it is set, the records that come from the spool from then on
// have their ExpiresAt moved with it, so that what is left of their time stays the same.
func (s *Spool) Now() time.Time { return time.Unix(0, s.clock.wall()) }

// OwnNow is the spool's own time: it never steps and never goes back, not over restarts either. Ages and ends that outlive the process are
// counted in it.
func (s *Spool) OwnNow() time.Time { return time.Unix(0, s.clock.now()) }

// StreamInfo names a stream.
type StreamInfo struct {
	Name       string
	Partitions int
}

// Streams lists the streams in the order of the configuration, default last when the configuration does not name it, then
// those that are only on the disk.
func (s *Spool) Streams() []StreamInfo {
	infos := make([]StreamInfo, len(s.streams))
	for i, st := range s.streams {
		infos[i] = StreamInfo{Name: st.name, Partitions: len(st.parts)}
	}
	return infos
}

// StreamFor is the stream that takes a topic.
func (s *Spool) StreamFor(topic string) string { return s.streamFor(topic).name }

// PlaceFor is the stream and partition that a record goes to, unless its entry names a stream.
func (s *Spool) PlaceFor(r *Record) (stream string, partition int) {
	p := s.streamFor(r.Topic).partitionFor(r)
	return p.st.name, p.num
}

// Bounds are the log start and the durable log end (the next offset) of a partition; both 0 when there is no such one.
func (s *Spool) Bounds(stream string, partition int) (start, end Offset) {
	p := s.partition(stream, partition)
	if p == nil {
		return 0, 0
	}
	return p.bounds()
}

func (s *Spool) partition(stream string, partition int) *partition {
	st := s.byName[stream]
	if st == nil || partition < 0 || partition >= len(st.parts) {
		return nil
	}
	return st.parts[partition]
}

func (s *Spool) path(elem ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir}, elem...)...)
}

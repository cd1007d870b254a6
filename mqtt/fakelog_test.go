package mqtt

import (
	"context"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// fakeLog is a Log of one partition in memory whose Append can be made to fail, to wait, or to commit late.
type fakeLog struct {
	mu      sync.Mutex
	refuse  func(e spool.Entry) error // before acceptance
	block   chan struct{}             // while not nil, Append waits for its end
	hold    bool                      // nothing is committed
	fail    error                     // of every commit
	queue   []spool.Entry
	records []spool.Record
	state   map[string]map[string][]byte
	more    chan struct{} // closed and replaced when records come
	onGroup []func()
	shown   func([]spool.Entry) // is called when readers see a group and its completions have not run
	cursor  spool.Offset
	protect bool
	closed  bool
	wake    chan struct{}
	done    chan struct{}
}

func newFakeLog() *fakeLog {
	l := &fakeLog{
		state: make(map[string]map[string][]byte), more: make(chan struct{}), wake: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	go l.commit()
	return l
}

func (l *fakeLog) set(fn func()) {
	l.mu.Lock()
	fn()
	l.mu.Unlock()
	l.kick()
}

func (l *fakeLog) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *fakeLog) Append(ctx context.Context, e spool.Entry) error {
	l.mu.Lock()
	block := l.block
	l.mu.Unlock()
	if block != nil && e.Record != nil && !e.Reserve {
		select {
		case <-block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return spool.ErrClosed
	}
	if l.refuse != nil {
		if err := l.refuse(e); err != nil {
			return err
		}
	}
	l.queue = append(l.queue, e)
	l.kick()
	return nil
}

func (l *fakeLog) commit() {
	defer close(l.done)
	for range l.wake {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return
		}
		if l.hold {
			l.mu.Unlock()
			continue
		}
		group, fail := l.queue, l.fail
		l.queue = nil
		if fail == nil {
			for i := range group {
				l.apply(&group[i])
			}
			close(l.more)
			l.more = make(chan struct{})
		}
		fns, shown := l.onGroup, l.shown
		l.mu.Unlock()
		if shown != nil {
			shown(group)
		}
		for _, e := range group {
			if e.Done != nil {
				e.Done.Durable(e.Record, fail)
			}
		}
		for _, fn := range fns {
			fn()
		}
	}
}

func (l *fakeLog) apply(e *spool.Entry) {
	if e.Record != nil {
		e.Record.Offset = spool.Offset(len(l.records))
		l.records = append(l.records, *e.Record)
	}
	for _, c := range e.Changes {
		if l.state[c.Space] == nil {
			l.state[c.Space] = make(map[string][]byte)
		}
		if c.Value == nil {
			delete(l.state[c.Space], c.Key)
		} else {
			l.state[c.Space][c.Key] = c.Value
		}
	}
}

func (l *fakeLog) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.kick()
	<-l.done
}

func (l *fakeLog) OnGroup(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onGroup = append(l.onGroup, fn)
}

func (l *fakeLog) Load(space string, fn func(string, []byte) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, v := range l.state[space] {
		if err := fn(k, v); err != nil {
			return err
		}
	}
	return nil
}

func (l *fakeLog) Streams() []spool.StreamInfo {
	return []spool.StreamInfo{{Name: spool.DefaultStream, Partitions: 1}}
}

func (l *fakeLog) StreamFor(string) string { return spool.DefaultStream }

func (l *fakeLog) PlaceFor(*spool.Record) (string, int) { return spool.DefaultStream, 0 }

func (l *fakeLog) Bounds(string, int) (start, end spool.Offset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return 0, spool.Offset(len(l.records))
}

func (l *fakeLog) SeekTime(_ string, _ int, t time.Time) (spool.Offset, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.records {
		if l.records[i].ReceivedAt >= t.UnixNano() {
			return spool.Offset(i), nil
		}
	}
	return spool.Offset(len(l.records)), nil
}

func (l *fakeLog) RecordSize(string) int64 { return 100 }

func (l *fakeLog) NewReader(_ string, _ int, from spool.Offset) (LogReader, error) {
	return &fakeReader{l, from}, nil
}

type fakeCursor struct{ l *fakeLog }

func (c fakeCursor) Commit(_ int, next spool.Offset) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.cursor = max(c.l.cursor, next)
}

func (l *fakeLog) OpenCursor(_ context.Context, _, _ string, o spool.CursorOptions) (LogCursor, error) {
	l.protect = o.Protect
	return fakeCursor{l}, nil
}

type fakeReader struct {
	l  *fakeLog
	at spool.Offset
}

func (r *fakeReader) Next(ctx context.Context) (spool.Batch, error) {
	for {
		r.l.mu.Lock()
		more := r.l.more
		r.l.mu.Unlock()
		if b, ok, err := r.TryNext(); ok || err != nil {
			return b, err
		}
		select {
		case <-ctx.Done():
			return spool.Batch{}, ctx.Err()
		case <-more:
		}
	}
}

func (r *fakeReader) TryNext() (spool.Batch, bool, error) {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	if int(r.at) >= len(r.l.records) {
		return spool.Batch{}, false, nil
	}
	end := min(int(r.at)+50, len(r.l.records))
	b := spool.Batch{Stream: spool.DefaultStream, First: r.at, Next: spool.Offset(end), Records: r.l.records[r.at:end]}
	r.at = b.Next
	return b, true, nil
}

func (r *fakeReader) Seek(o spool.Offset)  { r.at = o }
func (r *fakeReader) Offset() spool.Offset { return r.at }
func (r *fakeReader) Close()               {}

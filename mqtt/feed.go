package mqtt

import (
	"sync"

	"github.com/forebay-gateway/forebay/spool"
)

// feed is the reading of all lanes on behalf of a session or a share group. The owner's lock guards next, live and
// behind; the rest belongs to the one worker that serves the owner.
type feed struct {
	next   positions // next offset to deliver on each lane that is behind; on a live one, the end of what was delivered
	live   []bool    // the distributor serves the lane
	behind int       // lanes that are not live

	readers []LogReader // open while behind
	left    leftover
	turn    int // lane that is served first next time
	parks   int // how often the owner had no room while that lane was served
}

// leftover is the rest of a batch for which there was no room.
type leftover struct {
	lane int
	recs []spool.Record
	from spool.Offset // the feed's next offset then
	next spool.Offset // of the batch
}

// newFeed returns a feed that is behind on all lanes.
func newFeed(next positions) *feed {
	return &feed{next: next, live: make([]bool, len(next)), behind: len(next)}
}

// join makes a lane live.
func (f *feed) join(lane int) {
	if !f.live[lane] {
		f.live[lane] = true
		f.behind--
	}
}

// leave makes a lane behind, with next as the first offset to read.
func (f *feed) leave(lane int, next spool.Offset) {
	if f.live[lane] {
		f.live[lane] = false
		f.behind++
		f.next[lane] = next
	}
}

// feeder is who owns a feed.
type feeder interface {
	sync.Locker

	// feedLocked is the feed, nil when the owner wants nothing now.
	feedLocked() *feed

	// acceptLocked delivers what the owner wants of rec; false means that there is no room now, and that somebody will
	// schedule the owner when there is.
	acceptLocked(lane int, rec *spool.Record, enc *encoder) bool

	// passedLocked is told that everything on the lane below next has been read.
	passedLocked(lane int, next spool.Offset)

	name() string
}

// The records of one hold of the owner's lock, and the batches of one turn: others wait that long.
const (
	serveChunk   = 32
	serveBatches = 4
)

// serve reads what the feed is behind. It returns true when there is more to do now.
func (f *feed) serve(srv *Server, o feeder, enc *encoder) (more bool) {
	for i := range f.next {
		lane := (f.turn + i) % len(f.next)
		for n := 0; ; n++ {
			done, parked := f.step(srv, o, lane, enc)
			if parked {
				f.park(lane)
				return false
			}
			if done {
				break
			}
			if n == serveBatches {
				more = true
				break
			}
		}
	}
	f.turn = (f.turn + 1) % len(f.next)
	return more
}

// Windows that one lane may fill before another one has its turn. A lane keeps its turn for a while, because the rest of
// its batch is at hand; without an end to it the lanes behind it would wait until it has caught up.
const turnParks = 4

func (f *feed) park(lane int) {
	if f.turn != lane {
		f.turn, f.parks = lane, 0
	}
	if f.parks++; f.parks >= turnParks {
		f.turn, f.parks = (lane+1)%len(f.next), 0
	}
}

// step reads one batch of a lane. done means that the lane is live, parked that the owner has no room.
func (f *feed) step(srv *Server, o feeder, lane int, enc *encoder) (done, parked bool) {
	o.Lock()
	if o.feedLocked() != f {
		o.Unlock()
		return true, true
	}
	if f.live[lane] {
		o.Unlock()
		f.closeReader(lane)
		return true, false
	}
	next := f.next[lane]
	o.Unlock()

	recs, end, state := f.read(srv, o, lane, next)
	switch state {
	case readFailed:
		return true, false // the janitor schedules again
	case readEnd:
		done = f.rejoin(srv, o, lane)
		if done {
			f.closeReader(lane)
		}
		return done, false
	}
	for len(recs) > 0 {
		n := min(len(recs), serveChunk)
		taken := f.hand(srv, o, lane, recs[:n], enc)
		if taken > 0 {
			next = recs[taken-1].Offset + 1
		}
		recs = recs[taken:]
		if taken < n {
			f.left = leftover{lane: lane, recs: recs, from: next, next: end}
			return true, true
		}
	}
	o.Lock()
	defer o.Unlock()
	if o.feedLocked() != f {
		return true, true
	}
	if !f.live[lane] {
		f.next[lane] = max(f.next[lane], end)
		o.passedLocked(lane, f.next[lane])
	}
	return false, false
}

// hand delivers records under one hold of the lock and returns how many were taken.
func (f *feed) hand(srv *Server, o feeder, lane int, recs []spool.Record, enc *encoder) int {
	now := srv.now()
	o.Lock()
	defer o.Unlock()
	if o.feedLocked() != f {
		return 0
	}
	for i := range recs {
		rec := &recs[i]
		if rec.Offset < f.next[lane] {
			continue
		}
		enc.reset(rec, now)
		if !o.acceptLocked(lane, rec, enc) {
			return i
		}
		f.next[lane] = rec.Offset + 1
	}
	return len(recs)
}

type readState int

const (
	readSome readState = iota
	readEnd
	readFailed
)

// read returns the records from next on: the rest of the last batch, or a new one.
func (f *feed) read(srv *Server, o feeder, lane int, next spool.Offset) ([]spool.Record, spool.Offset, readState) {
	if l := f.left; len(l.recs) > 0 && l.lane == lane {
		f.left = leftover{}
		if l.from == next {
			return l.recs, l.next, readSome
		}
	}
	if recs, end, ok := srv.batches.get(lane, next); ok {
		return recs, end, readSome
	}
	r, err := f.reader(srv, lane, next)
	if err == nil {
		var b spool.Batch
		var ok bool
		b, ok, err = r.TryNext()
		if ok && err == nil {
			srv.batches.put(lane, next, &b)
		} else {
			srv.batches.put(lane, next, nil)
		}
		if err == nil {
			if !ok {
				return nil, 0, readEnd
			}
			if b.Gap != nil {
				srv.gap(srv.lanes.list[lane], o.name(), b.Gap)
			}
			return b.Records, b.Next, readSome
		}
	}
	srv.batches.put(lane, next, nil)
	srv.log.Warn("reading the spool for a subscriber, again soon", "stream", srv.lanes.list[lane].stream,
		"partition", srv.lanes.list[lane].partition, "offset", uint64(next), "err", err)
	f.closeReader(lane)
	return nil, 0, readFailed
}

func (f *feed) reader(srv *Server, lane int, next spool.Offset) (LogReader, error) {
	if f.readers == nil {
		f.readers = make([]LogReader, len(f.next))
	}
	if r := f.readers[lane]; r != nil {
		if r.Offset() != next {
			r.Seek(next)
		}
		return r, nil
	}
	l := srv.lanes.list[lane]
	r, err := srv.spool.NewReader(l.stream, l.partition, next)
	if err == nil {
		f.readers[lane] = r
	}
	return r, err
}

// rejoin makes the lane live when the feed has read as far as the distributor. Under the lane's lock the distributor is
// between two chunks: what is below pos was offered while this feed was behind and has been read from the log, what is
// above is offered from now on, and below next is skipped.
func (f *feed) rejoin(srv *Server, o feeder, lane int) (done bool) {
	l := srv.lanes.list[lane]
	l.mu.Lock()
	defer l.mu.Unlock()
	o.Lock()
	defer o.Unlock()
	if o.feedLocked() != f {
		return true
	}
	if f.next[lane] < l.position() {
		return false // more has come since
	}
	f.join(lane)
	return true
}

func (f *feed) closeReader(lane int) {
	if f.readers != nil && f.readers[lane] != nil {
		f.readers[lane].Close()
		f.readers[lane] = nil
	}
}

// close gives back what reading needs.
func (f *feed) close() {
	for lane := range f.readers {
		f.closeReader(lane)
	}
	f.readers, f.left = nil, leftover{}
}

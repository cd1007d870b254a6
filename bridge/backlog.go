package bridge

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// A route with drain: live_first that is behind puts what it has not delivered aside, as a backlog, and goes on with what comes from
// now on. A backlog is, for some partitions, a stretch of offsets that has cursors, positions of lanes and feeders of its own; with
// exactly_once also a transactional ID of its own.
//
// The invariant: an offset is of one feeder. A backlog's feeder sends nothing at or above the end of its stretch, the route's own one
// nothing below it; and what lanes had delivered above the route's cursor goes with the backlog, as positions of its lanes. So neither
// reading back nor a transaction's position can take a record of the one for one of the other, though both send to the same partitions.
//
// A split is made durable in this order: the backlog's cursors, which keep retention from its records; its lanes' positions; and
// then, in one step that makes it valid, its entry
//
//	key    <backlog>
//	value  1 <Unix time in nanoseconds since when> <partition>:<tail>-<end> ...
//
// where 1 is the version. Lanes may have positions below the tail. Positions of its lanes stand in the same space, with <backlog>/ before the key that they had. Only then the
// old positions of lanes go, and only then something is sent. Whatever of these steps a crash leaves is undone, or done again, by
// the next start: what has no entry is no backlog, and a position below the end of a backlog is none of the route's own lanes.
//
// The entry goes when everything is delivered, and the route's own cursor, which is behind it, is durable.
type backlog struct {
	id           string
	since        time.Time
	parts        map[int]span // by partition
	cursor, keep Cursor
	told         atomic.Bool // that it cannot be ended
}

const (
	backlogVersion = "1"

	// maxBacklogs is how many a route may have: each has lanes, which take a share of the upstream's memory. With so many the route
	// goes on oldest first until one is delivered.
	maxBacklogs = 4
)

// headerBacklog marks a record that comes after newer ones.
const headerBacklog = "forebay.backlog"

var isBacklog = []byte("true")

func backlogSpace(route string) string { return shortSpace("bridge-backlog/", route) }

func backlogCursor(route, id string) string { return routeCursor(route) + "/backlog/" + id }

// offsets lists them by partition.
func (bl *backlog) offsets() string {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(bl.parts)) {
		fmt.Fprintf(&b, " %d:%d-%d", p, bl.parts[p].from, bl.parts[p].to)
	}
	return b.String()
}

// value is bl's entry.
func (bl *backlog) value() []byte {
	return fmt.Appendf(nil, "%s %d%s", backlogVersion, bl.since.UnixNano(), bl.offsets())
}

func parseBacklog(id, value string) (*backlog, error) {
	fields := strings.Fields(value)
	if len(fields) < 3 {
		return nil, errFields
	}
	if fields[0] != backlogVersion {
		return nil, spool.ErrUnsupported
	}
	ns, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return nil, err
	}
	bl := &backlog{id: id, since: time.Unix(0, ns), parts: make(map[int]span)}
	for _, field := range fields[2:] {
		var p int
		var s span
		if n, err := fmt.Sscanf(field, "%d:%d-%d", &p, &s.from, &s.to); n != 3 || err != nil || p < 0 || s.to < s.from {
			return nil, errFields
		}
		bl.parts[p] = s
	}
	return bl, nil
}

// backlogged are r's backlogs, the oldest first.
func (r *route) backlogged() []*backlog {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.backlogs)
}

func (r *route) setBacklogs(list []*backlog) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.backlogs = list
}

// splitAt is where the route's own feeder of a partition may begin.
func (r *route) splitAt(partition int) (at spool.Offset) {
	for _, bl := range r.backlogged() {
		at = max(at, bl.parts[partition].to)
	}
	return at
}

// loadBacklogs takes up what r has put aside, and clears away what a crash has left of one that is not valid yet, or not any more.
func (b *Bridge) loadBacklogs(ctx context.Context, r *route) error {
	var list []*backlog
	in := backlogSpace(r.cfg.Name)
	if err := b.source.Load(in, func(key string, value []byte) error {
		if strings.Contains(key, "/") {
			return nil
		}
		bl, err := parseBacklog(key, string(value))
		if err != nil {
			return fmt.Errorf("route %s: backlog %q = %q: %w", r.cfg.Name, key, value, err)
		}
		list = append(list, bl)
		return nil
	}); err != nil {
		return err
	}
	slices.SortFunc(list, func(a, c *backlog) int { return a.since.Compare(c.since) })
	for _, bl := range list {
		if err := b.openBacklog(ctx, r, bl); err != nil {
			return fmt.Errorf("route %s: %w", r.cfg.Name, err)
		}
		b.log.Info("route has a backlog", "route", r.cfg.Name, "backlog", bl.id, "since", bl.since, "offsets", bl.offsets())
	}
	r.setBacklogs(list)
	valid := func(id string) bool { return slices.ContainsFunc(list, func(bl *backlog) bool { return bl.id == id }) }
	for _, c := range b.source.Cursors() {
		id, ok := strings.CutPrefix(c.Name, backlogCursor(r.cfg.Name, ""))
		if id = strings.TrimSuffix(id, "/keep"); ok && !valid(id) {
			if err := b.source.DropCursor(ctx, c.Name); err != nil {
				return err
			}
		}
	}
	return dropState(ctx, b.source, in, func(key string) bool { id, _, _ := strings.Cut(key, "/"); return !valid(id) })
}

// openBacklog opens the cursors of bl. A new one holds all that the spool has until it is told better.
func (b *Bridge) openBacklog(ctx context.Context, r *route, bl *backlog) (err error) {
	name, o := backlogCursor(r.cfg.Name, bl.id), spool.CursorOptions{From: spool.Beginning, Protect: true}
	if bl.keep, err = b.source.OpenCursor(ctx, name+"/keep", r.cfg.Stream, o); err != nil {
		return err
	}
	bl.cursor, err = b.source.OpenCursor(ctx, name, r.cfg.Stream, o)
	return err
}

// dropBacklog takes away what belongs to bl, which has no entry.
func (b *Bridge) dropBacklog(ctx context.Context, r *route, bl *backlog) error {
	name := backlogCursor(r.cfg.Name, bl.id)
	for _, c := range []string{name, name + "/keep"} {
		if err := b.source.DropCursor(ctx, c); err != nil {
			return err
		}
	}
	return dropState(ctx, b.source, backlogSpace(r.cfg.Name), func(key string) bool { return strings.HasPrefix(key, bl.id+"/") })
}

// noteBacklog makes bl durable: from here on its records are its own.
func (b *Bridge) noteBacklog(ctx context.Context, r *route, bl *backlog) error {
	if err := b.openBacklog(ctx, r, bl); err != nil {
		return err
	}
	var copies, old []spool.Change
	if err := b.source.Load(space(r.cfg.Name), func(key string, value []byte) error {
		head, _, _ := strings.Cut(key, "/")
		p, err := strconv.Atoi(head)
		if _, has := bl.parts[p]; err != nil || !has {
			return nil
		}
		copies = append(copies, spool.Change{Space: backlogSpace(r.cfg.Name), Key: bl.id + "/" + key, Value: value})
		if fields := strings.Fields(string(value)); len(fields) < 2 || fields[1] != "a" { // what it says of the partition is good for both
			old = append(old, spool.Change{Space: space(r.cfg.Name), Key: key})
		}
		return nil
	}); err != nil {
		return err
	}
	for part := range slices.Chunk(copies, dropAtOnce) {
		if err := b.noted(ctx, part...); err != nil {
			return err
		}
	}
	if err := b.noted(ctx, spool.Change{Space: backlogSpace(r.cfg.Name), Key: bl.id, Value: bl.value()}); err != nil {
		return err
	}
	for part := range slices.Chunk(old, dropAtOnce) {
		if err := b.noted(ctx, part...); err != nil {
			b.log.Warn("old positions of lanes stay in the spool for now", "route", r.cfg.Name, "err", err) // who loads them sees that they are old
			break
		}
	}
	return nil
}

func newBacklog(since time.Time) *backlog {
	return &backlog{id: strings.ToLower(rand.Text()[:10]), since: since, parts: make(map[int]span)}
}

// passElsewhere moves bl's cursors where it has nothing to keep, so that they do not hold what others have delivered.
func (b *Bridge) passElsewhere(r *route, bl *backlog, drained func(partition int) bool) {
	for p := range r.partitions {
		if _, has := bl.parts[p]; has && !drained(p) {
			continue
		}
		_, end := b.source.Bounds(r.cfg.Stream, p)
		bl.cursor.Commit(p, end)
		bl.keep.Commit(p, end)
	}
}

// lowest is the lowest offset of f that is not delivered; of a backlog that is, beyond all.
func (f *feeder) lowest() spool.Offset {
	f.mu.Lock()
	defer f.mu.Unlock()
	low := f.pos
	if at := f.graves.at; len(at) > 0 {
		low = min(low, at[0])
	}
	for _, l := range f.lanes {
		low = min(low, l.unacked())
	}
	if low >= f.until {
		return spool.NoOffset
	}
	return low
}

// BacklogState is what a route with drain: live_first has put aside.
type BacklogState struct {
	Lag        uint64        `json:"lag_records"`      // part of the route's
	LiveLagAge float64       `json:"live_lag_seconds"` // age of the oldest record that is not delivered, backlogs left out
	Backlogs   []BacklogPart `json:"backlogs"`         // the oldest first
}

// BacklogPart is one backlog.
type BacklogPart struct {
	Since time.Time `json:"since"` // when it was put aside
	Lag   uint64    `json:"lag_records"`
}

// backlogState describes r's backlogs, nil when there are none.
func (r *route) backlogState(s *RouteStats) *BacklogState {
	if len(s.Backlogs) == 0 {
		return nil
	}
	return &BacklogState{Lag: s.Backlog, LiveLagAge: s.LiveLagAge.Seconds(), Backlogs: s.Backlogs}
}

package bridge

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// DeadLetters are the dead letters that nobody has dealt with yet. A dead letter stays in its stream, whatever the stream's
// retention, until it is redriven or purged; the cursor "deadletter" is the oldest that is not. Its methods may be called at
// the same time.
type DeadLetters struct {
	b      *Bridge
	stream string
	cursor Cursor

	mu       sync.Mutex // also serialises what is written
	marks    []marks    // by partition
	redriven map[string]uint64
	purged   map[string]uint64
}

// ErrNoDeadLetters means that the gateway keeps no dead letters.
var ErrNoDeadLetters = errors.New("there is no dead-letter stream: bridge.dead_letter_stream is none, or there are no routes and downlinks")

// ErrUnknownDeadLetter means that there is no such dead letter, or that it has been dealt with.
var ErrUnknownDeadLetter = errors.New("no such dead letter")

// DeadLetter is one record that Kafka would not take, or of which a downlink could make no publish.
type DeadLetter struct {
	ID             string    `json:"id"` // partition:offset in the dead-letter stream
	At             time.Time `json:"at"` // when it became one
	Route          string    `json:"route"`
	Upstream       string    `json:"upstream"`
	Reason         string    `json:"reason"`
	Error          string    `json:"error"`
	Hint           string    `json:"hint,omitempty"`
	Attempts       int       `json:"attempts"` // how many times it was sent
	KafkaTopic     string    `json:"kafka_topic"`
	KafkaPartition int32     `json:"kafka_partition"`
	Topic          string    `json:"topic"`
	ClientID       string    `json:"client_id"`
	ReceivedAt     time.Time `json:"received_at"`
	Stream         string    `json:"stream"`    // where the record was
	Partition      uint16    `json:"partition"` // in it
	Offset         uint64    `json:"offset"`
	Bytes          int       `json:"bytes"` // of the payload

	Downlink *deadIncoming `json:"downlink,omitempty"` // what else the Kafka record had, when Route is a downlink

	Record *spool.DumpLine `json:"record,omitempty"` // the record as it was; only when one is shown

	place deadPlace
	rec   *spool.Record
}

// deadPlace is where a dead letter is in its stream.
type deadPlace struct {
	partition int
	offset    spool.Offset
}

func (p deadPlace) String() string { return fmt.Sprintf("%d:%d", p.partition, p.offset) }

func parsePlace(s string) (p deadPlace, err error) {
	part, off, ok := strings.Cut(s, ":")
	n, err1 := strconv.ParseUint(part, 10, 16)
	o, err2 := strconv.ParseUint(off, 10, 64)
	if !ok || err1 != nil || err2 != nil {
		return p, fmt.Errorf("dead letter %q: want partition:offset, such as 0:17: %w", s, spool.ErrInvalid)
	}
	return deadPlace{int(n), spool.Offset(o)}, nil
}

// CheckDeadLetterID reports what is wrong with the form of an ID.
func CheckDeadLetterID(id string) error {
	_, err := parsePlace(id)
	return err
}

// DeadLetterQuery selects dead letters, the oldest first. Empty fields select all.
type DeadLetterQuery struct {
	ID       string // just this one
	Route    string
	Reason   string
	Filter   string // MQTT topic filter of the record's topic
	ClientID string
	Since    time.Time // of becoming a dead letter
	Until    time.Time
	At       string // where to go on: the Next of the page before
	Limit    int    // 0 is the most that a page has
}

// The bounds of a page.
const (
	maxDeadPage = 1000
	maxDeadTime = 3 * time.Second // of reading
)

// DeadLetterPage is a part of the dead letters.
type DeadLetterPage struct {
	Letters []DeadLetter `json:"dead_letters"`
	Next    string       `json:"next,omitempty"` // where to go on; empty at the end
}

// DeadLetterWork says what came of the dead letters of a page.
type DeadLetterWork struct {
	DryRun   bool               `json:"dry_run"`
	Selected int                `json:"selected"`
	Done     int                `json:"done"` // redriven, or purged
	Failed   []DeadLetterFailed `json:"failed"`
	Next     string             `json:"next,omitempty"` // where to go on; empty at the end
}

// DeadLetterFailed is one that stays a dead letter, and why.
type DeadLetterFailed struct {
	ID     string `json:"id"`
	Route  string `json:"route"`
	Reason string `json:"reason"`
	Error  string `json:"error"`
}

const deadLetterCursor = "deadletter"

func (b *Bridge) openDeadLetters(ctx context.Context) error {
	stream := b.cfg.deadLetters()
	if stream == "" {
		return nil
	}
	for _, s := range b.source.Streams() {
		if s.Name != stream {
			continue
		}
		cursor, err := b.source.OpenCursor(ctx, deadLetterCursor, stream, spool.CursorOptions{From: spool.Beginning, Protect: true})
		if err != nil {
			return fmt.Errorf("dead letters: %w", err)
		}
		d := &DeadLetters{
			b: b, stream: stream, cursor: cursor, marks: make([]marks, s.Partitions),
			redriven: make(map[string]uint64), purged: make(map[string]uint64),
		}
		for p := range d.marks {
			d.marks[p].partition = p
		}
		b.dead = d
		b.cursors = append(b.cursors, cursor)
		return b.source.Load(marksSpace, func(key string, value []byte) error {
			p, s, err := loadMark(key, value)
			if err == nil && p < len(d.marks) {
				d.marks[p], _ = d.marks[p].with([]span{s}, cursor.Position(p))
			}
			return err
		})
	}
	return nil
}

// DeadLetters are the gateway's dead letters, nil when it keeps none.
func (b *Bridge) DeadLetters() *DeadLetters { return b.dead }

// Waiting is the number of dead letters.
func (d *DeadLetters) Waiting() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := uint64(0)
	for p := range d.marks {
		start, end := d.b.source.Bounds(d.stream, p)
		if start = max(start, d.cursor.Position(p)); start < end {
			n += uint64(end - start)
		}
		for _, s := range d.marks[p].ranges {
			n -= uint64(s.to - s.from)
		}
	}
	return n
}

// List returns a page of dead letters.
func (d *DeadLetters) List(ctx context.Context, q DeadLetterQuery) (DeadLetterPage, error) {
	page := DeadLetterPage{Letters: []DeadLetter{}}
	next, err := d.scan(ctx, q, func(l DeadLetter) {
		l.rec = nil
		page.Letters = append(page.Letters, l)
	})
	page.Next = next
	return page, err
}

// Show returns one with its record.
func (d *DeadLetters) Show(ctx context.Context, id string) (DeadLetter, error) {
	if _, err := parsePlace(id); err != nil {
		return DeadLetter{}, err
	}
	var found []DeadLetter
	if _, err := d.scan(ctx, DeadLetterQuery{ID: id}, func(l DeadLetter) { found = append(found, l) }); err != nil {
		return DeadLetter{}, err
	}
	if len(found) == 0 {
		return DeadLetter{}, fmt.Errorf("%s: %w", id, ErrUnknownDeadLetter)
	}
	l := found[0]
	line := spool.DumpItem{Stream: l.Stream, Partition: int(l.Partition), Record: l.rec}.Line()
	l.Record = &line
	return l, nil
}

// Purge gives up the dead letters of a page: they are not shown any more, and go with the stream's retention. With dry it
// only counts them.
func (d *DeadLetters) Purge(ctx context.Context, q DeadLetterQuery, dry bool) (DeadLetterWork, error) {
	w := DeadLetterWork{DryRun: dry, Failed: []DeadLetterFailed{}}
	var chosen []DeadLetter
	next, err := d.scan(ctx, q, func(l DeadLetter) {
		l.rec = nil
		chosen = append(chosen, l)
	})
	w.Selected, w.Next = len(chosen), next
	if err != nil || dry || len(chosen) == 0 {
		return w, err
	}
	if err := d.settle(ctx, chosen, d.purged); err != nil {
		return w, err
	}
	w.Done = len(chosen)
	return w, nil
}

// settle marks dead letters as dealt with and returns when that is durable.
func (d *DeadLetters) settle(ctx context.Context, letters []DeadLetter, count map[string]uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	byPart := make(map[int][]span)
	for _, l := range letters {
		byPart[l.place.partition] = append(byPart[l.place.partition], span{l.place.offset, l.place.offset + 1})
	}
	var changes []spool.Change
	after, pos := make(map[int]marks), make(map[int]spool.Offset)
	for p, spans := range byPart {
		start, _ := d.b.source.Bounds(d.stream, p)
		m, next := d.marks[p].with(spans, max(start, d.cursor.Position(p)))
		after[p], pos[p] = m, next
		changes = append(changes, d.marks[p].changes(&m)...)
	}
	// The cursor first: marks that it passes are not needed any more, and a crash in between only leaves some that say nothing.
	for p, o := range pos {
		d.cursor.Commit(p, o)
	}
	if err := d.cursor.Flush(ctx); err != nil {
		return err
	}
	if len(changes) > 0 {
		done := make(durable, 1)
		if err := d.b.source.Append(ctx, spool.Entry{Changes: changes, Done: done}); err != nil {
			return err
		}
		if err := done.wait(ctx); err != nil {
			return err
		}
	}
	for p, m := range after {
		d.marks[p] = m
	}
	for _, l := range letters {
		count[l.Route]++
	}
	return nil
}

// counted returns how many were redriven and purged, by route.
func (d *DeadLetters) counted(route string) (redriven, purged uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.redriven[route], d.purged[route]
}

// scan calls fn for the dead letters that q selects, in the order of partitions and offsets, as many as a page has. It
// returns where to go on.
func (d *DeadLetters) scan(ctx context.Context, q DeadLetterQuery, fn func(DeadLetter)) (next string, err error) {
	if q.Filter != "" {
		if err := spool.CheckFilter(q.Filter); err != nil {
			return "", fmt.Errorf("%w: %w", err, spool.ErrInvalid)
		}
	}
	at := deadPlace{}
	only := q.ID != ""
	switch {
	case only:
		at, err = parsePlace(q.ID)
	case q.At != "":
		at, err = parsePlace(q.At)
	}
	if err != nil {
		return "", err
	}
	limit := maxDeadPage
	if q.Limit > 0 {
		limit = min(limit, q.Limit)
	}
	until := time.Now().Add(maxDeadTime)
	for p := at.partition; p < len(d.marks); p++ {
		from := spool.Offset(0)
		if p == at.partition {
			from = at.offset
		}
		stop, err := d.scanPartition(ctx, p, from, until, only, func(l DeadLetter) bool {
			if q.selects(&l) {
				limit--
				fn(l)
			}
			return limit > 0
		})
		if err != nil || only {
			return "", err
		}
		if stop != nil {
			return stop.String(), nil
		}
	}
	return "", nil
}

// scanPartition returns where it stopped before the end.
func (d *DeadLetters) scanPartition(ctx context.Context, p int, from spool.Offset, until time.Time, only bool, fn func(DeadLetter) bool) (*deadPlace, error) {
	start, end := d.b.source.Bounds(d.stream, p)
	low := max(start, d.cursor.Position(p))
	if only && from < low {
		return nil, nil
	}
	from = max(from, low)
	if from >= end {
		return nil, nil
	}
	r, err := d.b.source.NewReader(d.stream, p, from)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for {
		b, ok, err := r.TryNext()
		if err != nil || !ok {
			return nil, err
		}
		d.mu.Lock()
		done := marks{ranges: d.marks[p].ranges} // replaced, never changed
		d.mu.Unlock()
		for i := range b.Records {
			rec := &b.Records[i]
			if rec.Offset < from || only && rec.Offset > from || done.has(rec.Offset) {
				continue
			}
			l, err := letterOf(rec)
			if err != nil {
				d.b.log.Warn("dead letter cannot be read", "partition", p, "offset", rec.Offset, "err", err)
				continue
			}
			if !fn(l) && !only {
				return &deadPlace{p, rec.Offset + 1}, nil
			}
		}
		switch {
		case only || b.Next >= end:
			return nil, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case time.Now().After(until):
			return &deadPlace{p, b.Next}, nil
		}
	}
}

func letterOf(dead *spool.Record) (DeadLetter, error) {
	rec, meta, err := splitDead(dead)
	if err != nil {
		return DeadLetter{}, err
	}
	place := deadPlace{int(dead.Partition), dead.Offset}
	return DeadLetter{
		ID: place.String(), At: meta.At, Route: meta.Route, Upstream: meta.Upstream, Reason: meta.Reason, Error: meta.Error, Hint: meta.Hint,
		Attempts: meta.Attempts, KafkaTopic: meta.KafkaTopic, KafkaPartition: meta.KafkaPartition, Topic: rec.Topic, ClientID: rec.ClientID,
		ReceivedAt: time.Unix(0, rec.ReceivedAt).UTC(), Stream: meta.Stream, Partition: meta.Partition, Offset: uint64(meta.Offset),
		Bytes: len(rec.Payload), Downlink: meta.Downlink, place: place, rec: rec,
	}, nil
}

func (q *DeadLetterQuery) selects(l *DeadLetter) bool {
	return (q.ID == "" || q.ID == l.ID) && (q.Route == "" || q.Route == l.Route) && (q.Reason == "" || q.Reason == l.Reason) &&
		(q.ClientID == "" || q.ClientID == l.ClientID) && (q.Filter == "" || spool.MatchFilter(q.Filter, l.Topic)) &&
		(q.Since.IsZero() || !l.At.Before(q.Since)) && (q.Until.IsZero() || l.At.Before(q.Until))
}

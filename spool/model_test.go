package spool

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "seed of the random tests; 0 takes a new one")
	roundsFlag = flag.Int("rounds", 0, "rounds of the random tests; 0 takes the short number")
)

func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func roundsOr(n int) int {
	if *roundsFlag > 0 {
		return *roundsFlag
	}
	return n
}

// model is what the spool must be equal to.
type model struct {
	t   *testing.T
	rnd *rand.Rand
	cfg Config
	s   *Spool
	n   int

	mu    sync.Mutex
	logs  map[string]map[Offset]string // acknowledged payloads by stream/partition
	ends  map[string]Offset            // above every offset ever acknowledged
	state map[string]string            // acknowledged changes
	cur   map[string][]Offset          // flushed cursor positions
}

func key(stream string, partition int) string { return fmt.Sprintf("%s/%d", stream, partition) }

// TestSpoolEqualsModel does random things, restarts and crashes among them, and holds the spool against a map.
func TestSpoolEqualsModel(t *testing.T) {
	rnd := newRand(t)
	a := DefaultStreamConfig("a")
	a.Filters, a.Partitions = []string{"plant/1/#", "plant/2/+"}, 3
	m := &model{
		t: t, rnd: rnd, cfg: smallConfig(t.TempDir(), a, oneStream(nil)),
		logs: map[string]map[Offset]string{}, ends: map[string]Offset{}, state: map[string]string{}, cur: map[string][]Offset{},
	}
	m.cfg.Segment.MaxAge = unit.Duration(1e9 * 3600)
	m.open()
	defer func() { mustClose(t, m.s) }()
	for range roundsOr(150) {
		switch p := rnd.IntN(100); {
		case p < 55:
			m.append(1 + rnd.IntN(400))
		case p < 65:
			m.read()
		case p < 73:
			m.commit()
		case p < 81:
			st := m.s.streams[rnd.IntN(2)]
			m.s.rollForRoom(st)
		case p < 88:
			if err := m.s.materialise(rnd.IntN(2) == 0); err != nil {
				t.Fatal(err)
			}
			m.settled()
		case p < 92:
			m.s.clean(context.Background())
		case p < 96:
			mustClose(t, m.s)
			m.open()
		default:
			m.crash()
		}
	}
	m.check()
}

// settled checks the books of memory when nothing is on its way.
func (m *model) settled() {
	if err := m.s.materialise(true); err != nil {
		m.t.Fatal(err)
	}
	eventually(m.t, "memory is given back", func() bool {
		st := m.s.Stats()
		return st.QueueBytes == 0 && st.UnappliedBytes == 0
	})
}

func (m *model) open() {
	m.t.Helper()
	_, log := logTo(m.t)
	s, err := Open(m.cfg, Options{Logger: log})
	if err != nil {
		m.t.Fatal(err)
	}
	m.s = s
	m.check()
}

// append gives a burst of records and changes to the spool, and waits for the last, or not.
func (m *model) append(n int) {
	var last waiter
	for range n {
		m.n++
		r := testRecord(m.n)
		r.Payload = fmt.Appendf(nil, "%d %x", m.n, make([]byte, m.rnd.IntN(300)))
		e := Entry{Record: r}
		if m.rnd.IntN(10) == 0 {
			k := fmt.Sprint(m.rnd.IntN(30))
			c := Change{Space: "model", Key: k}
			if m.rnd.IntN(3) > 0 {
				c.Value = fmt.Appendf(nil, "%d", m.n)
			}
			e.Changes = []Change{c}
			if m.rnd.IntN(3) == 0 {
				e.Record = nil
			}
		}
		w := newWaiter()
		payload, changes := string(r.Payload), e.Changes
		e.Done = completionFunc(func(rec *Record, err error) {
			m.acked(rec, payload, changes, err)
			w <- err
		})
		if err := m.s.Append(context.Background(), e); err != nil {
			m.t.Fatal(err)
		}
		last = w
	}
	if err := <-last; err != nil { // so that the model knows all when something else is done
		m.t.Fatal(err)
	}
}

func (m *model) acked(rec *Record, payload string, changes []Change, err error) {
	if err != nil {
		m.t.Errorf("durable: %v", err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range changes {
		if c.Value == nil {
			delete(m.state, c.Key)
		} else {
			m.state[c.Key] = string(c.Value)
		}
	}
	if rec == nil {
		return
	}
	k := key(m.s.StreamFor(rec.Topic), int(rec.Partition))
	if m.logs[k] == nil {
		m.logs[k] = map[Offset]string{}
	}
	if rec.Offset != m.ends[k] {
		m.t.Errorf("%s: offset %d, want %d: offsets are dense", k, rec.Offset, m.ends[k])
	}
	m.logs[k][rec.Offset] = payload
	m.ends[k] = rec.Offset + 1
}

func (m *model) read() {
	st := m.s.streams[m.rnd.IntN(2)]
	p := m.rnd.IntN(len(st.parts))
	_, end := m.s.Bounds(st.name, p)
	m.checkFrom(st.name, p, Offset(m.rnd.Uint64N(uint64(end)+1)))
}

func (m *model) checkFrom(stream string, p int, from Offset) {
	m.t.Helper()
	got, gaps := readAll(m.t, m.s, stream, p, from)
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key(stream, p)
	if len(gaps) > 0 || Offset(len(got)) != m.ends[k]-min(from, m.ends[k]) {
		m.t.Fatalf("%s from %d: %d records, gaps %v, end %d", k, from, len(got), gaps, m.ends[k])
	}
	for i, payload := range got {
		if want := m.logs[k][from+Offset(i)]; payload != want {
			m.t.Fatalf("%s at %d: %q, want %q", k, from+Offset(i), payload, want)
		}
	}
}

func (m *model) commit() {
	st := m.s.streams[m.rnd.IntN(2)]
	c, err := m.s.OpenCursor(m.t.Context(), "c-"+st.name, st.name, CursorOptions{Protect: true})
	if err != nil {
		m.t.Fatal(err)
	}
	for p := range st.parts {
		if _, end := m.s.Bounds(st.name, p); end > 0 {
			c.Commit(p, Offset(m.rnd.Uint64N(uint64(end)+1)))
		}
	}
	if err := c.Flush(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	var pos []Offset
	for p := range st.parts {
		pos = append(pos, c.Position(p))
	}
	m.cur["c-"+st.name] = pos
}

// crash goes on with what a kill -9 would leave behind.
func (m *model) crash() {
	dir := m.t.TempDir()
	image(m.t, m.s, dir)
	mustClose(m.t, m.s)
	m.cfg.Dir = dir
	m.open()
}

func (m *model) check() {
	m.t.Helper()
	for _, st := range m.s.streams {
		for p := range st.parts {
			m.checkFrom(st.name, p, 0)
		}
	}
	got := map[string]string{}
	if err := m.s.Load("model", func(k string, v []byte) error { got[k] = string(v); return nil }); err != nil {
		m.t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(m.state) {
		m.t.Fatalf("state %v, want %v", got, m.state)
	}
	for _, info := range m.s.Cursors() {
		if !slices.Equal(info.Positions, m.cur[info.Name]) {
			m.t.Fatalf("cursor %s at %v, want %v", info.Name, info.Positions, m.cur[info.Name])
		}
	}
	if len(m.s.Cursors()) != len(m.cur) {
		m.t.Fatalf("%d cursors, want %d", len(m.s.Cursors()), len(m.cur))
	}
}

// image copies the directory of a running spool as a kill -9 would leave it: bbolt's files between two transactions, the
// journal wherever it is.
func image(t testing.TB, s *Spool, dir string) {
	t.Helper()
	s.cleanMu.Lock()
	defer s.cleanMu.Unlock()
	s.materialiseMu.Lock()
	defer s.materialiseMu.Unlock()
	copyDir(t, s.cfg.Dir, dir)
}

func copyDir(t testing.TB, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o750)
		}
		src, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) && filepath.Ext(path) == ".tmp" {
			return nil // a journal file in the making got its name meanwhile; nothing is in it
		}
		if err != nil {
			return err
		}
		defer src.Close()
		dst, err := os.Create(filepath.Join(to, rel))
		if err != nil {
			return err
		}
		_, err = io.Copy(dst, src)
		return errors.Join(err, dst.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
}

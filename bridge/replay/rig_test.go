package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/spooltest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/klauspost/compress/zstd.(*blockDec).startDecoder"))
}

// rig is an engine over a real spool, and a sink that remembers.
type rig struct {
	t     *testing.T
	spool *spool.Spool
	sink  *memory
	cfg   Config
	e     *Engine
	reads Source // nil is the spool
}

func newRig(t *testing.T) *rig {
	s := spooltest.Open(t, spool.StreamConfig{Name: "plant", Filters: []string{"plant/#"}, Partitions: 2}, spool.StreamConfig{Name: "again", Partitions: 1})
	r := &rig{t: t, spool: s, sink: &memory{gate: make(chan struct{})}, cfg: DefaultConfig()}
	r.cfg.RecordsPerSecond, r.cfg.Stream = 0, "again"
	close(r.sink.gate)
	return r
}

func (r *rig) open() {
	r.t.Helper()
	reads := r.reads
	if reads == nil {
		reads = &local{r.spool}
	}
	e, err := New(r.cfg, Options{Log: r.spool, Source: reads, Sinks: r.sink, GatewayID: "gw", Now: r.spool.Now})
	if err != nil {
		r.t.Fatal(err)
	}
	r.e = e
	e.Begin()
}

func (r *rig) close() {
	r.t.Helper()
	if err := r.e.Close(context.Background()); err != nil {
		r.t.Error(err)
	}
}

// base is when the first record was received; each comes a second later.
var base = time.Date(2031, 4, 1, 12, 0, 0, 0, time.UTC)

// fill appends n records, number i of client c<i%5> with topic plant/<i%10>/t, received i seconds after base.
func (r *rig) fill(n int) {
	r.t.Helper()
	done := make(durable, n)
	for i := range n {
		rec := &spool.Record{
			Topic: fmt.Sprintf("plant/%d/t", i%10), ClientID: fmt.Sprint("c", i%5), QoS: 1, Retain: true, Payload: []byte(fmt.Sprint(i)),
			ReceivedAt: base.Add(time.Duration(i) * time.Second).UnixNano(),
		}
		if err := r.spool.Append(r.t.Context(), spool.Entry{Record: rec, Done: done}); err != nil {
			r.t.Fatal(err)
		}
	}
	for range n {
		if err := <-done; err != nil {
			r.t.Fatal(err)
		}
	}
	if err := r.spool.Load("nothing", nil); err != nil { // moves everything to segments
		r.t.Fatal(err)
	}
}

func (r *rig) start(req Request) Status {
	r.t.Helper()
	s, err := r.e.Start(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// await waits until a job is in a state.
func (r *rig) await(id string, want State) Status {
	r.t.Helper()
	return r.until(id, func(s Status) bool { return s.State == want })
}

func (r *rig) until(id string, ok func(Status) bool) Status {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		s, err := r.e.Show(id)
		if err != nil {
			r.t.Fatal(err)
		}
		if ok(s) {
			return s
		}
		if time.Now().After(end) {
			r.t.Fatalf("replay: %+v", s)
		}
	}
}

// equal checks the numbers that the sink has got, whatever the order of partitions.
func (r *rig) equal(what string, want func(i int) bool, n int) {
	r.t.Helper()
	var numbers []string
	for i := range n {
		if want(i) {
			numbers = append(numbers, fmt.Sprint(i))
		}
	}
	got := r.sink.numbers()
	slices.Sort(got)
	slices.Sort(numbers)
	if !slices.Equal(got, numbers) {
		r.t.Errorf("%s: got %d records, want %d", what, len(got), len(numbers))
	}
}

// local reads nothing but the spool.
type local struct{ *spool.Spool }

func (l *local) NewReader(stream string, partition int, from spool.Offset, m spool.Match) (Reader, error) {
	r, err := l.Spool.NewReader(stream, partition, from)
	if err != nil {
		return nil, err
	}
	r.Match(m)
	return r, nil
}

func (l *local) Outside(stream string, partition int, since, until time.Time) ([]Range, error) {
	sealed, err := l.Sealed(stream)
	var out []Range
	for _, s := range sealed {
		for _, p := range s.Partitions {
			if p.Partition == partition && (!since.IsZero() && p.MaxTime.Before(since) || !until.IsZero() && !p.MinTime.Before(until)) {
				out = append(out, Range{partition, p.First, p.Next})
			}
		}
	}
	return out, err
}

// memory is a way that keeps what it gets. A closed gate lets everything through.
type memory struct {
	mu     sync.Mutex
	got    []spool.Record
	gate   chan struct{}
	refuse string // topic
	fail   error
	opened int
}

var errRoute = errors.New("no such route")

func (m *memory) Check(r Request) (string, error) {
	if r.Route != "" && r.Route != "lines" {
		return "", fmt.Errorf("route %q: %w", r.Route, errRoute)
	}
	return "plant", nil
}

func (m *memory) Open(r Request, _ string) (Sink, error) {
	if _, err := m.Check(r); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened++
	return m, nil
}

func (m *memory) Close()            {}
func (m *memory) Problem() *Problem { return nil }

func (m *memory) Send(ctx context.Context, p *Page) (t Tally, err error) {
	m.mu.Lock()
	gate := m.gate
	m.mu.Unlock()
	select {
	case <-gate:
	case <-ctx.Done():
		return t, ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return t, m.fail
	}
	for i := range p.Records {
		if p.Records[i].Topic == m.refuse {
			t.Refuse(&p.Records[i], "too_large", nil)
			continue
		}
		m.got = append(m.got, p.Records[i])
		t.Sent++
	}
	return t, nil
}

func (m *memory) numbers() (out []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.got {
		out = append(out, string(m.got[i].Payload))
	}
	return out
}

func (m *memory) set(fn func(m *memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn(m)
}

func contains(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

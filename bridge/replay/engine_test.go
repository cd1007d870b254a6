package replay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

func at(i int) string { return base.Add(time.Duration(i) * time.Second).Format(time.RFC3339Nano) }

func TestReplaySendsExactlyWhatIsAskedFor(t *testing.T) {
	r := newRig(t)
	const n = 3000
	r.fill(n)
	r.open()
	defer r.close()
	f := func(what string, req Request, want func(i int) bool) {
		t.Helper()
		r.sink.set(func(m *memory) { m.got = nil })
		req.Route = "lines"
		s := r.await(r.start(req).ID, Done)
		r.equal(what, want, n)
		if s.Sent != uint64(len(r.sink.numbers())) || s.Lost != 0 || s.Passed != s.Offsets {
			t.Errorf("%s: %+v", what, s)
		}
	}
	f("all", Request{}, func(int) bool { return true })
	f("time, from inclusive and to exclusive", Request{From: at(100), To: at(2000)}, func(i int) bool { return i >= 100 && i < 2000 })
	f("filter", Request{Filters: []string{"plant/3/#"}}, func(i int) bool { return i%10 == 3 })
	f("filters", Request{Filters: []string{"plant/3/t", "plant/4/+"}}, func(i int) bool { return i%10 == 3 || i%10 == 4 })
	f("client", Request{ClientID: "c2"}, func(i int) bool { return i%5 == 2 })
	f("time, filter and client", Request{From: at(500), Filters: []string{"plant/7/t"}, ClientID: "c2"}, func(i int) bool { return i >= 500 && i%10 == 7 })
	f("nothing", Request{Filters: []string{"elsewhere/#"}}, func(int) bool { return false })
	f("times far away", Request{From: "0001-02-01T00:00:00Z", To: "9999-12-31T23:59:59Z"}, func(int) bool { return true })
	f("to before the first", Request{To: at(-10)}, func(int) bool { return false })

	offsets := make(map[string]spool.Record)
	r.sink.set(func(m *memory) { m.got = nil })
	r.await(r.start(Request{Route: "lines"}).ID, Done)
	for _, rec := range r.sink.got {
		offsets[string(rec.Payload)] = rec
	}
	place := func(i int) spool.Record { return offsets[strconv.Itoa(i)] }
	f("an offset of each partition", Request{From: "100", To: "200"}, func(i int) bool { return place(i).Offset >= 100 && place(i).Offset < 200 })
	f("offsets of one partition", Request{From: "1:50", To: "1:60"}, func(i int) bool {
		return place(i).Partition == 1 && place(i).Offset >= 50 && place(i).Offset < 60
	})
}

func TestReplayKeepsTheOrderOfEachPartition(t *testing.T) {
	r := newRig(t)
	r.fill(2000)
	r.open()
	defer r.close()
	r.await(r.start(Request{Route: "lines", Rate: "20000/s"}).ID, Done)
	last := map[uint16]spool.Offset{}
	for _, rec := range r.sink.got {
		if before, ok := last[rec.Partition]; ok && rec.Offset <= before {
			t.Fatalf("partition %d: offset %d after %d", rec.Partition, rec.Offset, before)
		}
		last[rec.Partition] = rec.Offset
	}
}

func TestReplayGoesOnAfterARestartFromItsPosition(t *testing.T) {
	r := newRig(t)
	const n = 2000
	r.fill(n)
	seed := rand.Uint64()
	t.Log("seed", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	r.cfg.RecordsPerSecond = 20_000 // pages of 1000
	r.open()
	id := r.start(Request{Route: "lines"}).ID
	for range 3 {
		atLeast := uint64(rnd.IntN(n))
		r.until(id, func(s Status) bool { return s.Passed >= min(atLeast, s.Offsets) })
		r.close()
		r.open()
	}
	s := r.await(id, Done)
	r.equal("every record once: what was on its way has landed", func(int) bool { return true }, n)
	if s.Sent != n {
		t.Errorf("sent %d, want %d: the count goes on too", s.Sent, n)
	}
	r.close()
	r.open()
	defer r.close()
	if s, err := r.e.Show(id); err != nil || s.State != Done || s.Sent != n {
		t.Errorf("after another restart: %+v, %v", s, err)
	}
	if r.sink.opened > 4 {
		t.Errorf("opened %d times: what is done goes on", r.sink.opened)
	}
}

func TestReplayIsCancelledWhileItsWayIsClosedAndResumed(t *testing.T) {
	r := newRig(t)
	const n = 500
	r.fill(n)
	gate := make(chan struct{})
	r.sink.gate = gate
	r.open()
	defer r.close()
	id := r.start(Request{Route: "lines"}).ID
	s, err := r.e.Cancel(t.Context(), id)
	if err != nil || s.State != Cancelled || s.Sent != 0 || s.Passed != 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	if _, err := r.e.Cancel(t.Context(), id); !errors.Is(err, ErrState) {
		t.Errorf("cancelled again: %v", err)
	}
	close(gate)
	if _, err := r.e.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	r.await(id, Done)
	r.equal("all", func(int) bool { return true }, n)
	if _, err := r.e.Resume(t.Context(), id); !errors.Is(err, ErrState) {
		t.Errorf("resumed what is done: %v", err)
	}
}

func TestReplayThatFailsCanBeResumed(t *testing.T) {
	r := newRig(t)
	r.fill(100)
	r.sink.fail = errors.New("broken")
	r.open()
	defer r.close()
	id := r.start(Request{Route: "lines"}).ID
	if s := r.await(id, Failed); s.Error != "broken" {
		t.Errorf("error %q", s.Error)
	}
	r.sink.set(func(m *memory) { m.fail = nil })
	if _, err := r.e.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if s := r.await(id, Done); s.Error != "" {
		t.Errorf("error %q", s.Error)
	}
	r.equal("all", func(int) bool { return true }, 100)
}

// An end that nobody has asked for is no end of the replay.
func TestReplayWhoseWayIsCancelledBySomebodyElseHasFailed(t *testing.T) {
	r := newRig(t)
	r.fill(100)
	r.sink.fail = fmt.Errorf("fetch: %w", context.Canceled)
	r.open()
	defer r.close()
	id := r.start(Request{Route: "lines"}).ID
	if s := r.until(id, func(s Status) bool { return s.State != Running }); s.State != Failed || s.Error != "fetch: context canceled" {
		t.Errorf("%s: %s", s.State, s.Error)
	}
	r.sink.set(func(m *memory) { m.fail = nil })
	if _, err := r.e.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	r.await(id, Done)
	r.equal("all", func(int) bool { return true }, 100)
}

// narrow is a log for which one record is too large.
type narrow struct{ *spool.Spool }

func (n narrow) Append(ctx context.Context, e spool.Entry) error {
	if e.Record != nil && string(e.Record.Payload) == "7" {
		return fmt.Errorf("append: %w", spool.ErrTooLarge)
	}
	return n.Spool.Append(ctx, e)
}

func TestReplayToMQTTPassesWhatIsTooLargeWithItsProperties(t *testing.T) {
	r := newRig(t)
	r.fill(20)
	e, err := New(r.cfg, Options{Log: narrow{r.spool}, Source: &local{r.spool}, Sinks: r.sink, GatewayID: "gw", Now: r.spool.Now})
	if err != nil {
		t.Fatal(err)
	}
	r.e = e
	e.Begin()
	defer r.close()
	id := r.start(Request{Stream: "plant", ToMQTT: true}).ID
	s := r.until(id, func(s Status) bool { return s.State != Running })
	if s.State != Done || s.Sent != 19 || s.Refused != 1 || len(s.Refusals) != 1 || s.Refusals[0].Reason != "too_large" {
		t.Errorf("%+v", s)
	}
	if _, end := r.spool.Bounds("again", 0); end != 19 {
		t.Errorf("%d records are published, want 19", end)
	}
}

func TestReplayTellsRefusedRecords(t *testing.T) {
	r := newRig(t)
	r.fill(200)
	r.sink.refuse = "plant/3/t"
	r.open()
	defer r.close()
	s := r.await(r.start(Request{Route: "lines"}).ID, Done)
	if s.Refused != 20 || s.Sent != 180 || len(s.Refusals) != maxRefusals || s.Refusals[0].Reason != "too_large" {
		t.Errorf("%+v", s)
	}
}

// holes gives a gap in the place of some offsets, as retention makes one while a job runs.
type holes struct {
	*local
	from, to spool.Offset
}

func (h *holes) NewReader(stream string, partition int, from spool.Offset, m spool.Match) (Reader, error) {
	r, err := h.local.NewReader(stream, partition, from, m)
	return &holeReader{r.(*spool.Reader), h}, err
}

type holeReader struct {
	*spool.Reader
	h *holes
}

func (r *holeReader) Next(ctx context.Context) (spool.Batch, error) {
	if o := r.Offset(); o <= r.h.from {
		b, err := r.Reader.Next(ctx)
		if err != nil || b.Next <= r.h.from {
			return b, err
		}
		var kept []spool.Record
		for _, rec := range b.Records {
			if rec.Offset < r.h.from {
				kept = append(kept, rec)
			}
		}
		b.Records, b.Next = kept, r.h.from
		r.Seek(r.h.from)
		if o < r.h.from {
			return b, nil
		}
		r.Seek(r.h.to)
		return spool.Batch{First: r.h.to, Next: r.h.to, Gap: &spool.Gap{From: r.h.from, To: r.h.to, Reason: spool.GapRetention}}, nil
	}
	return r.Reader.Next(ctx)
}

func TestReplayReportsWhatWasGoneBeforeItCame(t *testing.T) {
	r := newRig(t)
	r.fill(1000)
	r.reads = &holes{&local{r.spool}, 50, 90}
	r.open()
	id := r.start(Request{Route: "lines"}).ID
	check := func(s Status) {
		t.Helper()
		if s.Lost != 80 || len(s.Gaps) != 2 || s.Gaps[0] != (Gap{0, 50, 90, spool.GapRetention}) || s.Gaps[1] != (Gap{1, 50, 90, spool.GapRetention}) || s.Sent != 920 {
			t.Errorf("%+v", s)
		}
	}
	check(r.await(id, Done))
	r.close()
	r.open()
	defer r.close()
	s, err := r.e.Show(id)
	if err != nil {
		t.Fatal(err)
	}
	check(s)
}

func TestReplayRefusesWhatCannotBeMeant(t *testing.T) {
	r := newRig(t)
	r.fill(10)
	r.open()
	defer r.close()
	f := func(req Request, want string) {
		t.Helper()
		_, err := r.e.Start(t.Context(), req)
		contains(t, err, want)
	}
	f(Request{}, "nowhere to send to: give a route, an upstream or to-mqtt")
	f(Request{Route: "lines", ToMQTT: true}, "a route, an upstream and to-mqtt do not go together: give one of them")
	f(Request{Route: "lines", Topic: "x"}, "a topic goes with an upstream; a route has its own")
	f(Request{Route: "lines", Prefix: "x"}, "a prefix goes with to-mqtt")
	f(Request{Route: "nine"}, `route "nine": no such route`)
	f(Request{Route: "lines", Stream: "plunt"}, `stream "plunt": unknown stream or partition; there are plant, again, default`)
	f(Request{Route: "lines", Filters: []string{"a/#/b"}}, `topic filter "a/#/b": # must be a whole level and the last`)
	f(Request{ToMQTT: true, Prefix: "a/+/"}, `prefix "a/+/": a topic has no +, # and U+0000`)
	f(Request{ToMQTT: true, Prefix: "$SYS/"}, `prefix "$SYS/": topics that begin with $ are the gateway's own`)
	f(Request{ToMQTT: true, Stream: "again"}, "stream again is what to-mqtt publishes into")
	f(Request{Route: "lines", From: "yesterday"}, `from "yesterday": want a time like 2026-11-30T16:00:00Z, how long ago like -2h, now, an offset, or offsets of partitions like 0:17,3:20`)
	f(Request{Route: "lines", To: "-2"}, `to "-2": want a time like`)
	f(Request{Route: "lines", From: "0:1,0:2"}, `from "0:1,0:2": partition 0 comes twice`)
	f(Request{Route: "lines", From: "2:1"}, "partition 2: the stream has 2, counted from 0")
	f(Request{Route: "lines", From: "0:1", To: "1:2"}, "partition 0 is in from and not in to")
	f(Request{Route: "lines", From: "0:5", To: "0:2"}, "partition 0: from 5 is behind to 2")
	f(Request{Route: "lines", From: at(5), To: at(5)}, "from 2031-04-01T12:00:05Z is not before to 2031-04-01T12:00:05Z")
	f(Request{Route: "lines", Rate: "fast"}, `rate "fast": want records or bytes a second, such as 5000/s or 5MiB/s; 0 is no limit`)
	f(Request{Route: "lines", Rate: "5000"}, `rate "5000": want records or bytes a second`)
	if _, err := r.e.Show("none"); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	r.e.cfg.Stream = ""
	f(Request{ToMQTT: true}, "to-mqtt needs a stream of its own: set replay.stream, for example to replay, and restart the gateway")
}

// closer is a log that closes an engine as soon as it is given something.
type closer struct {
	*spool.Spool
	e *Engine
}

func (c *closer) Append(ctx context.Context, e spool.Entry) error {
	if err := c.e.Close(ctx); err != nil {
		return err
	}
	return c.Spool.Append(ctx, e)
}

func TestReplayThatIsRefusedWhileTheEngineClosesIsNotThereAfterwards(t *testing.T) {
	r := newRig(t)
	r.fill(10)
	log := &closer{Spool: r.spool}
	e, err := New(r.cfg, Options{Log: log, Source: &local{r.spool}, Sinks: r.sink, GatewayID: "gw", Now: r.spool.Now})
	if err != nil {
		t.Fatal(err)
	}
	log.e = e
	if _, err := e.Start(t.Context(), Request{Route: "lines"}); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want closed", err)
	}
	r.fill(1) // is durable when it returns, and all before it
	r.open()
	defer r.close()
	if jobs := r.e.List(); len(jobs) != 0 {
		t.Errorf("%+v goes on after a restart", jobs)
	}
}

func TestOnlySomeReplaysRunAtOnce(t *testing.T) {
	r := newRig(t)
	r.fill(10)
	gate := make(chan struct{})
	r.sink.gate = gate
	r.open()
	defer r.close()
	one, two := r.start(Request{Route: "lines"}), r.start(Request{Route: "lines"})
	_, err := r.e.Start(t.Context(), Request{Route: "lines"})
	if !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	contains(t, err, "as many replays run as replay.max_jobs allows (2): wait, or cancel one")
	close(gate)
	r.await(one.ID, Done)
	r.await(two.ID, Done)
	r.await(r.start(Request{Route: "lines"}).ID, Done)
	if l := r.e.List(); len(l) != 3 || l[0].Created.Before(l[2].Created) {
		t.Errorf("%d listed, want 3, the newest first", len(l))
	}
}

func TestReplaysThatEndedLongAgoAreForgotten(t *testing.T) {
	r := newRig(t)
	r.fill(10)
	var later atomic.Int64 // a job looks at the clock after it is done, too
	r.open()
	defer r.close()
	r.e.now = func() time.Time { return r.spool.Now().Add(time.Duration(later.Load())) }
	old := r.await(r.start(Request{Route: "lines"}).ID, Done).ID
	later.Store(int64(r.cfg.Keep.Std() + time.Minute))
	r.await(r.start(Request{Route: "lines"}).ID, Done)
	if _, err := r.e.Show(old); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	keys := 0
	if err := r.spool.Load(space, func(string, []byte) error { keys++; return nil }); err != nil || keys != 3 {
		t.Errorf("%d keys, %v, want those of one replay: a definition and two positions", keys, err)
	}
}

func TestReplayToMQTTPublishesIntoItsOwnStream(t *testing.T) {
	r := newRig(t)
	const n = 300
	r.fill(n)
	r.open()
	defer r.close()
	s := r.start(Request{ToMQTT: true, Stream: "plant", Prefix: "replay/", From: at(100)})
	if got := r.await(s.ID, Done); got.Sent != n-100 {
		t.Fatalf("%+v", got)
	}
	if _, end := r.spool.Bounds("plant", 0); end > n {
		t.Errorf("the stream of devices has got something: its end is %d", end)
	}
	rd, err := r.spool.NewReader("again", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	seen := make(map[string]bool)
	for len(seen) < n-100 {
		b, err := rd.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Records {
			rec := &b.Records[i]
			no, _ := strconv.Atoi(string(rec.Payload))
			users := rec.Properties.User
			if no < 100 || seen[string(rec.Payload)] || rec.Topic != fmt.Sprintf("replay/plant/%d/t", no%10) || rec.Retain || rec.QoS != 1 ||
				len(users) != 3 || users[0] != (spool.UserProperty{Name: Header, Value: s.ID}) || users[2].Value != at(no) {
				t.Fatalf("record %d: %+v %+v", no, rec, users)
			}
			seen[string(rec.Payload)] = true
		}
	}
	if _, end := r.spool.Bounds("again", 0); end != n-100 {
		t.Errorf("%d published, want %d", end, n-100)
	}
}

// cut is a log that takes no more than so many records.
type cut struct {
	Log
	left atomic.Int64
}

var errCut = errors.New("cut")

func (c *cut) Append(ctx context.Context, e spool.Entry) error {
	if e.Record != nil && c.left.Add(-1) < 0 {
		return errCut
	}
	return c.Log.Append(ctx, e)
}

func TestReplayToMQTTPublishesNothingTwiceWhereverItBreaksOff(t *testing.T) {
	r := newRig(t)
	const n = 1000
	r.fill(n)
	c := &cut{Log: r.spool}
	open := func() {
		t.Helper()
		var err error
		if r.e, err = New(r.cfg, Options{Log: c, Source: &local{r.spool}, Sinks: r.sink, Now: r.spool.Now}); err != nil {
			t.Fatal(err)
		}
		r.e.Begin()
	}
	open()
	defer func() { r.close() }()
	c.left.Store(300)
	id := r.start(Request{ToMQTT: true, Stream: "plant"}).ID
	r.await(id, Failed)
	c.left.Store(200)
	if _, err := r.e.Resume(t.Context(), id); err != nil { // by what is in memory
		t.Fatal(err)
	}
	r.await(id, Failed)
	r.close()
	open() // by what is in the spool
	c.left.Store(n)
	if _, err := r.e.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if s := r.await(id, Done); s.Sent != n {
		t.Errorf("counts %d, want %d", s.Sent, n)
	}
	rd, err := r.spool.NewReader("again", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	seen := make(map[string]bool)
	for _, end := r.spool.Bounds("again", 0); rd.Offset() < end; {
		b, err := rd.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Records {
			if p := string(b.Records[i].Payload); seen[p] {
				t.Errorf("record %s came twice", p)
			} else {
				seen[p] = true
			}
		}
	}
	if len(seen) != n {
		t.Errorf("%d records, want %d", len(seen), n)
	}
}

func TestDryRunSendsAndRemembersNothing(t *testing.T) {
	r := newRig(t)
	r.fill(200)
	r.open()
	defer r.close()
	s := r.await(r.start(Request{ToMQTT: true, Stream: "plant", Filters: []string{"plant/3/t", "plant/4/t"}, DryRun: true}).ID, Done)
	if s.Sent != 40 || s.Preview == nil || len(s.Preview.Destinations) != 2 || s.Preview.Destinations[0] != (Destination{"plant/3/t", 20, s.Preview.Destinations[0].Bytes}) || len(s.Preview.Samples) != 2 {
		t.Errorf("%+v %+v", s, s.Preview)
	}
	if _, end := r.spool.Bounds("again", 0); end != 0 {
		t.Errorf("%d published", end)
	}
	if err := r.spool.Load(space, func(key string, _ []byte) error { t.Errorf("remembers %s", key); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestLimiterSpreadsWhatIsSent(t *testing.T) {
	f := func(r rate, records, bytes int) {
		t.Helper()
		l := limiter{rate: r}
		if gotR, gotB := l.page(); gotR != records || gotB != bytes {
			t.Errorf("%+v: pages of %d records and %d bytes, want %d and %d", r, gotR, gotB, records, bytes)
		}
	}
	f(rate{}, MaxPage, maxPageBytes)
	f(rate{records: 10}, 1, maxPageBytes)
	f(rate{records: 2000}, 100, maxPageBytes)
	f(rate{bytes: 20 << 20}, MaxPage, 1<<20)
	f(rate{bytes: 1000}, MaxPage, minPageBytes)
}

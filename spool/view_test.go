package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// snapshot is every file of a directory with its content, to show that nobody changed it.
func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func wantUnchanged(t testing.TB, dir string, before map[string]string) {
	t.Helper()
	after := snapshot(t, dir)
	for name, content := range before {
		if got, ok := after[name]; !ok || got != content {
			t.Errorf("%s was changed or removed", name)
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			t.Errorf("%s was made", name)
		}
	}
}

// abandonSpool copies the directory of a running spool, which is what a kill -9 leaves behind, and returns its configuration.
func abandonSpool(t testing.TB, cfg Config) Config {
	t.Helper()
	for {
		to := t.TempDir()
		err := os.CopyFS(to, os.DirFS(cfg.Dir))
		if err == nil {
			cfg.Dir = to
			return cfg
		}
		if !errors.Is(err, fs.ErrNotExist) { // a journal file that was just made and got its name meanwhile
			t.Fatal(err)
		}
	}
}

// mixedSpool is a spool with every kind of content: two streams, sealed and active segments, state, cursors, and records that
// are only in the journal. The directory is as a kill -9 leaves it.
func mixedSpool(t testing.TB) Config {
	t.Helper()
	cfg := smallConfig(t.TempDir(), oneStream(nil), StreamConfig{Name: "plant", Filters: []string{"plant/#"}, Partitions: 2})
	cfg.Segment.MaxSize = 8 << 20 // rolled by hand
	cfg.Segment.Codec = "none"    // so that a test finds what it wants to damage
	s := mustOpen(t, cfg, Options{})
	for round := range 3 {
		for i := round * 200; i < (round+1)*200; i++ {
			r := testRecord(i)
			if i%10 == 0 {
				r.Topic = "$dead/letter"
				r.Properties = &Properties{ContentType: "text/plain", CorrelationData: []byte{}, HasPayloadFormat: true, User: []UserProperty{{"a", "b"}}}
				r.Payload = []byte{0xff, 0xfe, byte(i)}
			}
			if err := s.Append(t.Context(), Entry{Record: r, Changes: []Change{{"sessions", fmt.Sprintf("client-%d", i%5), fmt.Appendf(nil, "state %d", i)}}}); err != nil {
				t.Fatal(err)
			}
		}
		put(t, s, Entry{Changes: []Change{{"other", "k", []byte("v")}}})
		if err := s.materialise(true); err != nil {
			t.Fatal(err)
		}
		if round < 2 {
			s.cleanMu.Lock() // not beside the janitor
			for _, st := range s.streams {
				if f := st.active(); f != nil {
					s.roll(f)
				}
				s.sealRolled(t.Context(), st)
			}
			s.cleanMu.Unlock()
			s.materialiseMu.Lock()
			err := s.writeMeta(s.metaApplied)
			s.materialiseMu.Unlock()
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	c, err := s.OpenCursor(t.Context(), "route", "plant", CursorOptions{Protect: true})
	if err != nil {
		t.Fatal(err)
	}
	c.Commit(0, 100)
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.materialiseMu.Lock() // from here on everything stays in the journal
	defer s.materialiseMu.Unlock()
	putMany(t, s, 600, 650)
	put(t, s, Entry{Changes: []Change{{"sessions", "client-0", nil}, {"sessions", "client-new", []byte("x")}}})
	return abandonSpool(t, cfg)
}

func mustView(t testing.TB, cfg Config) *View {
	t.Helper()
	v, err := OpenView(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

func mustVerify(t testing.TB, cfg Config) VerifyResult {
	t.Helper()
	v := mustView(t, cfg)
	var last int64
	r, err := v.Verify(t.Context(), VerifyOptions{Progress: func(done, total int64, _ string) {
		if done < last || done > total {
			t.Errorf("progress went from %d to %d of %d", last, done, total)
		}
		last = done
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	return r
}

// dumpAll is what a dump says, one string each.
func dumpAll(t testing.TB, in Inspector, q DumpQuery) (items []string) {
	t.Helper()
	for {
		next, err := in.Dump(t.Context(), q, func(i DumpItem) error {
			if i.Record == nil {
				items = append(items, fmt.Sprintf("%s/%d gap %d..%d %s", i.Stream, i.Partition, i.Gap.From, i.Gap.To, i.Gap.Reason))
				return nil
			}
			items = append(items, fmt.Sprintf("%s/%d:%d %s", i.Stream, i.Partition, i.Record.Offset, i.Record.Payload))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if next == nil {
			return items
		}
		q.At = next
	}
}

func TestViewShowsWhatTheNextStartFinds(t *testing.T) {
	cfg := mixedSpool(t)
	before := snapshot(t, cfg.Dir)
	v := mustView(t, cfg)
	l, err := v.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Findings) > 0 || l.Running {
		t.Errorf("findings %v, running %v", l.Findings, l.Running)
	}
	var viewed []string
	for _, st := range l.Streams {
		viewed = append(viewed, dumpAll(t, v, DumpQuery{Stream: st.Name, Partition: -1})...)
	}
	inJournal := uint64(0)
	for _, p := range l.Streams[1].Partitions {
		inJournal += p.InJournal
	}
	if len(viewed) != 650 || inJournal != 50 {
		t.Errorf("%d records, %d only in the journal", len(viewed), inJournal)
	}
	meta, err := v.InspectMeta(t.Context(), MetaQuery{Space: "sessions"})
	if err != nil {
		t.Fatal(err)
	}
	keys := fmt.Sprint(meta.Keys)
	if strings.Contains(keys, "client-0") || !strings.Contains(keys, "client-new") || len(meta.Keys) != 5 {
		t.Errorf("keys of sessions: %s", keys)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	wantUnchanged(t, cfg.Dir, before)

	s := mustOpen(t, cfg, Options{})
	var found []string
	for _, st := range s.Streams() {
		found = append(found, dumpAll(t, s, DumpQuery{Stream: st.Name, Partition: -1})...)
	}
	if !slices.Equal(viewed, found) {
		t.Errorf("the view had %d records, the start found %d", len(viewed), len(found))
	}
	again, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(again.Cursors) != fmt.Sprint(l.Cursors) || len(l.Cursors) != 1 || l.Cursors[0].Positions[0] == 0 {
		t.Errorf("cursors %v, the view had %v", again.Cursors, l.Cursors)
	}
}

func TestViewOfARunningSpoolIsRefused(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	if _, err := OpenView(cfg, Options{}); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v", err)
	}
	mustClose(t, s)
	v := mustView(t, cfg)
	mustView(t, cfg) // two may look
	if _, err := Open(cfg, Options{}); !errors.Is(err, ErrInUse) {
		t.Errorf("opened under a view: %v", err)
	}
	if err := errors.Join(v.Close(), v.Close()); err != nil {
		t.Error(err)
	}
	if _, err := OpenView(Config{Dir: t.TempDir()}, Options{}); err == nil || !strings.Contains(err.Error(), "no spool here") {
		t.Errorf("an empty directory: %v", err)
	}
}

func TestDumpSelects(t *testing.T) {
	cfg := mixedSpool(t)
	f := func(in Inspector, q DumpQuery, want int) {
		t.Helper()
		if got := dumpAll(t, in, q); len(got) != want {
			t.Errorf("%+v: %d records, want %d", q, len(got), want)
		}
		q.Limit = 7 // pages give the same
		if got := dumpAll(t, in, q); len(got) != want {
			t.Errorf("%+v: %d records, want %d", q, len(got), want)
		}
	}
	count := func(ok func(i int) bool) (n int) {
		for i := range 650 {
			if ok(i) {
				n++
			}
		}
		return n
	}
	check := func(in Inspector) {
		t.Helper()
		dead := func(i int) bool { return i%10 == 0 && i < 600 }
		f(in, DumpQuery{Stream: "default", Partition: -1}, 60)
		f(in, DumpQuery{Stream: "plant", Partition: -1}, 590)
		f(in, DumpQuery{Stream: "plant", Partition: -1, Filter: "plant/3/temp"}, count(func(i int) bool { return !dead(i) && i%7 == 3 }))
		f(in, DumpQuery{Stream: "plant", Partition: -1, Filter: "plant/+/temp", Client: "device-2"}, count(func(i int) bool { return !dead(i) && i%5 == 2 }))
		f(in, DumpQuery{Stream: "plant", Partition: -1, Client: "device-2", Filter: "plant/1/#"}, count(func(i int) bool { return !dead(i) && i%5 == 2 && i%7 == 1 }))
		f(in, DumpQuery{Stream: "plant", Partition: -1, Filter: "nothing/#"}, 0)
		f(in, DumpQuery{Stream: "plant", Partition: -1, Since: time.Now().Add(time.Hour)}, 0)
		f(in, DumpQuery{Stream: "plant", Partition: -1, Until: time.Now().Add(-time.Hour)}, 0)
		f(in, DumpQuery{Stream: "plant", Partition: -1, Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}, 590)
		f(in, DumpQuery{Stream: "plant", Partition: -1, Since: time.Date(2, 1, 1, 0, 0, 0, 0, time.UTC), Until: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}, 590)
		f(in, DumpQuery{Stream: "plant", Partition: 0, From: 10, To: 25}, 15)
		if _, err := in.Dump(t.Context(), DumpQuery{Stream: "no"}, nil); !errors.Is(err, ErrUnknownStream) {
			t.Errorf("unknown stream: %v", err)
		}
		if _, err := in.Dump(t.Context(), DumpQuery{Stream: "plant", Partition: 2}, nil); !errors.Is(err, ErrUnknownStream) {
			t.Errorf("unknown partition: %v", err)
		}
		if _, err := in.Dump(t.Context(), DumpQuery{Stream: "plant", Filter: "a/#/b"}, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("bad filter: %v", err)
		}
	}
	v := mustView(t, cfg)
	check(v)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	check(mustOpen(t, cfg, Options{}))
}

func TestDumpGoesOnBehindAFrameThatIsLost(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	s := mustOpen(t, cfg, Options{})
	s.materialiseMu.Lock() // all of it stays in the journal
	for i := range 30 {
		put(t, s, Entry{Record: testRecord(i)})
	}
	left := abandonSpool(t, cfg)
	s.materialiseMu.Unlock()
	files, _ := filepath.Glob(filepath.Join(left.Dir, "journal", "*"))
	for _, name := range files {
		if b, _ := os.ReadFile(name); bytes.Contains(b, []byte("value 15")) {
			flipIn(t, name, []byte("value 15"))
		}
	}
	v := mustView(t, left)
	items := dumpAll(t, v, DumpQuery{Stream: DefaultStream, Partition: -1})
	if len(items) != 30 || items[15] != "default/0 gap 15..16 damaged" || items[29] != "default/0:29 value 29" {
		t.Errorf("%q", items)
	}
	r, err := v.Verify(t.Context(), VerifyOptions{})
	if found := strings.Join(findings(r, SeverityDamage), "\n"); err != nil || !strings.Contains(found, "(default/0 offsets 15..15)") {
		t.Errorf("%v %s", err, found)
	}
}

// What the index does not name is not read: its damage does not show.
func TestDumpReadsOnlyWhatTheIndexNames(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(nil))
	cfg.Segment.Codec = "none"
	s := mustOpen(t, cfg, Options{})
	for _, who := range []string{"a", "b"} {
		for i := range 20 {
			r := &Record{Topic: "topic/" + who, ClientID: "client-" + who, Payload: fmt.Appendf(nil, "value of %s %d", who, i)}
			put(t, s, Entry{Record: r})
		}
		if err := s.materialise(true); err != nil { // a batch of its own
			t.Fatal(err)
		}
	}
	rollAll(t, s)
	mustClose(t, s)
	flipIn(t, filepath.Join(cfg.Dir, "seg", DefaultStream, segmentName(1)), []byte("value of a 10"))
	v := mustView(t, cfg)
	f := func(q DumpQuery, wantItems int, wantGap bool) {
		t.Helper()
		q.Stream, q.Partition = DefaultStream, -1
		items := dumpAll(t, v, q)
		if gap := strings.Contains(strings.Join(items, " "), "gap"); len(items) != wantItems || gap != wantGap {
			t.Errorf("%+v: %d items, a gap: %v", q, len(items), gap)
		}
	}
	f(DumpQuery{}, 21, true)
	f(DumpQuery{Filter: "topic/b"}, 20, false)
	f(DumpQuery{Client: "client-b"}, 20, false)
	f(DumpQuery{Client: "client-b", Filter: "topic/a"}, 0, false)
	f(DumpQuery{Filter: "topic/a"}, 1, true)
}

func TestDumpLineKeepsARecord(t *testing.T) {
	f := func(r Record) {
		t.Helper()
		in := DumpItem{Stream: "s", Partition: 3, Record: &r}
		b, err := in.Line().MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		line := in.Line()
		out, err := line.Item()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := fmt.Sprintf("%+v %+v", *out.Record, out.Record.Properties), fmt.Sprintf("%+v %+v", r, r.Properties); !equalRecords(out.Record, &r) {
			t.Errorf("%s: got %s, want %s", b, got, want)
		}
	}
	f(Record{Topic: "a", Partition: 3, ReceivedAt: 5, Payload: []byte{}})
	f(Record{Topic: "a/ü", ClientID: "c", UserName: "u", Partition: 3, Offset: 1 << 60, ReceivedAt: 1, ExpiresAt: 2, QoS: 2, Retain: true, Payload: []byte("text")})
	f(Record{Topic: "a", Partition: 3, ReceivedAt: 1, Payload: []byte{0xff}, Properties: &Properties{
		HasPayloadFormat: true, ContentType: "x", ResponseTopic: "y", CorrelationData: []byte{}, User: []UserProperty{{"k", "v"}, {"k", ""}},
	}})
	f(Record{Topic: "a", Partition: 3, ReceivedAt: 1, Payload: []byte{}, Properties: &Properties{CorrelationData: []byte{1, 2}}})
}

// equalRecords compares stored forms.
func equalRecords(a, b *Record) bool {
	return string(appendRecord(nil, a, 0)) == string(appendRecord(nil, b, 0)) && a.Offset == b.Offset && a.Partition == b.Partition
}

func TestInspectAnswersAreBounded(t *testing.T) {
	cfg := mixedSpool(t)
	check := func(in Inspector) {
		t.Helper()
		page, err := in.ListSegments(t.Context(), SegmentsQuery{Limit: 2})
		if err != nil || len(page.Segments) != 2 || page.Next == "" {
			t.Fatalf("%d segments, next %q, %v", len(page.Segments), page.Next, err)
		}
		all := page.Segments
		for page.Next != "" {
			if page, err = in.ListSegments(t.Context(), SegmentsQuery{Limit: 2, After: page.Next}); err != nil {
				t.Fatal(err)
			}
			all = append(all, page.Segments...)
		}
		sealed := 0
		for _, s := range all {
			if s.State == "sealed" {
				sealed++
				if s.Topics <= 0 || s.Clients <= 0 || s.Codec == "" || s.LiveShare != 1 {
					t.Errorf("sealed segment: %+v", s)
				}
			}
		}
		if sealed != 4 {
			t.Errorf("%d sealed segments of %d", sealed, len(all))
		}
		d, err := in.InspectSegment(t.Context(), SegmentQuery{Stream: "plant", Sequence: 1, Partition: -1, Limit: 1})
		if err != nil || len(d.Batches) != 1 || !d.MoreBatches || len(d.Topics) != 1 || !d.MoreTopics || len(d.Clients) != 1 || !d.MoreClients {
			t.Errorf("%+v %v", d, err)
		}
		if _, err := in.InspectSegment(t.Context(), SegmentQuery{Stream: "plant", Sequence: 99}); !errors.Is(err, ErrUnknownSegment) {
			t.Errorf("unknown segment: %v", err)
		}
		j, err := in.InspectJournal(t.Context(), JournalQuery{Limit: 1})
		if err != nil || len(j.Frames) > 1 {
			t.Errorf("%+v %v", j, err)
		}
	}
	v := mustView(t, cfg)
	check(v)
	j, err := v.InspectJournal(t.Context(), JournalQuery{Limit: 10000})
	if err != nil || len(j.Frames) == 0 || j.Last != uint64(j.Frames[len(j.Frames)-1].LSN) {
		t.Errorf("journal: last %d of %d frames, %v", j.Last, len(j.Frames), err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	check(mustOpen(t, cfg, Options{}))
}

func TestViewEndsWithItsContext(t *testing.T) {
	v := mustView(t, mixedSpool(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.Dump(ctx, DumpQuery{Stream: "plant", Partition: -1}, func(DumpItem) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("dump: %v", err)
	}
	if _, err := v.Verify(ctx, VerifyOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("verify: %v", err)
	}
}

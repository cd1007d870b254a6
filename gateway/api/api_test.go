package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/spooltest"
	"github.com/forebay-gateway/forebay/tiering"
	"github.com/forebay-gateway/forebay/tiering/backup"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/klauspost/compress/zstd.(*blockDec).startDecoder"))
}

const token = "0123456789abcdefghijklmnop"

// serve answers for a spool until the test ends.
func serve(t *testing.T, in spool.Inspector) (*httptest.Server, *Client) {
	t.Helper()
	s := httptest.NewServer(New(Options{Token: token, Spool: func() spool.Inspector { return in }}))
	t.Cleanup(s.Close)
	return s, &Client{Address: strings.TrimPrefix(s.URL, "http://"), Token: token, HTTP: s.Client()}
}

type durable chan error

func (d durable) Durable(_ *spool.Record, err error) { d <- err }

func fill(t *testing.T, s *spool.Spool, n, size int) {
	t.Helper()
	done := make(durable, n)
	for i := range n {
		r := &spool.Record{Topic: fmt.Sprintf("plant/%d", i%10), ClientID: fmt.Sprint("device ", i%3), Payload: append(make([]byte, size), byte(i))}
		if err := s.Append(t.Context(), spool.Entry{Record: r, Done: done}); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

func TestClientSeesWhatTheSpoolSays(t *testing.T) {
	s := spooltest.Open(t, spool.StreamConfig{Name: "plant", Filters: []string{"plant/#"}, Partitions: 2})
	fill(t, s, 500, 10)
	if _, err := s.OpenCursor(t.Context(), "route", "plant", spool.CursorOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Load("nothing", nil); err != nil { // moves everything to segments
		t.Fatal(err)
	}
	_, c := serve(t, s)
	ctx := t.Context()
	same(t, s, c, func(in spool.Inspector) (spool.Listing, error) {
		l, err := in.List(ctx)
		l.Time, l.BytesOnDisk = time.Time{}, 0
		return l, err
	})
	segs := same(t, s, c, func(in spool.Inspector) (spool.SegmentsPage, error) {
		return in.ListSegments(ctx, spool.SegmentsQuery{Stream: "plant"})
	})
	q := spool.SegmentQuery{Stream: "plant", Sequence: segs.Segments[0].Sequence, Partition: 1, Limit: 5}
	same(t, s, c, func(in spool.Inspector) (spool.SegmentDetail, error) { return in.InspectSegment(ctx, q) })
	same(t, s, c, func(in spool.Inspector) (spool.JournalDetail, error) {
		return in.InspectJournal(ctx, spool.JournalQuery{Limit: 3})
	})
	m := same(t, s, c, func(in spool.Inspector) (spool.MetaDetail, error) {
		return in.InspectMeta(ctx, spool.MetaQuery{Space: "spool.cursors"})
	})
	if len(m.Keys) != 1 {
		t.Errorf("keys: %+v", m.Keys)
	}
	checked, err := c.VerifySegment(t.Context(), "plant", q.Sequence)
	if err != nil || checked.Segments != 1 || checked.Records != 500 || len(checked.Findings) > 0 {
		t.Errorf("verify: %+v %v", checked, err)
	}
	if _, err := c.VerifySegment(t.Context(), "plant", 99); err == nil {
		t.Error("verified a segment that is not there")
	}
	for _, q := range []spool.DumpQuery{
		{Stream: "plant", Partition: -1},
		{Stream: "plant", Partition: 1, From: 3, To: 50, Filter: "plant/+", Client: "device 1", Expired: true},
		{Stream: "plant", Partition: -1, Limit: 7},
	} {
		same(t, s, c, func(in spool.Inspector) (lines []spool.DumpLine, err error) {
			_, err = in.Dump(ctx, q, func(i spool.DumpItem) error { lines = append(lines, i.Line()); return nil })
			return lines, err
		})
	}
}

// same fails unless c says what s says, and returns it. It asks s before and after, until that is the same: the spool makes files in
// the background.
func same[T any](t *testing.T, s *spool.Spool, c *Client, ask func(spool.Inspector) (T, error)) T {
	t.Helper()
	said := func() string {
		v, err := ask(s)
		if err != nil {
			t.Fatal(err)
		}
		return asJSON(t, v)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		before := said()
		v, err := ask(c)
		if err != nil {
			t.Fatal(err)
		}
		got := asJSON(t, v)
		if after := said(); before == after || time.Now().After(end) {
			if got != after {
				t.Errorf("%T:\n got %s\nwant %s", v, got, after)
			}
			return v
		}
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestDumpGoesOnPageByPage(t *testing.T) {
	s := spooltest.Open(t, spool.StreamConfig{Name: "plant", Filters: []string{"plant/#"}, Partitions: 3})
	fill(t, s, 100, 256<<10) // 25 MiB: a page holds 4
	srv, c := serve(t, s)
	n := 0
	if _, err := c.Dump(t.Context(), spool.DumpQuery{Stream: "plant", Partition: -1}, func(spool.DumpItem) error { n++; return nil }); err != nil || n != 100 {
		t.Errorf("%d records, %v", n, err)
	}
	req, err := http.NewRequest(http.MethodGet, srv.URL+"/api/v1/spool/records?stream=plant", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	r, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); err != nil || len(b) > 4*maxPage || !strings.Contains(string(b), `"next":`) {
		t.Errorf("a page of %d bytes, %v", len(b), err)
	}
}

func TestOnlyTheTokenIsAnswered(t *testing.T) {
	s := spooltest.Open(t)
	srv, c := serve(t, s)
	f := func(path, authorization string, want int) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, srv.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
		r, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%s with %q: %s, want %d", path, authorization, r.Status, want)
		}
	}
	for _, path := range []string{"", "/segments", "/segment", "/journal", "/meta", "/records"} {
		f("/api/v1/spool"+path, "", 401)
		f("/api/v1/spool"+path, "Bearer ", 401)
		f("/api/v1/spool"+path, "Bearer "+token+"x", 401)
		f("/api/v1/spool"+path, token, 401)
	}
	f("/api/v1/spool", "Bearer "+token, 200)
	f("/api/v1/spool/segment?stream=no&sequence=1", "Bearer "+token, 404)
	f("/api/v1/spool/segment?sequence=x", "Bearer "+token, 400)
	f("/api/v1/spool/records?stream=default&since=yesterday", "Bearer "+token, 400)
	f("/api/v1/spool/records?stream=default&at=1", "Bearer "+token, 400)
	f("/api/v1/spool/records?stream=default&filter=a/%23/b", "Bearer "+token, 400)
	f("/api/v1/nothing", "Bearer "+token, 404)
	c.Token = "wrong"
	if _, err := c.List(t.Context()); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v", err)
	}
	nobody := New(Options{Spool: func() spool.Inspector { return s }})
	w := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodGet, "/api/v1/spool", nil)
	req.Header.Set("Authorization", "Bearer ")
	if nobody.ServeHTTP(w, req); w.Code != 401 {
		t.Errorf("without a token: %d", w.Code)
	}
}

func TestNoSpoolYet(t *testing.T) {
	_, c := serve(t, nil)
	if _, err := c.List(t.Context()); err == nil || !strings.Contains(err.Error(), "the spool is not open") {
		t.Errorf("got %v", err)
	}
}

// noBackup is a gateway whose spool is not open.
type noBackup struct{}

func (noBackup) StartBackup(BackupRequest) error { return spool.ErrClosed }
func (noBackup) BackupStatus() backup.Status     { return backup.Status{} }

// A gateway that starts has tiering, and could be backed up, in a moment.
func TestNoTieringAndNoBackupBeforeTheSpoolIsOpen(t *testing.T) {
	h := New(Options{Token: token, Spool: func() spool.Inspector { return nil }, Tier: func() *tiering.Tier { return nil }, Backup: noBackup{}})
	for _, call := range []string{"GET /api/v1/tiering", "POST /api/v1/backup?url=file:///x"} {
		method, path, _ := strings.Cut(call, " ")
		req := httptest.NewRequest(method, path, nil)
		req.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, req); w.Code != 503 || !strings.Contains(w.Body.String(), string(noSpool)) {
			t.Errorf("%s: %d %s", call, w.Code, w.Body)
		}
	}
}

// slow is an Inspector that answers when it is told to.
type slow struct {
	spool.Inspector
	entered chan struct{}
	leave   chan struct{}
}

func (s slow) List(context.Context) (spool.Listing, error) {
	s.entered <- struct{}{}
	<-s.leave
	return spool.Listing{}, nil
}

func TestFewRequestsAtOnce(t *testing.T) {
	in := slow{entered: make(chan struct{}), leave: make(chan struct{})}
	srv, c := serve(t, in)
	done := make(chan error, atOnce+1)
	for range atOnce {
		go func() { _, err := c.List(context.Background()); done <- err }()
		<-in.entered
	}
	req, _ := http.NewRequest(http.MethodGet, srv.URL+"/api/v1/spool", nil)
	req.Header.Set("Authorization", "Bearer "+token)
	r, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
		t.Errorf("one more: %s", r.Status)
	}
	close(in.leave)
	for range atOnce {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestTokenIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	first, err := MakeToken(dir)
	if err != nil || len(first) < tokenLen {
		t.Fatalf("%q, %v", first, err)
	}
	if again, err := MakeToken(dir); err != nil || again != first {
		t.Errorf("%q, %v, want %q", again, err, first)
	}
	fi, err := os.Stat(filepath.Join(dir, TokenFile))
	if err != nil || fi.Mode().Perm()&0o007 != 0 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
		t.Errorf("files left behind: %q", left)
	}
	if err := os.WriteFile(filepath.Join(dir, TokenFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeToken(dir); err == nil {
		t.Error("an empty token was taken")
	}
}

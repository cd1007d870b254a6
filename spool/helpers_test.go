package spool

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// smallConfig is a spool whose files are small, so that little data rolls, seals and fills.
func smallConfig(dir string, streams ...StreamConfig) Config {
	cfg := DefaultConfig()
	cfg.Dir = dir
	cfg.MaxSize = 1 << 30
	cfg.MinFree = 1 << 20
	cfg.QueueSize = 1 << 20
	cfg.TailSize = 4 << 20
	cfg.CommitInterval = unit.Duration(5 * time.Millisecond)
	cfg.Journal = JournalConfig{FileSize: 1 << 20, Files: 4}
	cfg.Segment.MaxSize = 1 << 20
	cfg.Segment.Codec = "s2"
	cfg.Streams = streams
	if file := os.Getenv(keyEnv); file != "" {
		cfg.Encryption = EncryptionConfig{Keys: []KeyConfig{{ID: 7, File: file}}, Active: 7}
	}
	return cfg
}

// keyEnv names a key file: tests, and processes that they start, then encrypt.
const keyEnv = "FOREBAY_SPOOL_TEST_KEY"

func oneStream(edit func(*StreamConfig)) StreamConfig {
	sc := DefaultStreamConfig(DefaultStream)
	sc.Partitions = 1
	if edit != nil {
		edit(&sc)
	}
	return sc
}

// testLog keeps a test's log, for what it expects and for the output of a failed test.
type testLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *testLog) contains(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), s)
}

func logTo(t testing.TB) (*testLog, *slog.Logger) {
	l := new(testLog)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(l.b.String())
		}
	})
	return l, slog.New(slog.NewTextHandler(l, nil))
}

func mustOpen(t testing.TB, cfg Config, opts Options) *Spool {
	t.Helper()
	if opts.Logger == nil {
		_, opts.Logger = logTo(t)
	}
	s, err := Open(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func mustClose(t testing.TB, s *Spool) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

// waiter is a Completion that one goroutine waits for.
type waiter chan error

func (w waiter) Durable(_ *Record, err error) { w <- err }

func newWaiter() waiter { return make(waiter, 1) }

func testRecord(i int) *Record {
	return &Record{Topic: fmt.Sprintf("plant/%d/temp", i%7), ClientID: fmt.Sprintf("device-%d", i%5), Payload: fmt.Appendf(nil, "value %d", i), QoS: 1}
}

// put appends and waits until it is durable.
func put(t testing.TB, s *Spool, e Entry) {
	t.Helper()
	w := newWaiter()
	e.Done = w
	if err := s.Append(t.Context(), e); err != nil {
		t.Fatalf("append: %v", err)
	}
	if err := <-w; err != nil {
		t.Fatalf("durable: %v", err)
	}
}

// putMany appends the records i..j-1 and waits for the last.
func putMany(t testing.TB, s *Spool, i, j int) {
	t.Helper()
	for ; i < j-1; i++ {
		if err := s.Append(context.Background(), Entry{Record: testRecord(i)}); err != nil {
			t.Fatalf("append: %v", err)
		}
	}
	put(t, s, Entry{Record: testRecord(i)})
}

// readAll reads from an offset to the durable end, and returns the payloads and gaps.
func readAll(t testing.TB, s *Spool, stream string, partition int, from Offset) (payloads []string, gaps []Gap) {
	t.Helper()
	r, err := s.NewReader(stream, partition, from)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	next := from
	for {
		b, ok, err := r.TryNext()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return payloads, gaps
		}
		if b.Gap != nil {
			gaps = append(gaps, *b.Gap)
			if b.Gap.From != next || b.Gap.To != b.First {
				t.Fatalf("gap %+v after offset %d, batch from %d", *b.Gap, next, b.First)
			}
			next = b.Gap.To
		}
		if b.First != next || b.Next < b.First {
			t.Fatalf("batch %d..%d, want one from %d", b.First, b.Next, next)
		}
		for i := range b.Records {
			if o := b.Records[i].Offset; o < next || o >= b.Next {
				t.Fatalf("record at %d in batch %d..%d after %d", o, b.First, b.Next, next)
			}
			next = b.Records[i].Offset + 1
			payloads = append(payloads, string(b.Records[i].Payload))
		}
		next = b.Next
	}
}

func wantPayloads(t testing.TB, got []string, i, j int) {
	t.Helper()
	want := make([]string, 0, j-i)
	for ; i < j; i++ {
		want = append(want, fmt.Sprintf("value %d", i))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %d payloads (%.60q ... ), want %d (%.60q ...)", len(got), got, len(want), want)
	}
}

// eventually waits for what another goroutine is about to do.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after 30s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

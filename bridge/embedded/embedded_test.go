package embedded

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testConfig(t *testing.T) Config {
	cfg := DefaultConfig()
	cfg.Enabled, cfg.Address, cfg.Dir = true, "127.0.0.1:0", t.TempDir()
	return cfg
}

func start(t *testing.T, cfg Config) *Upstream {
	t.Helper()
	u, err := Start(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func client(t *testing.T, u *Upstream, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(u.Addr()), kgo.AllowAutoTopicCreation(), kgo.MetadataMinAge(100 * time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

func produce(t *testing.T, u *Upstream, n int, at time.Time) {
	t.Helper()
	cl := client(t, u)
	defer cl.Close()
	var rs []*kgo.Record
	for i := range n {
		rs = append(rs, &kgo.Record{Topic: "t", Value: fmt.Appendf(nil, "%d", i), Timestamp: at})
	}
	if err := cl.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func consume(t *testing.T, u *Upstream, n int) {
	t.Helper()
	cl := client(t, u, kgo.ConsumeTopics("t"))
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for got := 0; got < n; {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			t.Fatalf("%d of %d: %v", got, n, err)
		}
		got += fs.NumRecords()
	}
}

func TestRecordsSurviveSuspendAndRestart(t *testing.T) {
	cfg := testConfig(t)
	u := start(t, cfg)
	addr := u.Addr()
	produce(t, u, 100, time.Now())
	u.Suspend()
	if err := u.Resume(); err != nil {
		t.Fatal(err)
	}
	if u.Addr() != addr {
		t.Errorf("came back at %s, was at %s", u.Addr(), addr)
	}
	produce(t, u, 100, time.Now())
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	if err := u.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := u.Resume(); err == nil {
		t.Error("resumed after Close")
	}
	u = start(t, cfg)
	defer u.Close()
	consume(t, u, 200)
}

func TestDirectoryIsLocked(t *testing.T) {
	cfg := testConfig(t)
	u := start(t, cfg)
	defer u.Close()
	if _, err := Start(cfg, Options{}); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("second broker on the directory: %v, want ErrLocked", err)
	}
}

func TestPortInUseIsTold(t *testing.T) {
	u := start(t, testConfig(t))
	defer u.Close()
	cfg := testConfig(t)
	cfg.Address = u.Addr()
	if _, err := Start(cfg, Options{}); err == nil || !strings.Contains(err.Error(), u.Addr()) {
		t.Errorf("%v, want the address in it", err)
	}
	// The directory is free again.
	cfg.Address = "127.0.0.1:0"
	start(t, cfg).Close()
}

func TestRetentionRemovesOldRecords(t *testing.T) {
	cfg := testConfig(t)
	cfg.Partitions = 1
	u := start(t, cfg)
	defer u.Close()
	produce(t, u, 10, time.Now().Add(-48*time.Hour)) // older than the retention
	produce(t, u, 5, time.Now())
	u.cluster.ApplyRetention() // what the ticker does
	if p := u.cluster.PartitionInfo("t", 0); p.LogStartOffset != 10 || p.HighWatermark != 15 {
		t.Errorf("log from %d to %d, want 10 to 15", p.LogStartOffset, p.HighWatermark)
	}
}

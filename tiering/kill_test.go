package tiering

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/spooltest"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// childEnv is the directory that a child works in, and the number of its first record: DIR:N.
const childEnv = "FOREBAY_TIERING_CHILD"

func killConfig(dir string) (spool.Config, Config) {
	sc := spool.DefaultStreamConfig(stream)
	sc.Partitions = 2
	scfg := spooltest.Config(filepath.Join(dir, "spool"), sc)
	cfg := DefaultConfig()
	cfg.URL = "file://" + filepath.Join(dir, "cold")
	cfg.CacheDir, cfg.PartSize = filepath.Join(dir, "cache"), 8<<10
	cfg.Bandwidth = 2 << 20 // slow enough to be killed in the middle
	cfg.Streams = []StreamConfig{{Name: stream, KeepLocal: unit.Duration(50 * time.Millisecond)}}
	return scfg, cfg
}

// child appends, seals, stores and removes local copies as fast as it can, and says what was acknowledged.
func child() int {
	dir, number, _ := strings.Cut(os.Getenv(childEnv), "@")
	n, err := strconv.Atoi(number)
	if err == nil {
		err = storeUntilKilled(dir, n)
	}
	fmt.Println("E", err)
	return 1
}

func storeUntilKilled(dir string, n int) error {
	scfg, cfg := killConfig(dir)
	ctx := context.Background()
	tier, err := New(ctx, cfg, Options{Dir: filepath.Join(dir, "tier"), GatewayID: "edge-1"})
	if err != nil {
		return err
	}
	s, err := spool.Open(scfg, spool.Options{Keep: tier.Keep})
	if err != nil {
		return err
	}
	tier.Attach(s)
	go func() {
		for {
			if err := tier.Round(ctx); err != nil {
				fmt.Println("E", err)
				os.Exit(1)
			}
			time.Sleep(5 * time.Millisecond) // a pace, not a wait for anything
		}
	}()
	for {
		done := make(durable, 100)
		for range 100 {
			if err := s.Append(ctx, spool.Entry{Record: record(n), Done: done}); err != nil {
				return err
			}
			n++
		}
		for range 100 {
			if err := <-done; err != nil {
				return err
			}
		}
		fmt.Println("A", n) // all below are acknowledged
		snap, err := s.Snapshot(ctx, filepath.Join(dir, "snap.db"))
		if err != nil {
			return err
		}
		snap.Release()
	}
}

// Killed at any moment, of an upload, of a manifest, of a removal: every record that was acknowledged can be read, from the spool or
// the store, once.
func TestKilledTierLosesNothing(t *testing.T) {
	rounds := 6
	if os.Getenv("FOREBAY_CRASH") == "long" {
		rounds = 100
	}
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	dir := t.TempDir()
	acked := 0
	for range rounds {
		if n := killOne(t, dir, acked, time.Duration(100+rng.IntN(900))*time.Millisecond); n > acked {
			acked = n
		}
		acked = checkKilled(t, dir, acked)
	}
}

// killOne runs a child for a while, and is how many records were acknowledged.
func killOne(t *testing.T, dir string, from int, after time.Duration) (acked int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s@%d", childEnv, dir, from))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	for sc := bufio.NewScanner(out); sc.Scan(); {
		word, rest, _ := strings.Cut(sc.Text(), " ")
		if word == "E" {
			t.Errorf("child: %s", rest)
		}
		if n, err := strconv.Atoi(rest); word == "A" && err == nil {
			acked = n
		}
	}
	_ = cmd.Wait()
	return acked
}

// checkKilled opens what the child has left and reads all. It returns how many records there are: some that were not
// acknowledged may be.
func checkKilled(t *testing.T, dir string, acked int) int {
	t.Helper()
	scfg, cfg := killConfig(dir)
	cfg.Bandwidth = 0
	tier, err := New(t.Context(), cfg, Options{Dir: filepath.Join(dir, "tier"), GatewayID: "edge-1"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := spool.Open(scfg, spool.Options{Keep: tier.Keep})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer tier.Close(context.Background())
	tier.Attach(s)

	// The store, as it is: what the manifest or an entry names is whole.
	dirStore, err := store.OpenDir(filepath.Join(dir, "cold"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := (&Cold{Store: dirStore, Cache: tier.cache}).Manifest(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	if m.Generation > 0 {
		if _, err := manifest.Load(t.Context(), dirStore, stream); err != nil {
			t.Fatalf("the manifest that was saved: %v", err)
		}
	}
	if err := tier.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	if _, err := tier.Dump(t.Context(), spool.DumpQuery{Stream: stream, Partition: -1}, func(i spool.DumpItem) error {
		if i.Record == nil {
			return fmt.Errorf("gap %+v", i.Gap)
		}
		seen[string(i.Record.Payload)]++
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	n := len(seen)
	if n < acked {
		t.Fatalf("%d records, %d were acknowledged", n, acked)
	}
	for i := range n {
		if seen[string(record(i).Payload)] != 1 {
			t.Fatalf("record %d is there %d times", i, seen[string(record(i).Payload)])
		}
	}
	t.Logf("%d records, %d segments in the store, %d local", n, len(m.Segments), tier.Status().Streams[0].LocalSegments)
	return n
}

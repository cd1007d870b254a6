package journal

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forebay-gateway/forebay/spool/vfs/vfstest"
)

func lazy() Config {
	cfg := small()
	cfg.Sync, cfg.SyncInterval = ModeInterval, 10*time.Millisecond
	return cfg
}

func TestIntervalSyncsInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := vfstest.NewDisk()
		j := openOn(t, d, lazy())
		j.quiesce()
		before := d.Ops()
		for range 5 {
			mustAppend(t, j, "x")
		}
		if log := d.Log(before); len(log) != 5 {
			t.Errorf("append synced: %v", log)
		}
		if j.DurableLSN() != 0 || j.LastLSN() != 5 {
			t.Errorf("durable %d, last %d", j.DurableLSN(), j.LastLSN())
		}
		time.Sleep(11 * time.Millisecond)
		synctest.Wait()
		if log := d.Log(before); len(log) != 6 || j.DurableLSN() != 5 {
			t.Errorf("after the interval: durable %d, %v", j.DurableLSN(), log)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if log := d.Log(before); len(log) != 6 {
			t.Errorf("an idle journal syncs: %v", log)
		}
		j.Close()
	})
}

func TestIntervalSyncsWhenAsked(t *testing.T) {
	d := vfstest.NewDisk()
	cfg := lazy()
	cfg.SyncInterval = time.Minute
	j := openOn(t, d, cfg)
	j.quiesce()
	mustAppend(t, j, "x")
	if err := j.Sync(); err != nil || j.DurableLSN() != 1 {
		t.Errorf("durable %d: %v", j.DurableLSN(), err)
	}
	before := d.Ops()
	if err := j.Sync(); err != nil || len(d.Log(before)) != 0 {
		t.Errorf("nothing is waiting, and it did %v: %v", d.Log(before), err)
	}
	j.Close()
}

func TestIntervalSyncsBeforeTheNextFileAndAtClose(t *testing.T) {
	d := vfstest.NewDisk()
	cfg := lazy()
	cfg.SyncInterval = time.Minute
	j := openOn(t, d, cfg)
	mustAppend(t, j, string(body("a", 40000)))
	mustAppend(t, j, string(body("b", 40000)))
	if j.DurableLSN() != 1 {
		t.Errorf("durable %d", j.DurableLSN())
	}
	j.Close()
	j = openOn(t, d.Cut(d.Ops(), vfstest.KeepNone, nil), cfg)
	got, lost := contents(t, j, 0)
	want(t, got, 1, string(body("a", 40000)), string(body("b", 40000)))
	if lost != nil {
		t.Errorf("lost %v", lost)
	}
}

func TestIntervalRewritesAllThatIsUnsyncedAfterAFailedSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := vfstest.NewDisk()
		fs := vfstest.NewFaults(d)
		j := openOn(t, fs, lazy())
		j.quiesce()
		mustAppend(t, j, "a", "b")
		mustAppend(t, j, strings.Repeat("c", 20000))
		fs.Add(vfstest.Fault{Kind: vfstest.Datasync, Err: syscall.EIO, N: 1})
		time.Sleep(11 * time.Millisecond)
		synctest.Wait()
		if s := j.Stats(); s.Rescues != 1 || s.FileErrors != 1 || s.Durable != 3 {
			t.Fatalf("%+v", s)
		}
		mustAppend(t, j, "d")
		fs.Add(vfstest.Fault{Kind: vfstest.Write, Err: syscall.EIO, N: 1})
		mustAppend(t, j, "e")
		if j.DurableLSN() != 5 {
			t.Errorf("durable %d", j.DurableLSN())
		}
		j.Close()
		j = openOn(t, d.Cut(d.Ops(), vfstest.KeepNone, nil), lazy())
		got, _ := contents(t, j, 0)
		want(t, got, 1, "a", "b", strings.Repeat("c", 20000), "d", "e")
		j.Close()
	})
}

func TestIntervalFailsForEverWhenTheRewriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := vfstest.NewDisk()
		fs := vfstest.NewFaults(d)
		j := openOn(t, fs, lazy())
		mustAppend(t, j, "a")
		fs.Add(vfstest.Fault{Kind: vfstest.Datasync, Err: syscall.EIO, Times: -1, N: 1})
		time.Sleep(11 * time.Millisecond)
		synctest.Wait()
		fs.Clear()
		if _, _, err := j.Append([]byte("b")); !errors.Is(err, ErrFailed) || !errors.Is(err, syscall.EIO) {
			t.Errorf("append: %v", err)
		}
		if err := j.Err(); !errors.Is(err, ErrFailed) || j.Room() != 0 {
			t.Errorf("err %v, room %d", err, j.Room())
		}
		j.Close()
	})
}

func TestIntervalMemoryIsBounded(t *testing.T) {
	d := vfstest.NewDisk()
	cfg := lazy()
	cfg.SyncInterval, cfg.FileSize = time.Minute, 16<<20
	j := openOn(t, d, cfg)
	for range 12 {
		mustAppend(t, j, strings.Repeat("x", 1<<20))
		if n := len(j.pend) + len(j.fly); n > maxUnsynced+2<<20 {
			t.Fatalf("%d bytes wait for a sync", n)
		}
	}
	if j.Stats().Syncs < 2 {
		t.Error("no sync before the interval")
	}
}

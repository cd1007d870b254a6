package backup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/spooltest"
	"github.com/forebay-gateway/forebay/tiering/store"
	"github.com/forebay-gateway/forebay/tiering/store/storetest"
)

// smallDisk mounts one of the given size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("no tmpfs can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// A disk that is full in the middle of a backup leaves the one before whole, and the next goes on with what there is.
func TestAFullDiskEndsABackupAndHarmsNoOther(t *testing.T) {
	b := newBench(t)
	b.dir = filepath.Join(smallDisk(t, "3m"), "backups")
	var err error
	if b.st, err = store.OpenDir(b.dir); err != nil {
		t.Fatal(err)
	}
	b.add(50)
	first := b.backup(b.st, Options{})
	ballast := filepath.Join(filepath.Dir(b.dir), "ballast")
	fillDisk(t, ballast)
	b.add(50)
	if _, err := Create(t.Context(), b.s, b.st, Options{Gateway: "edge-1", Scratch: t.TempDir()}); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("on a full disk: %v", err)
	}
	b.wantRestored("latest", 50)
	if _, err := Prune(t.Context(), b.st, 1); err != nil {
		t.Error(err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	b.backup(b.st, Options{})
	b.wantRestored("latest", 100)
	b.wantRestored(first.ID, 50)
}

func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// A restore that does not fit says so and leaves nothing.
func TestAFullDiskEndsARestore(t *testing.T) {
	b := newBench(t)
	b.add(50)
	info := b.backup(b.st, Options{})
	disk := smallDisk(t, "24k")
	if err := Restore(t.Context(), b.st, info, spooltest.Config(filepath.Join(disk, "spool")), nil); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(disk); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A store that goes away at any call ends the backup with its error; what was there before is whole, and the one after goes through.
func TestAStoreThatGoesAwayHarmsNoBackup(t *testing.T) {
	b := newBench(t)
	b.add(10)
	first := b.backup(b.st, Options{})
	b.add(10)
	for n := 0; ; n++ {
		faulty, calls := storetest.NewFaulty(b.st), 0
		faulty.Fail(func(op, _ string) error {
			if calls++; calls > n && op != "get" { // a read is tried again for half a minute
				return storetest.ErrInjected
			}
			return nil
		})
		info, err := Create(t.Context(), b.s, faulty, Options{Gateway: "edge-1", Scratch: t.TempDir()})
		b.wantRestored(first.ID, 10)
		latest, lerr := Read(t.Context(), b.st, "latest")
		if lerr != nil {
			t.Fatal(lerr)
		}
		if err == nil {
			if latest.ID != info.ID {
				t.Errorf("latest is %s, want %s", latest.ID, info.ID)
			}
			b.wantRestored(latest.ID, 20)
			if n < 10 {
				t.Errorf("done after %d calls: that was no test", n)
			}
			return
		}
		if !errors.Is(err, storetest.ErrInjected) || n > 200 {
			t.Fatalf("after %d calls: %v", n, err)
		}
		if latest.ID != first.ID { // its answer was lost: it stands
			b.wantRestored(latest.ID, 20)
		}
	}
}

// An encrypted spool is encrypted in the backup, and wants its keys when it is restored.
func TestBackupOfAnEncryptedSpool(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("5a", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := spooltest.Config(filepath.Join(dir, "spool"))
	cfg.Encryption = spool.EncryptionConfig{Keys: []spool.KeyConfig{{ID: 1, File: key}}, Active: 1}
	b := &bench{T: t, dir: filepath.Join(dir, "backups")}
	var err error
	if b.s, err = spool.Open(cfg, spool.Options{}); err != nil {
		t.Fatal(err)
	}
	defer b.s.Close()
	if b.st, err = store.OpenDir(b.dir); err != nil {
		t.Fatal(err)
	}
	b.add(20)
	info := b.backup(b.st, Options{})
	for _, prefix := range []string{"segments/", "backups/"} {
		for _, key := range b.keys(prefix) {
			whole, err := os.ReadFile(b.file(key))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(whole), "device-1") || strings.Contains(string(whole), "plant/1") {
				t.Errorf("%s has a client or a topic to read", key)
			}
		}
	}
	to := spooltest.Config(filepath.Join(dir, "without"))
	if err := Restore(t.Context(), b.st, info, to, nil); err == nil || exists(to.Dir) {
		t.Errorf("without the key: %v", err)
	}
	to = spooltest.Config(filepath.Join(dir, "with"))
	to.Encryption = cfg.Encryption
	if err := Restore(t.Context(), b.st, info, to, nil); err != nil {
		t.Fatal(err)
	}
	s, err := spool.Open(to, spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := payloads(t, s); len(got) != 20 {
		t.Errorf("%d records", len(got))
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

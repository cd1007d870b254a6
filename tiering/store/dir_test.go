package store

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// syncs has the syncs of directories noted below root, and fail decides what they come to.
func syncs(t *testing.T, root string, fail func(dir string) error) func() []string {
	var list []string
	syncNames = func(dir string) error {
		rel, _ := filepath.Rel(root, dir)
		list = append(list, rel)
		if err := fail(rel); err != nil {
			return err
		}
		return syncDir(dir)
	}
	t.Cleanup(func() { syncNames = syncDir })
	return func() []string {
		was := list
		list = nil
		return was
	}
}

func ok(string) error { return nil }

// A process that is killed behind a rename leaves a name that a power cut can take. Whoever is told of it acts on it, so that it is made durable first,
// with the directories on the way.
func TestNamesThatAKilledProcessLeftAreDurableBeforeAnybodyIsToldOfThem(t *testing.T) {
	for what, look := range map[string]func(d *Dir) error{
		"get":  func(d *Dir) error { _, err := ReadAll(t.Context(), d, "a/seg/1.json", 100); return err },
		"stat": func(d *Dir) error { _, err := d.Stat(t.Context(), "a/seg/1.json"); return err },
		"list": func(d *Dir) error { return d.List(t.Context(), "a/seg/", func(Object) error { return nil }) },
	} {
		t.Run(what, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "cold")
			if err := os.MkdirAll(filepath.Join(root, "a", "seg"), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, "a", "seg", "1.json"), []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := OpenDir(root)
			if err != nil {
				t.Fatal(err)
			}
			got := syncs(t, root, ok)
			if err := look(d); err != nil {
				t.Fatal(err)
			}
			if list := got(); !slices.Equal(list, []string{"a/seg", "a", ".", ".."}) {
				t.Errorf("%v were synced", list)
			}
			if err := look(d); err != nil {
				t.Fatal(err)
			}
			if list := got(); len(list) != 0 {
				t.Errorf("%v were synced once more", list)
			}
		})
	}
}

// A sync that failed behind the rename: the object is not stored as far as its writer knows, and whoever finds it has it synced, or an error.
func TestNameWhoseSyncFailedIsSyncedBeforeItIsToldOf(t *testing.T) {
	for _, absent := range []bool{false, true} {
		root := t.TempDir()
		d, err := OpenDir(root)
		if err != nil {
			t.Fatal(err)
		}
		if err := PutBytes(t.Context(), d, "a/1", nil, false); err != nil {
			t.Fatal(err)
		}
		var bad error
		got := syncs(t, root, func(string) error { return bad })
		bad = syscall.EIO
		if err := PutBytes(t.Context(), d, "a/2", nil, absent); !errors.Is(err, syscall.EIO) {
			t.Fatalf("put: %v", err)
		}
		if _, err := d.Stat(t.Context(), "a/2"); !errors.Is(err, syscall.EIO) {
			t.Errorf("stat: %v", err)
		}
		bad = nil
		got()
		if _, err := d.Stat(t.Context(), "a/2"); err != nil {
			t.Errorf("stat: %v", err)
		}
		if list := strings.Join(got(), " "); !strings.HasPrefix(list, "a") {
			t.Errorf("%s were synced", list)
		}
	}
}

// What only may be read is read all the same, and is not asked again.
func TestDirectoryThatCannotBeSyncedIsRead(t *testing.T) {
	for _, why := range []error{syscall.EROFS, syscall.EINVAL, syscall.EACCES, syscall.ENOTSUP} {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "1"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := OpenDir(root)
		if err != nil {
			t.Fatal(err)
		}
		got := syncs(t, root, func(string) error { return why })
		for range 2 {
			if _, err := d.Stat(t.Context(), "1"); err != nil {
				t.Errorf("stat: %v", err)
			}
		}
		if list := got(); len(list) != 2 {
			t.Errorf("%v: %v were synced", why, list)
		}
	}
}

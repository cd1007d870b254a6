package store_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/tiering/store"
	"github.com/forebay-gateway/forebay/tiering/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDirKeepsTheContract(t *testing.T) {
	s, err := store.OpenDir(filepath.Join(t.TempDir(), "made", "for", "it"))
	if err != nil {
		t.Fatal(err)
	}
	storetest.Run(t, s, "some/prefix/")
}

func TestURLsThatNameNoStoreAreRefused(t *testing.T) {
	f := func(url, want string) {
		t.Helper()
		err := store.CheckURL(url)
		if want == "" && err != nil {
			t.Errorf("%s: %v", url, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want something about %q", url, err, want)
		}
	}
	f("file:///var/lib/cold", "")
	f("/var/lib/cold", "")
	f("s3://bucket/a/b?region=eu-central-1", "")
	f("gs://bucket", "")
	f("azblob://container/p", "")
	f("file://var/lib/cold", "no host")
	f("file:///", "no directory")
	f("s3:///prefix", "no bucket")
	f("s3://key:secret@bucket", "credentials")
	f("s3://bucket/a/../b", "not a path")
	f("ftp://x", "want file:///")
	f("cold", "want file:///")
}

func TestSecretsInAURLAreNotShown(t *testing.T) {
	err := store.CheckURL("ftp://bucket/x?sig=topsecret")
	if err == nil || strings.Contains(err.Error(), "topsecret") {
		t.Errorf("got %v", err)
	}
}

func TestUnfinishedFilesAreNoObjects(t *testing.T) {
	dir := t.TempDir()
	s, err := store.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.123.part~"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.List(t.Context(), "", func(o store.Object) error { return errors.New(o.Key) }); err != nil {
		t.Errorf("listed: %v", err)
	}
}

// What a crash has left goes with the first object that is put beside it an hour later, also where nobody puts anything any more; what is
// younger may be in the making, and what lies outside the prefix is somebody else's.
func TestLeftoversGoLater(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-2 * time.Hour)
	put := func(name string, at time.Time) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		for path != dir { // the file, and its directories
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
			path = filepath.Dir(path)
		}
	}
	put("store/backups/5/young.1.part~", time.Now())
	put("store/backups/4/part", old)
	put("store/backups/3/old.1.part~", old)
	put("store/backups/2/old.1.part~", old)
	put("store/backups/2/whole", old)
	for _, empty := range []string{"store/backups/1", "store/empty", "empty"} {
		put(empty+"/x", old)
		if err := os.Remove(filepath.Join(dir, empty, "x")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(dir, empty), old, old); err != nil {
			t.Fatal(err)
		}
	}
	s, err := store.OpenDir(filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"backups/6/claim", "a/b", "c"} {
		if err := store.PutBytes(t.Context(), s, key, []byte("x"), false); err != nil {
			t.Fatal(err)
		}
	}
	var left []string
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, _ error) error {
		rel, _ := filepath.Rel(dir, path)
		left = append(left, rel)
		return nil
	})
	want := ". empty store store/a store/a/b store/backups store/backups/2 store/backups/2/whole store/backups/4 store/backups/4/part store/backups/5 " +
		"store/backups/5/young.1.part~ store/backups/6 store/backups/6/claim store/c store/empty"
	if got := strings.Join(left, " "); got != want {
		t.Errorf("there is\n%s, want\n%s", got, want)
	}
}

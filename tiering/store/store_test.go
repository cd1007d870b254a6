package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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

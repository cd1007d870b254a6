package journal

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// TestOldDirectoryStillOpens opens a directory that an earlier version has written; -update writes a new one, which is
// right only for a new format version, beside the old ones.
func TestOldDirectoryStillOpens(t *testing.T) {
	const old = "testdata/v1"
	if *update {
		writeOld(t, old)
	}
	dir := t.TempDir()
	names, err := filepath.Glob(old + "/*.gz")
	if err != nil || len(names) != 2 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		z, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := gzip.NewReader(bytes.NewReader(z))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, strings.TrimSuffix(filepath.Base(name), ".gz")), b, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{Dir: dir, FileSize: 1 << 20, Files: 2}
	j, err := Open(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	got, lost := contents(t, j, 0)
	var payloads []string
	for i := range 9 {
		payloads = append(payloads, oldPayload(i))
	}
	want(t, got, 1, payloads...)
	if lost != nil {
		t.Errorf("lost %v", lost)
	}
	if first, _ := mustAppend(t, j, "new"); first != 10 {
		t.Errorf("lsn %d", first)
	}
}

func oldPayload(i int) string { return strings.Repeat(fmt.Sprintf("payload %d;", i), 20000) }

func writeOld(t *testing.T, to string) {
	dir := t.TempDir()
	j := openOn(t, vfs.OS, Config{Dir: dir, FileSize: 1 << 20, Files: 2})
	for i := range 9 {
		mustAppend(t, j, oldPayload(i))
	}
	j.Close()
	names, _ := filepath.Glob(dir + "/*" + suffix)
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var z bytes.Buffer
		w, _ := gzip.NewWriterLevel(&z, gzip.BestCompression)
		_, _ = w.Write(b)
		w.Close()
		if err := os.WriteFile(filepath.Join(to, filepath.Base(name)+".gz"), z.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

package spool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// Whatever has happened to meta.db, the process goes on, every record is there, and new state can be written.
func TestAnyDamageOfMetaIsSurvived(t *testing.T) {
	cfg, _ := threeSegments(t)
	s := mustOpen(t, cfg, Options{})
	for i := range 3000 {
		if err := s.Append(t.Context(), Entry{Changes: []Change{{"a", fmt.Sprint(i), make([]byte, 200)}}}); err != nil {
			t.Fatal(err)
		}
	}
	put(t, s, Entry{Changes: []Change{{"b", "x", make([]byte, 20000)}}})
	mustClose(t, s)
	sound, err := os.ReadFile(filepath.Join(cfg.Dir, "meta.db"))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(7, 8))
	for i := range 40 {
		b := append([]byte(nil), sound...)
		page := rng.IntN(len(b)/4096) * 4096
		switch i % 5 {
		case 0:
			b = b[:rng.IntN(len(b))]
		case 1:
			clear(b[page:][:4096])
		case 2:
			copy(b[page:][:4096], b[rng.IntN(len(b)/4096)*4096:])
		case 3:
			b[page+rng.IntN(64)] ^= 1 << rng.IntN(8)
		default:
			for range 50 {
				b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
			}
		}
		cfg := cfg
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(cfg.Dir)); err != nil {
			t.Fatal(err)
		}
		cfg.Dir = dir
		if err := os.WriteFile(filepath.Join(dir, "meta.db"), b, 0o640); err != nil {
			t.Fatal(err)
		}
		s, err := Open(cfg, Options{})
		if errors.Is(err, ErrUnsupported) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got, gaps := readAll(t, s, DefaultStream, 0, 0)
		if len(got) != 400 || len(gaps) != 0 {
			t.Errorf("damage %d: %d records, gaps %v", i, len(got), gaps)
		}
		for i := range 200 {
			put(t, s, Entry{Changes: []Change{{"a", fmt.Sprint(i * 17), make([]byte, 300)}}})
		}
		if err := errors.Join(s.materialise(true), s.Load("a", func(string, []byte) error { return nil }), s.Close()); err != nil {
			t.Errorf("damage %d: %v", i, err)
		}
	}
}

func TestDamagedValueInMetaDoesNotStopTheStart(t *testing.T) {
	cfg, _ := threeSegments(t)
	path := filepath.Join(cfg.Dir, "meta.db")
	db, err := bolt.Open(path, 0o640, nil)
	if err == nil {
		err = db.Update(func(tx *bolt.Tx) error {
			return tx.Bucket(bucketPartitions).Put(partitionKey(DefaultStream, 0), []byte("{\"next\":"))
		})
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, cfg, Options{})
	got, _ := wantAccounts(t, s, 400)
	wantPayloads(t, got, 0, 400)
	if q := quarantined(t, cfg); len(q) != 1 || !strings.Contains(q[0], "meta.db") {
		t.Errorf("quarantine %v", q)
	}
}

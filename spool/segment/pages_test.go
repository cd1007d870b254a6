package segment

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

// busyDatabase has nested buckets, values of many pages and a stored free list.
func busyDatabase(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.db")
	db, err := bolt.Open(path, 0o640, &bolt.Options{PageSize: pageSize})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		if err := db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("s"))
			for i := 0; i < 200 && err == nil; i++ {
				var n *bolt.Bucket
				if n, err = b.CreateBucketIfNotExists(fmt.Append(nil, i%7)); err != nil {
					return err
				}
				key := fmt.Append(nil, rng.IntN(2000))
				if rng.IntN(3) == 0 {
					err = n.Delete(key)
				} else {
					err = n.Put(key, make([]byte, rng.IntN(200)*rng.IntN(50)))
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheckPagesTakesWhatBboltWrites(t *testing.T) {
	if err := CheckPages(busyDatabase(t)); err != nil {
		t.Error(err)
	}
}

// Whatever passes must be safe to use: bbolt's own check finds nothing in it.
func TestCheckPagesFindsWhatBboltCannotBear(t *testing.T) {
	sound, err := os.ReadFile(busyDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "damaged.db")
	rng := rand.New(rand.NewPCG(5, 6))
	found := 0
	for range 300 {
		b := append([]byte(nil), sound...)
		switch page := rng.IntN(len(b)/pageSize) * pageSize; rng.IntN(4) {
		case 0:
			b = b[:rng.IntN(len(b))]
		case 1:
			clear(b[page:][:pageSize])
		case 2:
			copy(b[page:][:pageSize], b[rng.IntN(len(b)/pageSize)*pageSize:])
		default:
			for range 1 + rng.IntN(4) {
				b[page+rng.IntN(80)] ^= 1 << rng.IntN(8)
			}
		}
		if err := os.WriteFile(path, b, 0o640); err != nil {
			t.Fatal(err)
		}
		var ce *CorruptionError
		switch err := CheckPages(path); {
		case errors.As(err, &ce), errors.Is(err, ErrUnsupported):
			found++
			continue
		case err != nil:
			t.Fatalf("%v", err)
		}
		db, err := bolt.Open(path, 0o640, &bolt.Options{ReadOnly: true})
		if err != nil {
			t.Fatalf("what has passed cannot be opened: %v", err)
		}
		_ = db.View(func(tx *bolt.Tx) error {
			for err := range tx.Check() {
				if s := err.Error(); !strings.HasSuffix(s, "unreachable unfreed") && !strings.Contains(s, "page 0: has unexpected type") &&
					!strings.Contains(s, "page 1: has unexpected type") { // of a meta page only its checksum counts
					t.Errorf("what has passed: %v", err)
				}
			}
			return nil
		})
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if found < 60 {
		t.Errorf("found %d", found)
	}
}

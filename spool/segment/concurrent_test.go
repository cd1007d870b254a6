package segment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// Readers follow a writer through the seal: what they see is dense, and never beyond what Write has returned for.
func TestReadersFollowWriterAndSeal(t *testing.T) {
	s := mustCreate(t, Options{Codec: CodecS2})
	const batches = 150
	var wg sync.WaitGroup
	for r := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(r), 1))
			p, at := uint16(r%2), uint64(0)
			for at < batches*50 {
				next, err := s.Read(p, at, 1+rng.IntN(200_000)<<rng.IntN(5), func(b Batch) error {
					if b.Base != at {
						return fmt.Errorf("partition %d: batch %d, want %d", p, b.Base, at)
					}
					at = b.Next
					return nil
				})
				if err != nil || next != at {
					t.Error(next, at, err)
					return
				}
				_, _, _ = s.SeekTime(p, int64(at))
				_ = s.Info()
			}
		})
	}
	rng := rand.New(rand.NewPCG(9, 9))
	for i := range uint64(batches) {
		mustWrite(t, s, i+1, batch(rng, 0, i*50, 50), batch(rng, 1, i*50, 50))
	}
	if err := s.Seal(context.Background(), indexBody); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

func TestFailedWriteIsNotTriedAgain(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	s := mustCreate(t, Options{})
	mustWrite(t, s, 1, batch(rng, 0, 0, 10))
	s.writing.Lock()
	err := s.commitLocked(s.state.Load().clone(), func(*bolt.Tx) error { return errors.New("input/output error") })
	s.writing.Unlock()
	if !errors.Is(err, ErrFailed) {
		t.Error(err)
	}
	if err := s.Write(2, []Batch{batch(rng, 0, 10, 10)}); !errors.Is(err, ErrFailed) {
		t.Errorf("write after a failure: %v", err)
	}
	if err := s.Seal(context.Background(), nil); !errors.Is(err, ErrFailed) {
		t.Errorf("seal after a failure: %v", err)
	}
	if got, _, err := readAll(s, 0, 0, 1<<20); err != nil || len(got) != 1 {
		t.Errorf("read after a failure: %d %v", len(got), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o, err := Open(s.Path(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	mustWrite(t, o, 2, batch(rng, 0, 10, 10))
}

package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/forebay-gateway/forebay/tiering/store"
)

// Run checks a store. It must be empty below prefix, and everything that the test makes is removed again.
func Run(t *testing.T, s store.Store, prefix string) {
	c := contract{t: t, s: s, prefix: prefix}
	t.Run("what was put comes back", func(t *testing.T) { c.with(t).roundTrip() })
	t.Run("parts of an object come back", func(t *testing.T) { c.with(t).ranges() })
	t.Run("what is not there is ErrNotExist", func(t *testing.T) { c.with(t).missing() })
	t.Run("of many that make an object one succeeds", func(t *testing.T) { c.with(t).ifAbsent() })
	t.Run("a put replaces", func(t *testing.T) { c.with(t).replace() })
	t.Run("a put that breaks off leaves what was there", func(t *testing.T) { c.with(t).brokenOff() })
	t.Run("lists are in order and have only the prefix", func(t *testing.T) { c.with(t).list() })
	t.Run("keys that leave the prefix are refused", func(t *testing.T) { c.with(t).keys() })
	t.Run("a cancelled context ends a call", func(t *testing.T) { c.with(t).cancelled() })
}

type contract struct {
	t      *testing.T
	s      store.Store
	prefix string
}

func (c contract) with(t *testing.T) contract { c.t = t; return c }

func (c contract) key(name string) string {
	key := c.prefix + name
	c.t.Cleanup(func() { _ = c.s.Delete(context.WithoutCancel(c.t.Context()), key) })
	return key
}

func (c contract) put(key string, b []byte) {
	c.t.Helper()
	if err := c.s.Put(c.t.Context(), key, bytes.NewReader(b), int64(len(b)), store.PutOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c contract) get(key string, offset, n int64) []byte {
	c.t.Helper()
	r, err := c.s.Get(c.t.Context(), key, offset, n)
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		c.t.Fatal(err)
	}
	return b
}

func random(n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(b)
	return b
}

func (c contract) roundTrip() {
	for _, n := range []int{0, 1, 4096, 6<<20 + 17} {
		key, want := c.key(fmt.Sprintf("size/%d.db", n)), random(n)
		c.put(key, want)
		if got := c.get(key, 0, -1); !bytes.Equal(got, want) {
			c.t.Errorf("%d bytes came back as %d others", n, len(got))
		}
		o, err := c.s.Stat(c.t.Context(), key)
		if err != nil || o.Size != int64(n) || o.Key != key || o.Time.IsZero() {
			c.t.Errorf("stat: %+v, %v", o, err)
		}
	}
}

func (c contract) ranges() {
	key, want := c.key("range"), random(100_000)
	c.put(key, want)
	for _, r := range [][2]int64{{0, 10}, {99_990, 10}, {50_000, -1}, {1, 99_999}} {
		end := int64(len(want))
		if r[1] >= 0 {
			end = r[0] + r[1]
		}
		if got := c.get(key, r[0], r[1]); !bytes.Equal(got, want[r[0]:end]) {
			c.t.Errorf("range %v: %d bytes", r, len(got))
		}
	}
}

func (c contract) missing() {
	if _, err := c.s.Get(c.t.Context(), c.prefix+"none", 0, -1); !errors.Is(err, store.ErrNotExist) {
		c.t.Errorf("get: %v", err)
	}
	if _, err := c.s.Stat(c.t.Context(), c.prefix+"none"); !errors.Is(err, store.ErrNotExist) {
		c.t.Errorf("stat: %v", err)
	}
	if err := c.s.Delete(c.t.Context(), c.prefix+"none"); err != nil {
		c.t.Errorf("delete: %v", err)
	}
	if err := c.s.List(c.t.Context(), c.prefix+"none/", func(o store.Object) error { return errors.New(o.Key) }); err != nil {
		c.t.Errorf("list: %v", err)
	}
}

func (c contract) ifAbsent() {
	key := c.key("once")
	const writers = 8
	var mu sync.Mutex
	var won []string
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			text := fmt.Sprintf("writer %d", i)
			err := store.PutBytes(c.t.Context(), c.s, key, []byte(text), true)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won = append(won, text)
			case !errors.Is(err, store.ErrExist):
				c.t.Errorf("%s: %v", text, err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		c.t.Fatalf("%d writers made it: %v", len(won), won)
	}
	if got := string(c.get(key, 0, -1)); got != won[0] {
		c.t.Errorf("it holds %q, and %q made it", got, won[0])
	}
	if err := store.PutBytes(c.t.Context(), c.s, key, []byte("late"), true); !errors.Is(err, store.ErrExist) {
		c.t.Errorf("a later one: %v", err)
	}
}

func (c contract) replace() {
	key := c.key("replaced")
	c.put(key, []byte("a longer first"))
	c.put(key, []byte("second"))
	if got := string(c.get(key, 0, -1)); got != "second" {
		c.t.Errorf("got %q", got)
	}
}

// broken fails after some bytes.
type broken struct{ left int }

var errBroken = errors.New("the source broke off")

func (b *broken) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, errBroken
	}
	n := min(len(p), b.left)
	b.left -= n
	return n, nil
}

func (c contract) brokenOff() {
	for _, n := range []int{100, 7 << 20} {
		key := c.key(fmt.Sprintf("broken/%d", n))
		err := c.s.Put(c.t.Context(), key, &broken{n}, int64(n)+1000, store.PutOptions{})
		if !errors.Is(err, errBroken) {
			c.t.Errorf("put: %v", err)
		}
		if _, err := c.s.Stat(c.t.Context(), key); !errors.Is(err, store.ErrNotExist) {
			c.t.Errorf("after a put that broke off: %v", err)
		}
		if err := c.s.Put(c.t.Context(), key, strings.NewReader("short"), 10, store.PutOptions{}); err == nil {
			c.t.Error("a source that is too short was stored")
		}
		if err := c.s.Put(c.t.Context(), key, strings.NewReader("far too long"), 3, store.PutOptions{}); err == nil {
			c.t.Error("a source that is too long was stored")
		}
		c.put(key, []byte("whole"))
		_ = c.s.Put(c.t.Context(), key, &broken{n}, int64(n)+1000, store.PutOptions{})
		if got := string(c.get(key, 0, -1)); got != "whole" {
			c.t.Errorf("what was there is now %d bytes", len(got))
		}
	}
}

func (c contract) list() {
	var want []string
	for _, name := range []string{"l/a/1", "l/a/2", "l/a/10", "l/a-b", "l/a.b", "l/ab/x", "l/b", "l2"} {
		key := c.key(name)
		c.put(key, []byte(name))
		if strings.HasPrefix(name, "l/a") {
			want = append(want, key)
		}
	}
	slices.Sort(want)
	var got []string
	if err := c.s.List(c.t.Context(), c.prefix+"l/a", func(o store.Object) error {
		got = append(got, o.Key)
		if o.Size != int64(len(o.Key)-len(c.prefix)) {
			c.t.Errorf("%s: %d bytes", o.Key, o.Size)
		}
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("got %v, want %v", got, want)
	}
	enough := errors.New("enough")
	if err := c.s.List(c.t.Context(), c.prefix+"l/", func(store.Object) error { return enough }); !errors.Is(err, enough) {
		c.t.Errorf("the error of fn came back as %v", err)
	}
}

func (c contract) keys() {
	for _, key := range []string{"", "/a", "a/", "a//b", "../a", "a/../../b", "a\\b", "."} {
		if err := store.PutBytes(c.t.Context(), c.s, key, nil, false); err == nil {
			c.t.Errorf("%q was stored", key)
		}
	}
}

func (c contract) cancelled() {
	ctx, cancel := context.WithCancel(c.t.Context())
	cancel()
	key := c.key("cancelled")
	if err := store.PutBytes(ctx, c.s, key, []byte("x"), false); err == nil {
		c.t.Error("put went on")
	}
	if _, err := c.s.Stat(c.t.Context(), key); !errors.Is(err, store.ErrNotExist) {
		c.t.Errorf("after it: %v", err)
	}
}

package storetest

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/forebay-gateway/forebay/tiering/store"
)

// Faulty is a store with faults of the test's choice in front of it.
type Faulty struct {
	store.Store

	// InPlace has the files of the store read where they lie, if it has files. Set before the first use.
	InPlace bool

	mu     sync.Mutex
	before func(op, key string) error                               // nil passes
	cut    func(key string, offset, n int64) (after int64, ok bool) // a read breaks off after so many bytes
	puts   map[string]int
	gets   map[string]int
}

// NewFaulty wraps s.
func NewFaulty(s store.Store) *Faulty {
	return &Faulty{Store: s, puts: map[string]int{}, gets: map[string]int{}}
}

// ErrInjected is the fault.
var ErrInjected = errors.New("injected fault: 503 service unavailable")

// Fail has fn decide about each call; nil ends it.
func (f *Faulty) Fail(fn func(op, key string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = fn
}

// Down is a store that does not answer at all, until Fail(nil).
func (f *Faulty) Down() { f.Fail(func(string, string) error { return ErrInjected }) }

// Cut has fn decide where reads break off.
func (f *Faulty) Cut(fn func(key string, offset, n int64) (after int64, ok bool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = fn
}

// File implements store.Files, once InPlace is set.
func (f *Faulty) File(key string) string {
	if files, ok := f.Store.(store.Files); ok && f.InPlace {
		return files.File(key)
	}
	return ""
}

// Puts is how often objects whose key contains part were written, Gets how often they were read.
func (f *Faulty) Puts(part string) int { return f.count(f.puts, part) }

// Gets is like Puts.
func (f *Faulty) Gets(part string) int { return f.count(f.gets, part) }

func (f *Faulty) count(m map[string]int, part string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, k := range m {
		if strings.Contains(key, part) {
			n += k
		}
	}
	return n
}

func (f *Faulty) ask(op, key string) error {
	f.mu.Lock()
	fn := f.before
	f.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(op, key)
}

// Put implements store.Store.
func (f *Faulty) Put(ctx context.Context, key string, r io.Reader, size int64, o store.PutOptions) error {
	if err := f.ask("put", key); err != nil {
		return err
	}
	err := f.Store.Put(ctx, key, r, size, o)
	if err == nil {
		f.mu.Lock()
		f.puts[key]++
		f.mu.Unlock()
	}
	if aerr := f.ask("put done", key); aerr != nil { // it is stored, and the answer is lost
		return aerr
	}
	return err
}

// Get implements store.Store.
func (f *Faulty) Get(ctx context.Context, key string, offset, n int64) (io.ReadCloser, error) {
	if err := f.ask("get", key); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.gets[key]++
	cut := f.cut
	f.mu.Unlock()
	r, err := f.Store.Get(ctx, key, offset, n)
	if err != nil || cut == nil {
		return r, err
	}
	if after, ok := cut(key, offset, n); ok {
		return &cutReader{r, after}, nil
	}
	return r, nil
}

type cutReader struct {
	io.ReadCloser
	left int64
}

func (c *cutReader) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, errors.Join(ErrInjected, io.ErrUnexpectedEOF)
	}
	n, err := c.ReadCloser.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// Stat implements store.Store.
func (f *Faulty) Stat(ctx context.Context, key string) (store.Object, error) {
	if err := f.ask("stat", key); err != nil {
		return store.Object{}, err
	}
	return f.Store.Stat(ctx, key)
}

// List implements store.Store.
func (f *Faulty) List(ctx context.Context, prefix string, fn func(store.Object) error) error {
	if err := f.ask("list", prefix); err != nil {
		return err
	}
	return f.Store.List(ctx, prefix, fn)
}

// Delete implements store.Store.
func (f *Faulty) Delete(ctx context.Context, key string) error {
	if err := f.ask("delete", key); err != nil {
		return err
	}
	return f.Store.Delete(ctx, key)
}

package tiering

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

const (
	fetchTries = 6 // of one place in a segment, without a byte in between: about half a minute
	fetchPause = 500 * time.Millisecond

	silentTries = 2 // likewise, when the store is silent: each lasts as long as its patience, which is minutes
)

// Fetch writes the file of a segment to w and checks its SHA-256. Where the connection is lost it goes on from there. got is what came.
func Fetch(ctx context.Context, s store.Store, seg *manifest.Segment, w io.Writer, l *limiter) (got int64, err error) {
	h := newHasher(w, sha256.New())
	defer h.close()
	tries, silent := 0, 0
	for at := int64(0); at < seg.Bytes; {
		part := int(at / seg.PartSize)
		from := at % seg.PartSize
		n, err := fetchPart(ctx, s, manifest.PartKey(seg.Stream, seg.Sequence, part), from, min(seg.PartSize-from, seg.Bytes-at), h, l)
		at, got = at+n, got+n
		if n > 0 {
			tries, silent = 0, 0
		}
		var full *writeError
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil:
			return got, ctx.Err()
		case errors.As(err, &full):
			return got, full.err
		case errors.Is(err, store.ErrNotExist):
			return got, fmt.Errorf("segment %d of %s: %w: %w", seg.Sequence, seg.Stream, ErrDamaged, err)
		case errors.Is(err, store.ErrDenied), errors.Is(err, store.ErrNoBucket), errors.Is(err, store.ErrVanished):
			return got, err
		}
		if errors.Is(err, context.DeadlineExceeded) { // nor would it say what it has
			if n == 0 {
				silent++
			}
		} else if o, serr := s.Stat(ctx, manifest.PartKey(seg.Stream, seg.Sequence, part)); serr == nil && o.Size < min(seg.PartSize, seg.Bytes-int64(part)*seg.PartSize) {
			return got, fmt.Errorf("segment %d of %s: %w: part %d was cut to %d bytes", seg.Sequence, seg.Stream, ErrDamaged, part, o.Size)
		}
		if tries++; tries >= fetchTries || silent >= silentTries {
			return got, fmt.Errorf("segment %d of %s: %w", seg.Sequence, seg.Stream, err)
		}
		select {
		case <-ctx.Done():
			return got, ctx.Err()
		case <-time.After(fetchPause << (tries - 1)):
		}
	}
	if sum := h.sum(); sum != seg.SHA256 {
		return got, fmt.Errorf("segment %d of %s: %w: %w: its SHA-256 is %s, want %s", seg.Sequence, seg.Stream, ErrDamaged, errOtherHash, sum, seg.SHA256)
	}
	return got, nil
}

// missing looks twice at an object that is not there: when the owner marker cannot be had either, the bucket is gone or the rights are, and
// nothing is damaged. Some stores say the same for all of it.
func missing(ctx context.Context, s store.Store, err error) error {
	if !errors.Is(err, store.ErrNotExist) {
		return err
	}
	if _, oerr := manifest.ReadOwner(ctx, s); oerr != nil {
		return fmt.Errorf("%v; owner marker: %w", err, oerr)
	}
	return err
}

// writeError is an error of the receiver, not of the store.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }

var (
	errShort     = errors.New("object ends early")
	errOtherHash = errors.New("all of it came, with other bytes")
)

const fetchPiece = 256 << 10

// fetchPart copies n bytes of a part from an offset on, and says how many have come.
func fetchPart(ctx context.Context, s store.Store, key string, from, n int64, w io.Writer, l *limiter) (got int64, err error) {
	r, err := s.Get(ctx, key, from, n)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	buf := make([]byte, min(n, fetchPiece))
	src := l.reader(ctx, r)
	for got < n {
		m, rerr := src.Read(buf[:min(int64(len(buf)), n-got)])
		if m > 0 {
			if _, err := w.Write(buf[:m]); err != nil {
				return got, &writeError{err}
			}
			got += int64(m)
		}
		if errors.Is(rerr, io.EOF) {
			break
		}
		if rerr != nil {
			return got, rerr
		}
	}
	if got < n {
		return got, errShort
	}
	return got, nil
}

// hasher hashes what is written to w, beside the writing: on two cores that is a third of the time less.
type hasher struct {
	w    io.Writer
	in   chan []byte
	free chan []byte
	done chan struct{}
	h    hash.Hash // the goroutine's until done
	end  func()    // closes in, once
}

const hasherBuffers = 3

func newHasher(w io.Writer, into hash.Hash) *hasher {
	h := &hasher{w: w, in: make(chan []byte, hasherBuffers), free: make(chan []byte, hasherBuffers), done: make(chan struct{}), h: into}
	for range hasherBuffers {
		h.free <- nil
	}
	h.end = sync.OnceFunc(func() { close(h.in) })
	go func() {
		defer close(h.done)
		for b := range h.in {
			_, _ = h.h.Write(b) // never fails
			h.free <- b
			runtime.Gosched() // who waits for an acknowledgement goes first
		}
	}()
	return h
}

func (h *hasher) Write(p []byte) (int, error) {
	h.in <- append((<-h.free)[:0], p...)
	return h.w.Write(p)
}

// sum ends it.
func (h *hasher) sum() string {
	h.close()
	return hex.EncodeToString(h.h.Sum(nil))
}

func (h *hasher) close() {
	h.end()
	<-h.done
}

package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/forebay-gateway/forebay/tiering/store"
)

const (
	readTries = 6 // of one place in an object, without a byte in between: about half a minute
	readPause = 500 * time.Millisecond
)

// read copies an object to w and checks it. Where the connection is lost it goes on from there.
func (f *File) read(ctx context.Context, st store.Store, w io.Writer) error {
	sum := sha256.New()
	out := &receiver{w: io.MultiWriter(w, sum)}
	for tries := 0; ; {
		n, err := f.readFrom(ctx, st, out)
		if err == nil {
			break
		}
		if n > 0 {
			tries = 0
		}
		tries++
		switch {
		case errors.Is(err, store.ErrNotExist):
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		case out.err != nil, ctx.Err() != nil, tries >= readTries, errors.Is(err, store.ErrDenied), errors.Is(err, store.ErrNoBucket), errors.Is(err, store.ErrVanished):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(readPause << (tries - 1)):
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); out.n != f.Bytes || got != f.SHA256 {
		return fmt.Errorf("%w: %s has %d bytes with SHA-256 %s, want %d with %s", ErrDamaged, f.Key, out.n, got, f.Bytes, f.SHA256)
	}
	return nil
}

// readFrom copies what out does not have yet.
func (f *File) readFrom(ctx context.Context, st store.Store, out *receiver) (int64, error) {
	r, err := st.Get(ctx, f.Key, out.n, -1)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return io.Copy(out, io.LimitReader(r, max(f.Bytes-out.n, 0)+1)) // one that is longer is damaged: it is not to fill a disk
}

// receiver counts, and keeps the error of the writer apart from those of the store.
type receiver struct {
	w   io.Writer
	n   int64
	err error
}

func (r *receiver) Write(p []byte) (int, error) {
	n, err := r.w.Write(p)
	r.n, r.err = r.n+int64(n), err
	return n, err
}

type ctxReader struct {
	ctx context.Context // lives for one copy
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// Check reads every object of a backup, and tells all that are damaged or missing.
func (i *Info) Check(ctx context.Context, st store.Store) error {
	var damaged []error
	for _, s := range i.Segments {
		if err := s.read(ctx, st, io.Discard); errors.Is(err, ErrDamaged) {
			damaged = append(damaged, fmt.Errorf("segment %d of %s: %w", s.Sequence, s.Stream, err))
		} else if err != nil {
			return err
		}
	}
	if err := i.Meta.read(ctx, st, io.Discard); errors.Is(err, ErrDamaged) {
		damaged = append(damaged, err)
	} else if err != nil {
		return err
	}
	return errors.Join(damaged...)
}

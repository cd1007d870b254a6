package store

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// exactReader gives size bytes, and an error instead of the end when the source has fewer or more. So a store that takes what comes until the end never gets there with the wrong bytes.
type exactReader struct {
	ctx  context.Context // lives for one Put
	r    io.Reader
	left int64
	size int64
	err  error

	failed func() // called before Read gives err
}

func newExactReader(ctx context.Context, r io.Reader, size int64) *exactReader {
	return &exactReader{ctx: ctx, r: r, left: size, size: size}
}

func (e *exactReader) Read(p []byte) (n int, err error) {
	defer func() {
		if e.err != nil && e.failed != nil {
			e.failed()
		}
	}()
	if e.err != nil {
		return 0, e.err
	}
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if e.left == 0 {
		return 0, e.end()
	}
	n, err = e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	switch {
	case errors.Is(err, io.EOF) && e.left > 0:
		e.err = fmt.Errorf("%d bytes came, want %d: %w", e.size-e.left, e.size, io.ErrUnexpectedEOF)
	case err != nil && !errors.Is(err, io.EOF):
		e.err = err
	}
	return n, e.err
}

// end is io.EOF when all is as it should be.
func (e *exactReader) end() error {
	var more [1]byte
	for range 100 {
		n, err := e.r.Read(more[:])
		switch {
		case n > 0:
			e.err = fmt.Errorf("more than %d bytes came", e.size)
			return e.err
		case errors.Is(err, io.EOF):
			return io.EOF
		case err != nil:
			e.err = err
			return err
		}
	}
	e.err = io.ErrNoProgress
	return e.err
}

// contextReader ends a long read when nobody waits for it any more.
type contextReader struct {
	ctx context.Context // lives for one object
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

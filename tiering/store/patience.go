package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	patienceDefault = 2 * time.Minute
	slowest         = 32 << 10 // bytes a second that an object goes up with, at least
)

// patience ends a call that the server does not answer: a connection that is accepted and then silent would hold it for ever.
// What the source of a Put and the reader of a Get take for themselves does not count.
type patience struct {
	ctx    context.Context // of the call
	cancel context.CancelCauseFunc
	timer  *time.Timer
	wait   time.Duration
}

var errSilent = errors.New("silent")

func newPatience(ctx context.Context, wait time.Duration) *patience {
	p := &patience{wait: wait}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	p.timer = time.AfterFunc(wait, func() { p.cancel(errSilent) })
	return p
}

func (p *patience) stop()  { p.timer.Stop() }
func (p *patience) start() { p.timer.Reset(p.wait) }

func (p *patience) end() {
	p.timer.Stop()
	p.cancel(nil)
}

// told is err, and what it comes from when that is our impatience.
func (p *patience) told(err error) error {
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(p.ctx), errSilent) {
		return fmt.Errorf("no answer within %v: %w (%v)", p.wait, context.DeadlineExceeded, err)
	}
	return err
}

// sourceOf is r as the source of a Put.
func (p *patience) sourceOf(r io.Reader) io.Reader { return &patientSource{p, r} }

type patientSource struct {
	p *patience
	r io.Reader
}

func (s *patientSource) Read(b []byte) (int, error) {
	s.p.stop()
	defer s.p.start()
	return s.r.Read(b)
}

// readerOf is r as what a Get returns.
func (p *patience) readerOf(r io.ReadCloser) io.ReadCloser {
	p.stop()
	return &patientReader{p, r}
}

type patientReader struct {
	p *patience
	r io.ReadCloser
}

func (r *patientReader) Read(b []byte) (int, error) {
	r.p.start()
	defer r.p.stop()
	n, err := r.r.Read(b)
	return n, r.p.told(err)
}

func (r *patientReader) Close() error {
	defer r.p.end()
	return r.r.Close()
}

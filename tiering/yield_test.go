package tiering

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// An upload rests for what the disk has to do. That the network or the bandwidth has it wait is no reason to wait more.
func TestYieldRestsForTheDiskAlone(t *testing.T) {
	const size = 64 * yieldPiece
	for name, f := range map[string]struct {
		source, sink time.Duration // what a read and a write of a piece take
		bandwidth    int64
		toDisk       bool
		idle         bool    // no records come
		full         float64 // percent of the spool
		least, most  time.Duration
	}{
		"a slow network":           {sink: 10 * time.Millisecond, least: 640 * time.Millisecond, most: 700 * time.Millisecond},
		"a slow disk written to":   {sink: 10 * time.Millisecond, toDisk: true, least: 63 * 60 * time.Millisecond, most: 65 * 61 * time.Millisecond},
		"a quick disk written to":  {sink: 100 * time.Microsecond, toDisk: true, least: 63 * 6 * time.Millisecond, most: 65 * 7 * time.Millisecond},
		"a disk read from":         {source: 100 * time.Microsecond, least: 63 * 6 * time.Millisecond, most: 65 * 7 * time.Millisecond},
		"bandwidth below it":       {source: 10 * time.Microsecond, bandwidth: 64 * yieldPiece, toDisk: true, least: 980 * time.Millisecond, most: 1100 * time.Millisecond},
		"neither":                  {least: 0, most: time.Millisecond},
		"nobody writes beside it":  {sink: 10 * time.Millisecond, toDisk: true, idle: true, least: 640 * time.Millisecond, most: 700 * time.Millisecond},
		"the spool is rather full": {sink: 10 * time.Millisecond, toDisk: true, full: 60, least: 640 * time.Millisecond, most: 700 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var groups uint64
				y := &yield{groups: func() uint64 {
					if !f.idle {
						groups++
					}
					return groups
				}}
				y.backlog(1, f.full)
				y.busy(time.Now())
				src := readerFunc(func(p []byte) (int, error) {
					time.Sleep(f.source)
					return len(p), nil
				})
				r := y.reader(t.Context(), io.LimitReader(src, size), newLimiter(f.bandwidth), f.toDisk)
				began := time.Now()
				var got bytes.Buffer
				for buf := make([]byte, yieldPiece); ; time.Sleep(f.sink) {
					n, err := r.Read(buf)
					got.Write(buf[:n])
					if err == io.EOF {
						break
					} else if err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(began); got.Len() != size || took < f.least || took > f.most {
					t.Errorf("%d bytes in %v, want %d in %v to %v", got.Len(), took, size, f.least, f.most)
				}
			})
		})
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

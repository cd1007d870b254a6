package journal

import (
	"io"
)

const windowSize = 1 << 20 // read-ahead of a scan: one request of this size costs little more than one of 4 KiB

// window reads a file in large pieces and goes on behind blocks that cannot be read.
type window struct {
	r    io.ReaderAt
	size int64 // bytes that the file should have
	buf  []byte
	off  int64 // of buf in the file
	have int   // valid bytes in buf

	// unreadable holds the offsets of blocks whose read failed or which lie behind the end of the file. In buf they are zero.
	unreadable map[int64]error
}

func newWindow(r io.ReaderAt, size int64) *window {
	return &window{r: r, size: size, buf: make([]byte, min(size, windowSize)), unreadable: map[int64]error{}}
}

// at returns n bytes from off, which is a multiple of the block size; off+n is not behind size. They are valid until the
// next call.
func (w *window) at(off int64, n int) []byte {
	if off < w.off || off+int64(n) > w.off+int64(w.have) {
		w.fill(off, n)
	}
	return w.buf[off-w.off:][:n]
}

func (w *window) fill(off int64, n int) {
	want := int(min(max(int64(n), windowSize), w.size-off))
	if want > len(w.buf) {
		w.buf = make([]byte, want)
	}
	w.off, w.have = off, want
	b := w.buf[:want]
	if got, _ := w.r.ReadAt(b, off); got == want {
		return
	}
	// One bad sector must not hide its neighbours.
	for i := 0; i < want; i += blockSize {
		block := b[i:min(i+blockSize, want)]
		got, err := w.r.ReadAt(block, off+int64(i))
		if got == len(block) {
			continue
		}
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		clear(block)
		w.unreadable[off+int64(i)] = err
	}
}

// unreadableIn returns why a block of [from, to) cannot be read, nil when all can. They must have been asked for before.
func (w *window) unreadableIn(from, to int64) error {
	if len(w.unreadable) == 0 {
		return nil
	}
	for off := from; off < to; off += blockSize {
		if err := w.unreadable[off]; err != nil {
			return err
		}
	}
	return nil
}

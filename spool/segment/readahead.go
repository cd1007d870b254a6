package segment

import (
	"os"
	"sync"
)

// ahead asks the kernel to read what comes next. A batch is a read of some ten KB: the kernel's own read-ahead gives half
// the speed of the disk there, and none at all through bbolt's map (MADV_RANDOM: 25 to 110 MB/s).
type ahead struct {
	mu   sync.Mutex
	next map[uint16]uint64 // where the last Read of each partition ended
	from int64             // [from, end) has been asked for
	end  int64
}

const readAhead = 4 << 20

// continues tells whether a Read goes on where another ended.
func (a *ahead) continues(partition uint16, from uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	next, ok := a.next[partition]
	return ok && next == from
}

func (a *ahead) reached(partition uint16, next uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next == nil {
		a.next = make(map[uint16]uint64)
	}
	a.next[partition] = next
}

// want asks for what follows off, when less than half of the window is left.
func (a *ahead) want(f *os.File, off, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if off >= a.from && off+n+readAhead/2 <= a.end {
		return
	}
	start := off
	if off >= a.from && off <= a.end {
		start = a.end
	}
	a.from, a.end = off, max(off+n, off+readAhead)
	willNeed(f, start, a.end-start)
}

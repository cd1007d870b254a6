package mqtt

import (
	"net"
	"slices"
	"sync"
	"syscall"
)

// rawConn is the socket of a connection whose bytes go to the network as they are: nil for TLS and WebSockets.
func rawConn(nc net.Conn) syscall.RawConn {
	var raw syscall.RawConn
	switch nc := nc.(type) {
	case *net.TCPConn:
		raw, _ = nc.SyscallConn()
	case *net.UnixConn:
		raw, _ = nc.SyscallConn()
	}
	return raw
}

// directWriter writes to sockets without waiting. It belongs to one goroutine at a time.
type directWriter struct {
	b  []byte
	n  int
	fn func(fd uintptr) bool // writes b once; made once, not for each write
}

var directWriters = sync.Pool{New: func() any {
	w := new(directWriter)
	w.fn = w.once
	return w
}}

// write returns how many bytes the socket has taken.
func (w *directWriter) write(raw syscall.RawConn, b []byte) int {
	w.b, w.n = b, 0
	_ = raw.Write(w.fn) // what is wrong shows again in the flusher's write
	w.b = nil
	return w.n
}

func (w *directWriter) once(fd uintptr) bool {
	if n, err := syscall.Write(int(fd), w.b); err == nil {
		w.n = n
	}
	return true
}

const (
	// flushOwn is how many connections the caller of flushAll writes to itself, at about 6 us each: while it does, who has got
	// an acknowledgement answers, and a committer finds more to commit at once.
	flushOwn = 16

	// flushShare is how many connections another goroutine writes to: a flusher for each cost a message 2 us more, and one for
	// all would keep the last of thousands waiting.
	flushShare = 32
)

// flushAll writes what waits for conns: the caller does the smaller half of it, up to flushOwn, others the rest. It waits for no
// client. Another goroutine always has a part: a committer goes into a sync next, and takes its processor along for as long
// as nobody else was woken. A lone publisher with 1024 outstanding got half as much through when the committer wrote to it.
func flushAll(conns []*conn) {
	own := min(len(conns)/2, flushOwn)
	for part := range slices.Chunk(conns[own:], flushShare) {
		part = slices.Clone(part) // the caller uses conns again
		go writeAll(part)
	}
	writeAll(conns[:own])
}

func writeAll(conns []*conn) {
	w := directWriters.Get().(*directWriter)
	defer directWriters.Put(w)
	for _, c := range conns {
		c.out.writeNow(w)
	}
}

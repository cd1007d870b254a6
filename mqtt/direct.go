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

// flushShare is how many connections one goroutine writes to, at about 6 us each: a flusher for each cost a message 1 us more,
// and one for all would keep the last of thousands waiting.
const flushShare = 32

// flushAll writes what waits for conns, which the caller may use again. It does not block.
func flushAll(conns []*conn) {
	for part := range slices.Chunk(conns, flushShare) {
		if len(part) == 1 {
			part[0].out.wake()
			continue
		}
		part = slices.Clone(part)
		go func() {
			w := directWriters.Get().(*directWriter)
			defer directWriters.Put(w)
			for _, c := range part {
				c.out.writeNow(w)
			}
		}()
	}
}

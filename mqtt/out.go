package mqtt

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/wire"
)

// output is what waits to be written to one connection. Everybody appends, nobody waits: the flusher, a goroutine that
// lives while there is something to write, is the only one that writes to the socket.
type output struct {
	c       net.Conn
	raw     syscall.RawConn // of c, when its bytes go to the network as they are; nil otherwise
	on      outputOwner
	timeout time.Duration // in which the peer has to take a chunk
	shared  *outputMemory // of all connections

	mu       sync.Mutex
	cond     *sync.Cond // made by waitRoom: the reader waits for the flusher; nil while nobody waited
	buf      []byte
	box      *[]byte // what buf was borrowed in
	count    int     // packets in buf
	writing  int     // bytes that the flusher has taken and not written
	flushing bool    // a flusher runs
	closing  bool    // close the connection when everything is written
	closed   bool    // nothing is taken any more
	starved  bool    // a delivery found no room: tell the owner when there is some
}

// outputMemory is what waits for all connections together.
type outputMemory struct {
	limit int64 // 0: none
	bytes atomic.Int64
}

// outputOwner is told what the flusher meets. They are called without locks.
type outputOwner interface {
	writeFailed(err error)
	hasRoom()
	written(n int)
	packets(n int) // that were given to the network, all of them or a part
}

// writeChunk is what one deadline covers, so that a slow but living peer with a full buffer is not cut off.
const writeChunk = 64 << 10

var bufPool = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

const keptBuf = 64 << 10 // a larger buffer is left to the garbage collector: one big message must not stay for ever

func (o *output) sizeLocked() int { return len(o.buf) + o.writing }

func (o *output) growLocked() {
	if o.buf == nil {
		o.box = bufPool.Get().(*[]byte)
		o.buf = (*o.box)[:0]
	}
}

// message appends an encoded PUBLISH with its own packet identifier. It returns false when there is no room within limit;
// a message that is larger than the limit has room when nothing else waits.
func (o *output) message(packet []byte, id int, pid uint16, dup bool, limit int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.closing {
		return false
	}
	if o.fullLocked(len(packet), limit) {
		return false
	}
	o.growLocked()
	o.shared.bytes.Add(int64(len(packet)))
	at := len(o.buf)
	o.buf = append(o.buf, packet...)
	o.count++
	if pid != 0 {
		wire.PatchPublish(o.buf[at:], id, pid, dup)
	}
	return true
}

// fullLocked reports whether there is no room for n bytes more, for this connection or for all of them. An empty buffer
// always has room: whoever is told that there is none has something to write, and is called when it is written.
func (o *output) fullLocked(n, limit int) bool {
	have := o.sizeLocked()
	if have == 0 || have+n <= limit && (o.shared.limit == 0 || o.shared.bytes.Load()+int64(n) <= o.shared.limit) {
		return false
	}
	o.starved = true
	return true
}

// appendLocked adds n packets that fn appends.
func (o *output) appendLocked(n int, fn func(b []byte) []byte) {
	o.growLocked()
	before := len(o.buf)
	o.buf = fn(o.buf)
	o.count += n
	o.shared.bytes.Add(int64(len(o.buf) - before))
}

// room reports whether a message of n bytes would find room.
func (o *output) room(n, limit int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fullLocked(n, limit) {
		return false
	}
	return !o.closed && !o.closing
}

// control lets fn append a packet that is not a delivery: bounded by what the client may have outstanding, and by
// waitRoom.
func (o *output) control(fn func(b []byte) []byte) { o.controls(1, fn) }

// controls is control for n packets.
func (o *output) controls(n int, fn func(b []byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.closing {
		return
	}
	o.appendLocked(n, fn)
}

// wake starts the flusher when there is something to write and none runs.
func (o *output) wake() {
	o.mu.Lock()
	start := o.startLocked()
	o.mu.Unlock()
	if start {
		go o.flush(chunk{})
	}
}

// startLocked reports whether the caller has become the flusher.
func (o *output) startLocked() bool {
	start := !o.flushing && !o.closed && (len(o.buf) > 0 || o.closing)
	o.flushing = o.flushing || start
	return start
}

// chunk is what the flusher has taken.
type chunk struct {
	b    []byte
	box  *[]byte
	done int // bytes of b that are written
}

func (o *output) takeLocked() (ch chunk, packets int) {
	ch, packets = chunk{b: o.buf, box: o.box}, o.count
	o.buf, o.box, o.count = nil, nil, 0
	o.writing = len(ch.b)
	return ch, packets
}

// flush is the flusher. It begins with what another has taken and not written, if anything.
func (o *output) flush(ch chunk) {
	for {
		if ch.b == nil {
			o.mu.Lock()
			if len(o.buf) == 0 || o.closed {
				o.stopLocked()
				return
			}
			var count int
			ch, count = o.takeLocked()
			o.mu.Unlock()
			o.on.packets(count)
		}
		err := o.write(ch.b[ch.done:])
		o.shared.bytes.Add(-int64(len(ch.b)))
		ch.release()
		ch = chunk{}
		o.mu.Lock()
		hungry := o.wroteLocked()
		o.mu.Unlock()
		if err != nil {
			o.abort()
			o.on.writeFailed(err)
			continue // ends at closed
		}
		if hungry {
			o.on.hasRoom()
		}
	}
}

// stopLocked ends the flusher, and the connection when that is wanted. It unlocks.
func (o *output) stopLocked() {
	o.flushing = false
	closed, closing := o.closed, o.closing
	o.closed = closed || closing
	o.freeLocked()
	o.mu.Unlock()
	switch {
	case closed:
		o.c.Close()
	case closing:
		// The reader closes the connection when the client has seen the end, or not at all.
		o.end()
	}
}

// wroteLocked notes that what was taken is written. It reports whether a delivery waits for room.
func (o *output) wroteLocked() (hungry bool) {
	o.writing = 0
	hungry = o.starved
	o.starved = false
	if o.cond != nil {
		o.cond.Broadcast()
	}
	return hungry
}

func (ch chunk) release() {
	if cap(ch.b) <= keptBuf {
		*ch.box = ch.b[:0]
		bufPool.Put(ch.box)
	}
}

// writeNow writes what waits without a goroutine, as far as the network takes it at once: the rest, and all that needs more
// than a write, is left to the flusher. It does not block.
func (o *output) writeNow(w *directWriter) {
	o.mu.Lock()
	if !o.startLocked() {
		o.mu.Unlock()
		return
	}
	if o.raw == nil || o.closing || len(o.buf) > writeChunk {
		o.mu.Unlock()
		go o.flush(chunk{})
		return
	}
	ch, count := o.takeLocked()
	o.mu.Unlock()

	// A write deadline that an earlier flusher has left, and which is over, is an error here: the flusher sets its own.
	ch.done = w.write(o.raw, ch.b)
	o.on.packets(count)
	o.on.written(ch.done)
	if ch.done < len(ch.b) {
		go o.flush(ch)
		return
	}
	o.shared.bytes.Add(-int64(len(ch.b)))
	ch.release()
	o.mu.Lock()
	hungry := o.wroteLocked()
	if len(o.buf) == 0 && !o.closing && !o.closed {
		o.flushing = false
		o.mu.Unlock()
	} else {
		o.mu.Unlock()
		go o.flush(chunk{})
	}
	if hungry {
		o.on.hasRoom()
	}
}

func (o *output) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writeChunk)
		o.mu.Lock()
		timeout := o.timeout
		o.writing = len(b)
		o.mu.Unlock()
		if err := o.c.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		w, err := o.c.Write(b[:n])
		o.on.written(w)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// end tells the client that nothing more comes.
func (o *output) end() {
	if half, ok := o.c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		return
	}
	o.c.Close()
}

// freeLocked gives the buffer back: an idle connection has none.
func (o *output) freeLocked() {
	o.shared.bytes.Add(-int64(len(o.buf))) // of a connection that was closed with something in it
	if o.buf != nil {
		chunk{b: o.buf, box: o.box}.release()
	}
	o.buf, o.box = nil, nil
}

// waitRoom blocks the reader of a client that sends and does not read, until the flusher has written something or the
// connection ends.
func (o *output) waitRoom(limit int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.sizeLocked() > limit && !o.closed && !o.closing {
		if o.cond == nil {
			o.cond = sync.NewCond(&o.mu)
		}
		o.cond.Wait()
	}
}

// finish ends the output after what was appended is written, fn's packet as the last; at most timeout a chunk. The reader
// closes the connection.
func (o *output) finish(fn func(b []byte) []byte, timeout time.Duration) {
	o.mu.Lock()
	if o.closed || o.closing {
		o.mu.Unlock()
		return
	}
	if fn != nil {
		o.appendLocked(1, fn)
	}
	o.closing = true
	o.timeout = timeout
	running := o.flushing
	if o.cond != nil {
		o.cond.Broadcast()
	}
	o.mu.Unlock()
	if running {
		// The flusher may sit in a write to a peer that does not read: it has this long and no longer.
		_ = o.c.SetWriteDeadline(time.Now().Add(timeout))
	}
	o.wake()
}

// finished reports whether finish was called: the client gets a last packet, or the end, in an orderly way.
func (o *output) finished() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closing
}

// abort closes the connection now.
func (o *output) abort() {
	o.mu.Lock()
	o.closed = true
	if !o.flushing {
		o.freeLocked()
	}
	if o.cond != nil {
		o.cond.Broadcast()
	}
	o.mu.Unlock()
	o.c.Close()
}

package mqtt

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// quietOwner is told of what the output meets.
type quietOwner struct {
	mu     sync.Mutex
	err    error
	bytes  int
	hungry int
}

func (o *quietOwner) writeFailed(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
}

func (o *quietOwner) hasRoom() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hungry++
}

func (o *quietOwner) written(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bytes += n
}

func (o *quietOwner) packets(int) {}

// directPair is an output over a socket whose buffers are small, and the peer's end.
func directPair(t *testing.T) (*output, *quietOwner, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nc.Close()
		peer.Close()
	})
	_ = nc.(*net.TCPConn).SetWriteBuffer(4 << 10)
	_ = peer.(*net.TCPConn).SetReadBuffer(4 << 10)
	own := new(quietOwner)
	return &output{c: nc, raw: rawConn(nc), on: own, timeout: 10 * time.Second, shared: new(outputMemory)}, own, peer
}

func appendTo(o *output, b []byte) {
	o.control(func(to []byte) []byte { return append(to, b...) })
}

func newDirectWriter() *directWriter { return directWriters.New().(*directWriter) }

// Numbers come in the order in which they were appended, whoever writes them: several writers without a goroutine, and the
// flusher when the peer is slow.
func TestDirectWritesKeepTheOrder(t *testing.T) {
	o, own, peer := directPair(t)
	numbers := 200_000
	if testing.Short() {
		numbers = 20_000
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			w := newDirectWriter()
			for range numbers / 10 {
				o.writeNow(w)
			}
		})
	}
	wg.Go(func() {
		w := newDirectWriter()
		for i := range numbers {
			o.waitRoom(64 << 10)
			appendTo(o, binary.BigEndian.AppendUint32(nil, uint32(i)))
			if i%7 == 0 {
				o.writeNow(w)
			}
			if i%1000 == 0 {
				o.wake()
			}
		}
		o.writeNow(w)
	})
	_ = peer.SetReadDeadline(time.Now().Add(30 * time.Second))
	b := make([]byte, 4)
	for i := range numbers {
		if _, err := io.ReadFull(peer, b); err != nil {
			t.Fatalf("after %d: %v (%v)", i, err, own.err)
		}
		if got := binary.BigEndian.Uint32(b); got != uint32(i) {
			t.Fatalf("number %d came as the %dth", got, i)
		}
	}
	wg.Wait()
	idle(t, o)
	own.mu.Lock()
	defer own.mu.Unlock()
	if own.bytes != 4*numbers || own.err != nil {
		t.Errorf("%d bytes were told as written, error %v", own.bytes, own.err)
	}
}

// idle waits until o has no flusher, and looks at what it holds then.
func idle(t *testing.T, o *output) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		o.mu.Lock()
		flushing, left, buf := o.flushing, o.shared.bytes.Load(), o.buf
		o.mu.Unlock()
		if !flushing {
			if left != 0 || buf != nil {
				t.Errorf("an idle output counts %d bytes and has a buffer of %d", left, cap(buf))
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal("the flusher does not end")
		}
	}
}

// What the socket does not take at once is written by the flusher, and a delivery that found no room is told of it.
func TestDirectWriteLeavesTheRestToTheFlusher(t *testing.T) {
	o, own, peer := directPair(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), writeChunk/16)
	appendTo(o, big)
	if o.room(1, 1) {
		t.Error("there is room in a full buffer")
	}
	o.writeNow(newDirectWriter())
	appendTo(o, []byte("end"))
	o.writeNow(newDirectWriter())
	got := make([]byte, len(big)+3)
	_ = peer.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.ReadFull(peer, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, append(big, "end"...)) {
		t.Error("other bytes came")
	}
	idle(t, o)
	own.mu.Lock()
	defer own.mu.Unlock()
	if own.hungry == 0 {
		t.Error("nobody was told that there is room")
	}
}

// The deadline of an earlier flusher is over: that must not end the connection, nor keep the bytes.
func TestDirectWriteAfterAnOldDeadline(t *testing.T) {
	o, own, peer := directPair(t)
	_ = o.c.SetWriteDeadline(time.Unix(1, 0))
	appendTo(o, []byte("x"))
	o.writeNow(newDirectWriter())
	_ = peer.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.ReadFull(peer, make([]byte, 1)); err != nil {
		t.Fatal(err, own.err)
	}
}

// A connection that is finished while its output is written directly still gets all of it, and then the end.
func TestDirectWriteThenFinish(t *testing.T) {
	o, _, peer := directPair(t)
	want := new(bytes.Buffer)
	w := newDirectWriter()
	for i := range 100 {
		b := bytes.Repeat([]byte{byte(i)}, 500)
		want.Write(b)
		appendTo(o, b)
		o.writeNow(w)
	}
	o.finish(func(b []byte) []byte { return append(b, "bye"...) }, 30*time.Second)
	want.WriteString("bye")
	_ = peer.SetReadDeadline(time.Now().Add(30 * time.Second))
	got, err := io.ReadAll(peer)
	if err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%d bytes came, want %d: %v", len(got), want.Len(), err)
	}
}

// A plain connection is written directly: a wrapper around it would take that away without anybody noticing.
func TestPlainConnectionsAreWrittenDirectly(t *testing.T) {
	srv, _ := faulty(t, nil)
	join(t, srv, mqtttest.Connect{ID: "plain"})
	srv.connMu.Lock()
	defer srv.connMu.Unlock()
	if len(srv.conns) != 1 {
		t.Fatalf("%d connections", len(srv.conns))
	}
	for sc := range srv.conns {
		if sc.out.raw == nil {
			t.Errorf("a %T has no socket to write to", sc.nc)
		}
	}
}

package mqtt

import (
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A WebSocket ping of a client that reads slowly used to end its connection: the library gives the answer one second, and set
// that deadline for the long write that was under way.
func TestPingDoesNotCutOffASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := &corkConn{Conn: near, timeout: 20 * time.Second}
		done := make(chan error, 1)
		go func() {
			c.cork()
			_, _ = c.Write([]byte(strings.Repeat("x", 1000)))
			done <- c.uncork()
		}()
		synctest.Wait() // the flusher sits in its write
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := c.Write([]byte("pong")); err != nil { // and the reader does not wait for it
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		b := make([]byte, 1004)
		if _, err := io.ReadFull(far, b); err != nil || string(b[999:]) != "xpong" {
			t.Fatalf("got %q, %v", b[990:], err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}

		// What nobody reads is bounded in size and time.
		c.writing++ // as a flusher in a write
		for range 100 {
			if _, err := c.Write(b[:100]); err != nil {
				t.Fatal(err)
			}
		}
		if len(c.late) > lateMost {
			t.Errorf("%d bytes wait", len(c.late))
		}
		c.writing, c.late = 0, nil
		at := time.Now()
		if _, err := c.Write([]byte("pong")); err == nil || time.Since(at) != c.timeout {
			t.Errorf("a write to nobody ended after %v with %v", time.Since(at), err)
		}
		far.Close()
	})
}

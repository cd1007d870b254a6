package admin

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// frugal is a listener that keeps one file descriptor back: when devices have taken all others, who asks how the gateway is
// still gets an answer, and that answer says so.
type frugal struct {
	net.Listener
	log *slog.Logger

	mu     sync.Mutex
	spare  *os.File
	told   time.Time
	closed chan struct{}
	once   sync.Once
}

func newFrugal(l net.Listener, log *slog.Logger) *frugal {
	f := &frugal{Listener: l, log: log, closed: make(chan struct{})}
	f.save()
	return f
}

// save opens the spare descriptor if there is none.
func (f *frugal) save() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spare == nil {
		f.spare, _ = os.Open(os.DevNull) // when there is none left now, a later connection finds one
	}
}

// spend closes the spare descriptor, so that one connection can be taken.
func (f *frugal) spend() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spare != nil {
		_ = f.spare.Close()
		f.spare = nil
	}
}

const (
	acceptPause = 20 * time.Millisecond // between two tries without a descriptor
	acceptTold  = time.Minute           // one line of the log in this time
)

// Accept waits for descriptors as long as it takes: to the HTTP server an error is a reason for a line in the log each time.
func (f *frugal) Accept() (net.Conn, error) {
	for {
		c, err := f.Listener.Accept()
		if err == nil {
			f.save()
			return c, nil
		}
		if !exhausted(err) {
			return nil, err
		}
		if now := time.Now(); now.Sub(f.told) > acceptTold {
			f.told = now
			f.log.Error("no file descriptor is left for a connection", "err", err, "hint", descriptorHint)
		}
		f.spend()
		select {
		case <-f.closed:
			return nil, net.ErrClosed
		case <-time.After(acceptPause):
		}
	}
}

// Close ends Accept.
func (f *frugal) Close() error {
	f.once.Do(func() { close(f.closed) })
	f.spend()
	return f.Listener.Close()
}

func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

const descriptorHint = "raise LimitNOFILE of the service (ulimit -n), or set max_connections of the MQTT listeners below it"

// Descriptors is nil, or says that the process has no file descriptor left. It tries.
func Descriptors() error {
	f, err := os.Open(os.DevNull)
	if err == nil {
		return f.Close()
	}
	if !exhausted(err) {
		return nil
	}
	return errors.New("no file descriptor is left, new clients are not taken: " + descriptorHint)
}

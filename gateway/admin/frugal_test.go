package admin

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
)

// dry is a listener of a process whose descriptors are all taken, but for those that it gives back itself.
type dry struct {
	fails int
	f     *frugal
}

func (d *dry) Accept() (net.Conn, error) {
	switch {
	case d.fails == 0:
		return nil, net.ErrClosed
	case d.fails == 1 && d.f.spare != nil:
		return nil, errors.New("the spare descriptor was not given back")
	}
	d.fails--
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
}
func (d *dry) Close() error   { return nil }
func (d *dry) Addr() net.Addr { return &net.TCPAddr{} }

func TestAcceptWithoutDescriptorsWaitsAndTellsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		d := &dry{fails: 500}
		d.f = newFrugal(d, slog.New(slog.NewTextHandler(&log, nil)))
		if d.f.spare == nil {
			t.Fatal("no descriptor is kept back")
		}
		if _, err := d.f.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
		if n := strings.Count(log.String(), "no file descriptor is left"); n != 1 || d.fails != 0 {
			t.Errorf("told %d times, %d tries left", n, d.fails)
		}
		d.fails = 1 << 30
		done := make(chan error)
		go func() { _, err := d.f.Accept(); done <- err }()
		synctest.Wait()
		if err := d.f.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("after close: %v", err)
		}
	})
}

// The limit of this process is lowered for a moment: it is what a gateway with too many clients meets.
func TestDescriptorsAreMissedWhenTheyAreGone(t *testing.T) {
	if err := Descriptors(); err != nil {
		t.Fatal(err)
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	low := was
	low.Cur = 3
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	err := Descriptors()
	if back := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); back != nil {
		t.Fatal(back)
	}
	if err == nil || !strings.Contains(err.Error(), "LimitNOFILE") {
		t.Errorf("%v", err)
	}
}

package transport

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// unixPathMax is what the kernel's address has room for, with its final NUL.
const unixPathMax = 107

// privateDir is how much longer the path is where a socket is made.
const privateDir = len("/.forebay-0123456789/s")

// ParseMode reads the permissions of a socket; "" is 0660.
func ParseMode(s string) (os.FileMode, error) {
	if s == "" {
		return 0o660, nil
	}
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o777 || n&0o600 != 0o600 {
		return 0, fmt.Errorf("%q are not permissions such as 0660", s)
	}
	return os.FileMode(n), nil
}

// CheckUnixPath reports what is wrong with the path of a socket.
func CheckUnixPath(path string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("%q is not an absolute path of a socket", path)
	case len(filepath.Dir(path))+privateDir > unixPathMax || len(path) > unixPathMax:
		return fmt.Errorf("%q is too long for a socket", path)
	}
	return nil
}

// ListenUnix makes a socket at path. One that nobody listens to is replaced; it is an error when somebody does, or when path is
// something else.
//
// The socket is made in a directory that only this user may enter, gets its permissions there and is then moved into place, so
// that there is no moment in which others may connect who must not.
func ListenUnix(path string, mode os.FileMode) (net.Listener, error) {
	if err := CheckUnixPath(path); err != nil {
		return nil, err
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode()&os.ModeSocket == 0:
		return nil, fmt.Errorf("%s exists and is no socket", path)
	default:
		if nc, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = nc.Close()
			return nil, fmt.Errorf("%s: %w", path, syscall.EADDRINUSE)
		} else if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".forebay-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // it would look for the socket where it was made
	u := &unixListener{UnixListener: ln, addr: &net.UnixAddr{Name: path, Net: "unix"}}
	err = os.Chmod(made, mode)
	if err == nil {
		u.made, err = os.Lstat(made)
	}
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		_ = ln.Close()
		return nil, err
	}
	return u, nil
}

type unixListener struct {
	*net.UnixListener
	addr *net.UnixAddr
	made os.FileInfo
	once sync.Once
}

// Addr implements net.Listener.
func (l *unixListener) Addr() net.Addr { return l.addr }

// Close implements net.Listener. The socket goes too, unless somebody else has put another one there.
func (l *unixListener) Close() error {
	l.once.Do(func() {
		if info, err := os.Lstat(l.addr.Name); err == nil && os.SameFile(info, l.made) {
			_ = os.Remove(l.addr.Name)
		}
	})
	return l.UnixListener.Close()
}

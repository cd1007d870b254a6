package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const hashForever = time.Hour

var noContext = context.Background()

// readFile reads a whole file of bounded size.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileSize {
		return nil, &FileError{File: name, Problem: fmt.Sprintf("has more than %d bytes", maxFileSize)}
	}
	return data, nil
}

// source is a file with its content as last read without a fault.
type source[T any] struct {
	name  string
	parse func(name string, data []byte) (T, error)

	value atomic.Pointer[T]

	mu   sync.Mutex // of reload
	seen string     // what the file looked like when it was read last, faulty or not
}

func newSource[T any](name string, parse func(string, []byte) (T, error)) (*source[T], error) {
	s := &source[T]{name: name, parse: parse}
	return s, s.reload()
}

func (s *source[T]) load() T {
	if p := s.value.Load(); p != nil {
		return *p
	}
	var zero T
	return zero
}

// reload reads the file. An error leaves the old content in force.
func (s *source[T]) reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = look(s.name)
	data, err := readFile(s.name)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.seen = "" // no file descriptor, no permission: the file will look no different when that is over
		}
		return err
	}
	v, err := s.parse(s.name, data)
	if err != nil {
		return err
	}
	s.value.Store(&v)
	return nil
}

// changed reports whether the file looks different from when it was read.
func (s *source[T]) changed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return look(s.name) != s.seen
}

// look tells one version of a file from another by what costs one system call.
func look(name string) string {
	info, err := os.Stat(name)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			return pe.Err.Error()
		}
		return err.Error()
	}
	var inode uint64 // tells a file that was renamed into place from the one before, even within the clock's resolution
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = st.Ino
	}
	return fmt.Sprint(info.Size(), info.ModTime().UnixNano(), inode)
}

package segment

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// guard calls fn, which reads through bbolt's memory map, and makes a panic or a memory fault of it damage of the file
// instead of the end of the process. SetPanicOnFault belongs to the goroutine, so guard stands inside each.
func guard(path string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover(); {
		case r == nil:
		case strings.HasPrefix(fmt.Sprint(r), "BUG:"):
			panic(r)
		default:
			err = &CorruptionError{Path: path, Partition: -1, Reason: fmt.Sprintf("panic while reading: %v", r)}
		}
	}()
	return fn()
}

// limited is guard in a goroutine of its own that is left behind when it has not returned after d: bbolt can run for
// ever on a damaged tree. drop disposes of a result that comes too late.
func limited[T any](path string, d time.Duration, fn func() (T, error), drop func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	ch := make(chan result, 1)
	go func() {
		var r result
		r.err = guard(path, func() (err error) { r.v, err = fn(); return err })
		ch <- r
	}()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case r := <-ch:
		return r.v, r.err
	case <-t.C:
	}
	go func() {
		if r := <-ch; r.err == nil {
			drop(r.v)
		}
	}()
	var zero T
	return zero, &CorruptionError{Path: path, Partition: -1, Reason: fmt.Sprintf("no end after %v", d)}
}

// Guarded runs fn, which uses a bbolt file, in a goroutine of its own: a panic or a memory fault of it is a *CorruptionError, and so
// is that it has not returned after d; then it is left behind, and whatever it uses with it.
func Guarded(path string, d time.Duration, fn func() error) error {
	_, err := limited(path, d, func() (struct{}, error) { return struct{}{}, fn() }, func(struct{}) {})
	return err
}

// place gives an error of a stored record its place in the file.
func place(path string, partition int, base uint64, err error) error {
	var se storedError
	if errors.As(err, &se) {
		return &CorruptionError{Path: path, Partition: partition, Base: base, Reason: string(se)}
	}
	var ce *CorruptionError
	if err == nil || errors.As(err, &ce) {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

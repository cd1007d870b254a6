package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Store is one place for objects. Its methods may be called by many goroutines. A key is a path of names with slashes between.
type Store interface {
	// Put stores size bytes of r under key, whole or not at all; when it returns nil, the object is durable. r is read once.
	// With IfAbsent it does nothing when there is one already, and says ErrExist.
	Put(ctx context.Context, key string, r io.Reader, size int64, o PutOptions) error

	// Get reads n bytes from offset on; below 0 the rest. ErrNotExist when there is no object. The reader may fail in the middle:
	// whoever needs all of it counts.
	Get(ctx context.Context, key string, offset, n int64) (io.ReadCloser, error)

	// Stat is the size and time of an object; ErrNotExist when there is none.
	Stat(ctx context.Context, key string) (Object, error)

	// List calls fn for the objects whose key begins with prefix, in the order of their keys.
	List(ctx context.Context, prefix string, fn func(Object) error) error

	// Delete removes an object. One that is not there is no error.
	Delete(ctx context.Context, key string) error

	// String names the store for people, without credentials.
	String() string

	Close() error
}

// Files is a Store whose objects are files of this machine, which may be read where they lie.
type Files interface {
	// File is the path of an object's file; "" when a key has none. Whether it is there is for whoever opens it to find out.
	File(key string) string
}

// PutOptions say how an object is stored.
type PutOptions struct {
	IfAbsent bool

	// NameLater leaves the object's name to be made durable by the next Put of an object beside it, which a directory needs a sync for:
	// for the parts of something that counts only once that other object is there.
	NameLater bool
}

// Object is one object of a list.
type Object struct {
	Key  string
	Size int64
	Time time.Time // of its last change
}

// The errors that callers tell apart; everything else is the store's own and may pass.
var (
	// ErrNotExist means that there is no such object.
	ErrNotExist = errors.New("no such object")

	// ErrExist means that IfAbsent found one.
	ErrExist = errors.New("object exists already")

	// ErrDenied means that the credentials are missing, expired or not enough: time alone does not help.
	ErrDenied = errors.New("access denied")

	// ErrVanished means that a directory is gone, or an empty one is in its place: its disk is not mounted.
	ErrVanished = errors.New("the directory of the store is not there any more")

	// ErrNoBucket means that the bucket or container is not there.
	ErrNoBucket = errors.New("no such bucket")
)

// Options are what a URL does not say.
type Options struct {
	// CredentialsFile holds the credentials instead of the cloud's usual chain; it is read again when it changes.
	CredentialsFile string

	// Patience is how long a call waits for a server that says nothing; 0 is two minutes. A directory has none.
	Patience time.Duration
}

// Open opens the store of a URL. Nothing is asked of a network, or made in a directory, before it is used: a store that is away must
// not keep a gateway from starting.
func Open(ctx context.Context, rawURL string, o Options) (Store, error) {
	u, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "file" {
		return &Dir{root: filepath.Clean(u.Path)}, nil
	}
	return openCloud(ctx, u, o)
}

// CheckURL reports what is wrong with a store's URL.
func CheckURL(rawURL string) error {
	_, err := parseURL(rawURL)
	return err
}

// CheckParent reports a directory whose parent is not there: most likely a disk that is not mounted, whose place would be filled instead. For
// what is written once, by hand; a store of tiering is asked for again and again, and knows its directory.
func CheckParent(rawURL string) error {
	u, err := parseURL(rawURL)
	if err != nil || u.Scheme != "file" {
		return err
	}
	parent := filepath.Dir(filepath.Clean(u.Path))
	if _, err := os.Stat(parent); err != nil {
		return fmt.Errorf("%w: is its disk mounted? make %s where that is meant", err, parent)
	}
	return nil
}

// CheckDir reports the directory of a store that is not there: a wrong path, or a disk that is not mounted. For what only reads, and would find
// nothing.
func CheckDir(rawURL string) error {
	u, err := parseURL(rawURL)
	if err != nil || u.Scheme != "file" {
		return err
	}
	if _, err := os.Stat(u.Path); err != nil {
		return fmt.Errorf("%w: is its disk mounted, and the path right?", err)
	}
	return nil
}

// readAll reads a whole small object.
func readAll(ctx context.Context, s Store, key string, limit int64) ([]byte, error) {
	r, err := s.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s: larger than %d bytes", key, limit)
	}
	return b, nil
}

// ReadAll reads a whole object of at most limit bytes.
func ReadAll(ctx context.Context, s Store, key string, limit int64) ([]byte, error) {
	return readAll(ctx, s, key, limit)
}

// PutBytes stores b.
func PutBytes(ctx context.Context, s Store, key string, b []byte, ifAbsent bool) error {
	return s.Put(ctx, key, strings.NewReader(string(b)), int64(len(b)), PutOptions{IfAbsent: ifAbsent})
}

// checkKey refuses what would leave the prefix, or what two stores would understand differently.
func checkKey(key string) error {
	if key == "" || len(key) > 900 {
		return fmt.Errorf("key of %d bytes", len(key))
	}
	for _, name := range strings.Split(key, "/") {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "\\\x00") || strings.HasSuffix(name, tempSuffix) {
			return fmt.Errorf("key %q is not a path of names", key)
		}
	}
	return nil
}

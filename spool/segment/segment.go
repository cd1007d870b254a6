package segment

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/spool/crypt"
)

// Options say how a segment is created or opened. The zero value is usable.
type Options struct {
	Stream   string         // name of the stream, stored by Create; Open takes another stream's file, or one of another number, for damage
	Sequence uint64         // number of the segment in its stream, stored by Create
	ReadOnly bool           // Open only: never write. A sealed segment is always opened read-only
	Codec    Codec          // for what Write stores; CodecNone by default
	Keys     *crypt.Keyring // Create encrypts with its active key; Open needs the one that the file was made with
	MaxSize  int64          // hard limit of the file, 256 MiB by default; Write returns ErrFull up to 4 MiB before it
	Pool     *Pool          // bounds how many sealed segments are open; nil is no bound
	Created  int64          // Create only: Unix nanoseconds, for a copy that is as old as what it copies; 0 is now
	Now      func() time.Time
}

const (
	defaultMaxSize = 256 << 20
	minMaxSize     = 1 << 20
	lockTimeout    = time.Second      // bbolt would wait for ever with 0
	openTimeout    = 60 * time.Second // opening read-write scans the tree: 5.3 s cold at 250 MB of 8-record batches
)

func (o *Options) setDefaults() {
	if o.MaxSize == 0 {
		o.MaxSize = defaultMaxSize
	}
	o.MaxSize = max(o.MaxSize, minMaxSize)
	if o.Now == nil {
		o.Now = time.Now
	}
}

const keyPurpose = "segment"

// allocSize is how much the file grows at a time: each step costs an fsync. It is also how early ErrFull comes.
func (o *Options) allocSize() int { return int(min(4<<20, o.MaxSize/16)) }

// Segment is an open segment. Its methods may be called from any goroutine.
//
// A Write sees the state before it and publishes the state after it; readers take the state that is published. Seal swaps
// the read-write handle for a read-only one between two chunks of a reader, which holds mu for one chunk at a time.
type Segment struct {
	path        string
	o           Options
	fmt         format
	seal        *crypt.Cipher // nil: the file is not encrypted
	codec       atomic.Uint32
	metaDamaged bool                  // when it was opened
	state       atomic.Pointer[state] // as the last good transaction stored it; never modified in place

	writing sync.Mutex // held by Write, Seal and Close, before mu
	failed  error      // guarded by writing

	mu      sync.RWMutex
	db      *bolt.DB // nil after Close, or while nothing can be read any more
	raw     *os.File // second descriptor, for plain reads and read-ahead
	closed  bool
	parked  bool  // by the pool: neither db nor raw are open
	pinned  bool  // never parked
	size    int64 // of the file while it is parked
	parkErr error

	place *list.Element // in the pool; guarded by its mu

	ahead ahead
}

var (
	bucketMeta  = []byte("m")
	bucketData  = []byte("d")
	bucketTime  = []byte("t")
	bucketIndex = []byte("x")
	keyFormat   = []byte("format")
	keyState    = []byte("state")
	keyBatch    = []byte{0} // the only key of a batch's nested bucket
)

// Create makes a new, empty segment at path and syncs file and directory. It fails when path exists. A crash leaves
// nothing or path with ".tmp" behind it, which a later Create replaces.
func Create(path string, o Options) (*Segment, error) {
	o.setDefaults()
	if len(o.Stream) > 4096 {
		return nil, fmt.Errorf("%s: stream name of %d bytes", path, len(o.Stream))
	}
	if _, err := os.Lstat(path); err == nil {
		return nil, &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	s := &Segment{path: path, o: o, fmt: format{stream: o.Stream, sequence: o.Sequence, created: o.Now().UnixNano()}}
	if o.Created != 0 {
		s.fmt.created = o.Created
	}
	s.codec.Store(uint32(o.Codec))
	s.seal, s.fmt.params = o.Keys.New(keyPurpose)
	s.state.Store(newState(s.fmt.created))
	if err := s.create(); err != nil {
		return nil, errors.Join(fmt.Errorf("create segment: %w", err), s.Close())
	}
	return s, nil
}

func (s *Segment) create() (err error) {
	tmp := s.path + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp)
		}
	}()
	if s.db, err = openWritable(tmp, &s.o); err != nil {
		return err
	}
	err = s.db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bucketMeta, bucketData, bucketTime, bucketIndex} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		m := tx.Bucket(bucketMeta)
		return errors.Join(m.Put(keyFormat, s.fmt.encode()), m.Put(keyState, s.state.Load().encode()))
	})
	if err != nil {
		return err
	}
	if s.raw, err = os.Open(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, s.path); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(s.path)); err != nil {
		return errors.Join(err, os.Remove(s.path)) // or the next Create would find it
	}
	return nil
}

// Open opens an existing segment: a sealed one read-only, another read-write unless o.ReadOnly. It costs a millisecond
// for a sealed segment and a scan of the page tree for an active one. An encrypted file whose key is missing or wrong is a
// crypt.ErrKey: it is neither damaged nor unsupported.
//
// bbolt keeps its two last states behind two meta pages and falls back to the older when the newer is damaged. For a
// sealed segment both are the same. For an active one Info says MetaDamaged, and Applied may be what it was before the
// last Write: when that is below what the journal was told to release, the difference is lost.
func Open(path string, o Options) (*Segment, error) {
	o.setDefaults()
	s := &Segment{path: path, o: o}
	s.codec.Store(uint32(o.Codec))
	if err := s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open segment: %w", err), s.Close())
	}
	if s.db.IsReadOnly() {
		o.Pool.used(s)
	}
	return s, nil
}

func (s *Segment) open() (err error) {
	if s.raw, err = os.Open(s.path); err != nil {
		return err
	}
	if err := s.checkSize(); err != nil {
		return err
	}
	// Read-only first: the shared lock keeps a writer away while the pages are checked, and nothing is loaded yet.
	if s.db, err = openReadOnly(s.path); err != nil {
		return err
	}
	t, st, err := s.check(false)
	if err != nil {
		return err
	}
	s.fmt, s.metaDamaged = t.format, t.metaDamaged
	if s.o.Stream != "" && (s.fmt.stream != s.o.Stream || s.fmt.sequence != s.o.Sequence) {
		return place(s.path, -1, 0, damaged("is segment %d of stream %q: it was copied or renamed", s.fmt.sequence, s.fmt.stream))
	}
	s.state.Store(st)
	if s.fmt.params.KeyID != 0 {
		if s.seal, err = s.o.Keys.Open(keyPurpose, s.fmt.params); err != nil {
			return fmt.Errorf("%s: %w", s.path, err)
		}
	}
	if s.o.ReadOnly || st.sealed {
		if st.sealed && !s.o.ReadOnly {
			return s.cutTail(t.pages) // a crash after the seal record, before the file was cut
		}
		return nil
	}
	if _, _, err := s.check(true); err != nil {
		return err
	}
	if err := s.db.Close(); err != nil {
		return err
	}
	s.db, err = openWritable(s.path, &s.o)
	return err
}

// checkSize finds what is too short to be opened: bbolt would turn an empty file into a database.
func (s *Segment) checkSize() error {
	fi, err := s.raw.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return &CorruptionError{Path: s.path, Partition: -1, Reason: "not a regular file"}
	}
	if fi.Size() < 4*pageSize {
		return &CorruptionError{Path: s.path, Partition: -1, Reason: fmt.Sprintf("%d bytes are too short", fi.Size())}
	}
	return nil
}

// check checks the page tree and reads format and state out of it.
func (s *Segment) check(deep bool) (*tree, *state, error) {
	fi, err := s.raw.Stat()
	if err != nil {
		return nil, nil, err
	}
	t, err := checkTree(s.raw, fi.Size(), deep)
	if err != nil {
		return nil, nil, place(s.path, -1, 0, err)
	}
	if t.format, err = decodeFormat(t.meta[string(keyFormat)]); err != nil {
		return nil, nil, place(s.path, -1, 0, err)
	}
	st, err := decodeState(t.meta[string(keyState)], t.format.created)
	if err != nil {
		return nil, nil, place(s.path, -1, 0, err)
	}
	var batches uint64
	for _, p := range st.parts {
		batches += p.Batches
	}
	if n := t.entries[string(bucketData)]; n != batches {
		return nil, nil, place(s.path, -1, 0, damaged("holds %d batches, its state says %d", n, batches))
	}
	return t, st, nil
}

func openWritable(path string, o *Options) (*bolt.DB, error) {
	db, err := limited(path, openTimeout, func() (*bolt.DB, error) {
		return bolt.Open(path, 0o640, &bolt.Options{
			Timeout:         lockTimeout,
			NoFreelistSync:  true, // else every commit rewrites the list of free pages
			FreelistType:    bolt.FreelistMapType,
			PageSize:        pageSize,
			InitialMmapSize: int(o.MaxSize), // the map never grows, so a writer never waits for readers to let go of the old one
			MaxSize:         int(o.MaxSize),
			NoStatistics:    true,
		})
	}, func(db *bolt.DB) { _ = db.Close() })
	if err != nil {
		return nil, openError(path, err)
	}
	db.AllocSize = o.allocSize()
	return db, nil
}

func openReadOnly(path string) (*bolt.DB, error) {
	db, err := limited(path, openTimeout, func() (*bolt.DB, error) {
		return bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: lockTimeout, PageSize: pageSize, NoStatistics: true})
	}, func(db *bolt.DB) { _ = db.Close() })
	return db, openError(path, err)
}

// Applied is the journal position that the last Write stored.
func (s *Segment) Applied() uint64 { return s.state.Load().applied }

// Info returns what is known without reading batches.
func (s *Segment) Info() Info {
	s.mu.RLock()
	size := s.size
	if s.raw != nil {
		if fi, err := s.raw.Stat(); err == nil {
			size = fi.Size()
		}
	}
	s.mu.RUnlock()
	in := s.state.Load().info(s.path, s.fmt, size)
	in.MetaDamaged = s.metaDamaged
	return in
}

// Path returns the file's path.
func (s *Segment) Path() string { return s.path }

// view runs fn in a read transaction on the handle that is current. fn must be short: see maxChunk.
func (s *Segment) view(fn func(tx *bolt.Tx) error) error {
	if err := s.rlock(); err != nil {
		return err
	}
	defer s.mu.RUnlock()
	if s.db == nil {
		return ErrClosed
	}
	if err := s.checkMetas(); err != nil {
		return place(s.path, -1, 0, err)
	}
	return guard(s.path, func() error { return s.db.View(fn) })
}

// checkMetas looks at the meta pages with plain reads. bbolt looks at them when a transaction begins, with a lock held that
// it keeps for ever when that panics or faults: with a file that was cut or written over, or a sector that cannot be read.
func (s *Segment) checkMetas() error { return checkMetas(s.raw, pageSize) }

func checkMetas(f io.ReaderAt, size int64) error {
	valid := false
	for i := range int64(2) {
		p := make([]byte, pageHeader+64)
		if _, err := f.ReadAt(p, i*size); err != nil {
			return readError(uint64(i), err)
		}
		valid = valid || validMeta(p[pageHeader:])
	}
	if !valid {
		return storedError("no valid meta page")
	}
	return nil
}

// CheckMetas is that look at any file of bbolt, for whoever is about to begin a transaction.
func CheckMetas(path string, f io.ReaderAt) error {
	if os.Getpagesize() != pageSize { // bbolt takes the system's
		return nil
	}
	return place(path, -1, 0, checkMetas(f, pageSize))
}

// Close closes the file. Twice is fine.
func (s *Segment) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.o.Pool.forget(s)
	return errors.Join(s.parkErr, s.closeLocked())
}

func (s *Segment) closeLocked() error {
	var errs []error
	if s.db != nil {
		// After a panic inside bbolt its locks may be held for ever.
		_, err := limited(s.path, closeTimeout, func() (struct{}, error) { return struct{}{}, s.db.Close() }, func(struct{}) {})
		errs = append(errs, err)
		s.db = nil
	}
	if s.raw != nil {
		errs = append(errs, s.raw.Close())
		s.raw = nil
	}
	return errors.Join(errs...)
}

const closeTimeout = 10 * time.Second

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

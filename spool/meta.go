package spool

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/forebay-gateway/forebay/spool/segment"
	"github.com/forebay-gateway/forebay/spool/vfs"

	"github.com/forebay-gateway/forebay/spool/crypt"
)

// meta is meta.db: what recovery needs beside the segments and the journal, and the state of other parts.
//
//	m  "format"        u8 version
//	   "applied"       u64 journal position up to which everything in here is applied
//	   "clock"         i64 the spool's own time when this was written
//	   "skew"          JSON clockState: how far the wall clock was from it, and the boot clock
//	   "quarantined"   u64 how many files were set aside
//	p  STREAM 0 u16    JSON partitionRecord: next offset, log start, lost ranges
//	g  STREAM 0 u64    JSON segmentRecord: what a segment holds, so that a missing one can be told
//	s  SPACE           nested bucket: key -> value
//
// Numbers in keys are big-endian. An encrypted meta.db has format 2, its wrapped data key under "crypt" in m, and encrypted keys
// and values in s, see crypt.go.
type meta struct {
	db       *bolt.DB
	path     string
	key      *crypt.DataKey                // nil: not encrypted
	onDamage func(space string, err error) // told of a value that cannot be decrypted; nil is fine

	raw  *os.File              // for plain reads
	lost atomic.Pointer[error] // set when bbolt's locks are held for ever: only another process can use the file

	mu sync.Mutex // held by update until its OnCommit handlers have run, which bbolt does after it lets the next one in
}

const (
	metaVersion = 1
	metaSealed  = 2 // encrypted
)

var (
	bucketMeta       = []byte("m")
	bucketPartitions = []byte("p")
	bucketSegments   = []byte("g")
	bucketSpaces     = []byte("s")

	keyFormat      = []byte("format")
	keyApplied     = []byte("applied")
	keyClock       = []byte("clock")
	keySkew        = []byte("skew")
	keyQuarantined = []byte("quarantined")
)

type partitionRecord struct {
	Next  Offset      `json:"next"` // no offset below was given out for the first time after this was written
	Start Offset      `json:"start"`
	Lost  []lostRange `json:"lost,omitempty"`
}

type segmentRecord struct {
	Sealed     bool           `json:"sealed"`
	Removed    bool           `json:"removed,omitempty"` // its file is being removed; not a loss
	Bytes      int64          `json:"bytes"`
	SHA256     string         `json:"sha256,omitempty"` // of the sealed file; a segment of an earlier version gets it later
	Newest     int64          `json:"newest,omitempty"` // spool's own time at which its last record came, or later
	Partitions []segmentRange `json:"partitions"`
}

type segmentRange struct {
	Partition int    `json:"partition"`
	First     Offset `json:"first"`
	Next      Offset `json:"next"`
}

// openMeta opens meta.db, or makes it. A damaged one is a *CorruptionError, a newer one ErrUnsupported.
func openMeta(path string, readOnly bool) (*meta, error) {
	m := &meta{path: path}
	err := guard(path, func() error {
		db, err := bolt.Open(path, 0o640, &bolt.Options{
			Timeout:      time.Second,
			FreelistType: bolt.FreelistMapType,
			ReadOnly:     readOnly,
			NoStatistics: true,
		})
		if err != nil {
			return metaError(path, err)
		}
		m.db = db
		if m.raw, err = os.Open(path); err != nil {
			return err
		}
		if readOnly {
			return m.checkFormat()
		}
		return m.init()
	})
	if err != nil {
		_ = m.close()
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// openMetaChecked is openMeta after a look at every page, so that damage shows at the start and not in service. bbolt's own
// check will not do: it may end the process, or never end. It is no error when there is no file yet, unless readOnly.
func openMetaChecked(path string, readOnly bool) (*meta, error) {
	lock, err := vfs.LockShared(path) // bbolt's lock: what another process writes would look damaged
	switch {
	case errors.Is(err, fs.ErrNotExist) && !readOnly:
		return openMeta(path, false)
	case errors.Is(err, vfs.ErrLocked):
		return nil, fmt.Errorf("%s: %w", path, ErrInUse)
	case err != nil:
		return nil, err
	}
	fi, err := os.Stat(path)
	if err == nil && (fi.Size() > 0 || readOnly) {
		err = segment.CheckPages(path)
	}
	if err = errors.Join(err, lock.Close()); errors.Is(err, segment.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return nil, err
	}
	return openMeta(path, readOnly)
}

// metaError tells damage from everything else that bbolt may say.
func metaError(path string, err error) error {
	for _, damage := range []error{bolterrors.ErrInvalid, bolterrors.ErrVersionMismatch, bolterrors.ErrChecksum, bolterrors.ErrInvalidMapping} {
		if errors.Is(err, damage) {
			return &CorruptionError{Where: path, Detail: err.Error()}
		}
	}
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%s: %w", path, ErrInUse)
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) { // what the system does not say, bbolt says of the file: "file size too small"
		return &CorruptionError{Where: path, Detail: err.Error()}
	}
	return err
}

// guard turns what bbolt does with a damaged file, panics and touches of memory that is not there, into an error.
func guard(what string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = &CorruptionError{Where: what, Detail: fmt.Sprint(r)}
		}
	}()
	return fn()
}

func (m *meta) init() error {
	made := false
	if err := m.db.View(func(tx *bolt.Tx) error { made = tx.Bucket(bucketMeta) != nil; return nil }); err != nil {
		return err
	}
	if made {
		return m.checkFormat() // before anything is written: a newer format is not touched
	}
	if err := m.db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bucketMeta, bucketPartitions, bucketSegments, bucketSpaces} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return tx.Bucket(bucketMeta).Put(keyFormat, []byte{metaVersion})
	}); err != nil {
		return err
	}
	return m.checkFormat()
}

func (m *meta) checkFormat() error {
	return m.db.View(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketMeta)
		if b == nil {
			return &CorruptionError{Where: m.path, Detail: "no bucket m"}
		}
		switch v := b.Get(keyFormat); {
		case len(v) != 1 || v[0] == 0:
			return &CorruptionError{Where: m.path, Detail: "no format version"}
		case v[0] > metaSealed:
			return fmt.Errorf("%s: format %d, this version reads %d: %w", m.path, v[0], metaSealed, ErrUnsupported)
		case (v[0] == metaSealed) != (b.Get(keyCrypt) != nil):
			return &CorruptionError{Where: m.path, Detail: fmt.Sprintf("format %d does not fit its data key", v[0])}
		}
		for _, name := range [][]byte{bucketPartitions, bucketSegments, bucketSpaces} {
			if tx.Bucket(name) == nil {
				return &CorruptionError{Where: m.path, Detail: fmt.Sprintf("no bucket %s", name)}
			}
		}
		return nil
	})
}

func (m *meta) view(fn func(tx *bolt.Tx) error) error {
	return m.guarded(func() error { return m.db.View(fn) })
}

func (m *meta) update(fn func(tx *bolt.Tx) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.guarded(func() error { return m.db.Update(fn) })
	if _, panicked := errors.AsType[*segment.CorruptionError](err); panicked && segment.CheckMetas(m.path, m.raw) == nil {
		m.lost.CompareAndSwap(nil, &err) // bbolt's rollback reads pages too: it has panicked again and keeps its lock
	}
	return err
}

// metaTimeout is more than any transaction takes on a slow disk: after it, bbolt goes in circles on a damaged tree.
const metaTimeout = time.Minute

// guarded runs a transaction. The file may have been damaged since it was opened: bbolt panics, faults or never ends then, some of that
// with its locks held. The meta pages are looked at before it does.
func (m *meta) guarded(fn func() error) error {
	if lost := m.lost.Load(); lost != nil {
		return *lost
	}
	if err := segment.CheckMetas(m.path, m.raw); err != nil {
		return err
	}
	began := time.Now()
	err := segment.Guarded(m.path, metaTimeout, fn)
	if damaged(err) && time.Since(began) >= metaTimeout {
		m.lost.Store(&err)
	}
	return err
}

func (m *meta) close() error {
	if m == nil || m.db == nil {
		return nil
	}
	wait := metaTimeout / 6
	if m.lost.Load() != nil {
		wait = time.Second // most likely in vain
	}
	err := segment.Guarded(m.path, wait, m.db.Close)
	if m.raw != nil {
		err = errors.Join(err, m.raw.Close())
	}
	return err
}

func (m *meta) size() int64 {
	fi, err := os.Stat(m.path)
	if err != nil {
		return 0
	}
	return fi.Size()
}

func (m *meta) number(tx *bolt.Tx, key []byte) uint64 {
	if v := tx.Bucket(bucketMeta).Get(key); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (m *meta) putNumber(tx *bolt.Tx, key []byte, v uint64) error {
	return tx.Bucket(bucketMeta).Put(key, binary.BigEndian.AppendUint64(nil, v))
}

func (m *meta) clockState(tx *bolt.Tx) (c clockState) {
	if v := tx.Bucket(bucketMeta).Get(keySkew); v != nil && json.Unmarshal(v, &c) != nil {
		c = clockState{} // as in a directory of an earlier version
	}
	c.Own = int64(m.number(tx, keyClock))
	return c
}

func (m *meta) putClock(tx *bolt.Tx, c clockState) error {
	return errors.Join(m.putNumber(tx, keyClock, uint64(c.Own)), putJSON(tx.Bucket(bucketMeta), keySkew, c))
}

func partitionKey(stream string, partition int) []byte {
	return binary.BigEndian.AppendUint16(append([]byte(stream), 0), uint16(partition))
}

func segmentKey(stream string, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(stream), 0), seq)
}

func putJSON(b *bolt.Bucket, key []byte, v any) error {
	j, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put(key, j)
}

// partitions calls fn for each partition that is known.
func (m *meta) partitions(tx *bolt.Tx, fn func(stream string, partition int, r partitionRecord) error) error {
	return tx.Bucket(bucketPartitions).ForEach(func(k, v []byte) error {
		n := len(k) - 3
		if n < 1 {
			return &CorruptionError{Where: m.path, Detail: fmt.Sprintf("partition key %x", k)}
		}
		var r partitionRecord
		if err := json.Unmarshal(v, &r); err != nil {
			return &CorruptionError{Where: m.path, Detail: fmt.Sprintf("partition %x: %v", k, err)}
		}
		return fn(string(k[:n]), int(binary.BigEndian.Uint16(k[n+1:])), r)
	})
}

// segments calls fn for each segment of the catalog, ascending within a stream.
func (m *meta) segments(tx *bolt.Tx, fn func(stream string, seq uint64, r segmentRecord) error) error {
	return tx.Bucket(bucketSegments).ForEach(func(k, v []byte) error {
		n := len(k) - 9
		if n < 1 {
			return &CorruptionError{Where: m.path, Detail: fmt.Sprintf("segment key %x", k)}
		}
		var r segmentRecord
		if err := json.Unmarshal(v, &r); err != nil {
			return &CorruptionError{Where: m.path, Detail: fmt.Sprintf("segment %x: %v", k, err)}
		}
		return fn(string(k[:n]), binary.BigEndian.Uint64(k[n+1:]), r)
	})
}

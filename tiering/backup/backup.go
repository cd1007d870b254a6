package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/store"
)

const version = 1

var (
	// ErrDamaged means that the store does not have what was backed up.
	ErrDamaged = errors.New("backup is damaged")

	// ErrNone means that there is no such backup.
	ErrNone = errors.New("no such backup")

	// ErrUnsupported means that a newer version has made it.
	ErrUnsupported = errors.New("made in a newer format than this version reads")

	// ErrOther means that the store has the backups of another gateway.
	ErrOther = errors.New("the backups there are those of another gateway: give each its own prefix")

	// ErrTiering means that segments of tiering are there, under names that may be those of backups.
	ErrTiering = errors.New("a gateway stores its segments there (tiering.url): give backups a prefix of their own")

	// ErrNotEmpty means that there is something where the spool shall be restored.
	ErrNotEmpty = errors.New("there is something already")

	// ErrRestoring means that another process restores into the same directory.
	ErrRestoring = errors.New("another restore is running")
)

// Info is one backup.
type Info struct {
	Version  int       `json:"version"`
	ID       string    `json:"id"`
	Gateway  string    `json:"gateway"`
	Time     time.Time `json:"time"` // everything that was acknowledged before is in it
	LSN      uint64    `json:"lsn"`
	Meta     File      `json:"meta"`
	Segments []Segment `json:"segments"`
	Sent     int64     `json:"sent_bytes"` // what the backups before did not have
}

// File is an object.
type File struct {
	Key    string `json:"key"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Segment is a segment of a backup.
type Segment struct {
	File
	Stream   string `json:"stream"`
	Sequence uint64 `json:"sequence"`
	Records  uint64 `json:"records"`
	KeyID    uint32 `json:"key_id,omitempty"`
}

// Bytes is the size of a restored spool.
func (i *Info) Bytes() int64 {
	n := i.Meta.Bytes
	for _, s := range i.Segments {
		n += s.Bytes
	}
	return n
}

// Options are what a backup needs to know.
type Options struct {
	Gateway  string // its ID; empty is not known
	Scratch  string // directory for the copy of meta.db
	Verify   bool   // read back the segments of earlier backups too; what is damaged there is stored again
	Keep     int    // of a Job: so many of the newest are kept, 0 keeps all
	Progress func(done, total int64)
}

// Create makes a backup of an open spool. What it stores is read back and compared before the backup counts; of a segment that an
// earlier one has stored the size is compared, with Verify its bytes. One that is made at a time, of one gateway, is for the caller to
// see to: an open spool has one owner, and a Job makes one after the other.
func Create(ctx context.Context, s *spool.Spool, st store.Store, o Options) (*Info, error) {
	scratch, err := os.MkdirTemp(o.Scratch, "backup-*")
	if err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	defer os.RemoveAll(scratch)
	if o.Gateway, err = owned(ctx, st, o.Gateway); err != nil {
		return nil, fmt.Errorf("backup into %s: %w", st, err)
	}
	snap, err := s.Snapshot(ctx, filepath.Join(scratch, "meta.db"))
	if err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	defer snap.Release()
	c := creator{st: st, s: s, o: o, info: &Info{Version: version, Gateway: o.Gateway, Time: snap.Time.UTC(), LSN: snap.LSN}}
	if c.info.ID, err = claim(ctx, st, c.info.Time); err != nil {
		return nil, fmt.Errorf("backup into %s: %w", st, err)
	}
	if err := c.create(ctx, snap); err != nil {
		return nil, fmt.Errorf("backup into %s: %w", st, err)
	}
	_ = st.Delete(ctx, claimKey(c.info.ID)) // else Prune does
	return c.info, nil
}

type creator struct {
	st          store.Store
	s           *spool.Spool
	o           Options
	info        *Info
	done, total int64
}

func (c *creator) create(ctx context.Context, snap *spool.Snapshot) error {
	for _, se := range snap.Segments {
		c.total += se.Bytes
	}
	for _, se := range snap.Segments {
		if err := c.segment(ctx, se); err != nil {
			return fmt.Errorf("segment %d of %s: %w", se.Sequence, se.Stream, err)
		}
	}
	f, err := os.Open(snap.Meta)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if c.info.Meta, err = c.file(ctx, metaKey(c.info.ID), f, fi.Size()); err != nil {
		return fmt.Errorf("meta.db: %w", err)
	}
	b, err := json.MarshalIndent(c.info, "", "  ")
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	b = append(append(b, '\n'), hex.EncodeToString(sum[:])+"\n"...)
	return store.PutBytes(ctx, c.st, infoKey(c.info.ID), b, true)
}

// segment stores a segment that no backup before has.
func (c *creator) segment(ctx context.Context, se spool.Sealed) error {
	f, err := c.s.SealedFile(se.Stream, se.Sequence)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, &ctxReader{ctx, io.NewSectionReader(f, 0, f.Bytes)}); err != nil {
		return err
	}
	hash := hex.EncodeToString(sum.Sum(nil))
	seg := Segment{
		Stream: se.Stream, Sequence: se.Sequence, Records: se.Records, KeyID: se.KeyID,
		File: File{Key: fmt.Sprintf("segments/%s/%016x-%s.db", se.Stream, se.Sequence, hash[:32]), Bytes: f.Bytes, SHA256: hash},
	}
	have, err := c.has(ctx, &seg.File)
	if err == nil && !have {
		_, err = c.file(ctx, seg.Key, f, f.Bytes)
	}
	if err != nil {
		return err
	}
	c.info.Segments = append(c.info.Segments, seg)
	if c.done += se.Bytes; c.o.Progress != nil {
		c.o.Progress(c.done, c.total)
	}
	return nil
}

// has tells whether an earlier backup has stored a segment. One that somebody has cut since it has not, nor, with Verify, one with a
// byte that has changed.
func (c *creator) has(ctx context.Context, f *File) (bool, error) {
	o, err := c.st.Stat(ctx, f.Key)
	switch {
	case errors.Is(err, store.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case o.Size != f.Bytes:
		return false, nil
	case !c.o.Verify:
		return true, nil
	}
	err = f.read(ctx, c.st, io.Discard)
	if errors.Is(err, ErrDamaged) {
		return false, nil
	}
	return err == nil, err
}

// file stores one object and reads it back.
func (c *creator) file(ctx context.Context, key string, r io.ReaderAt, size int64) (File, error) {
	sum := sha256.New()
	if err := c.st.Put(ctx, key, io.TeeReader(io.NewSectionReader(r, 0, size), sum), size, store.PutOptions{}); err != nil {
		return File{}, err
	}
	c.info.Sent += size
	f := File{Key: key, Bytes: size, SHA256: hex.EncodeToString(sum.Sum(nil))}
	return f, f.read(ctx, c.st, io.Discard)
}

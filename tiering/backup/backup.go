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
	"slices"
	"strings"
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

	// ErrNotEmpty means that there is something where the spool shall be restored.
	ErrNotEmpty = errors.New("there is something already")
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
	Progress func(done, total int64)
}

// Create makes a backup of an open spool. Every object is read back and compared before the backup counts.
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
	if err := c.create(ctx, snap); err != nil {
		return nil, fmt.Errorf("backup into %s: %w", st, err)
	}
	return c.info, nil
}

// owned wants no backups there but those of the same gateway: "latest" and Prune do not tell them apart. Of a stopped gateway that made
// its ID itself none is known: then it is that of the backups.
func owned(ctx context.Context, st store.Store, gateway string) (string, error) {
	last, err := Read(ctx, st, "latest")
	switch {
	case errors.Is(err, ErrNone), errors.Is(err, ErrDamaged): // a damaged one must not keep a good one from being made
		return gateway, nil
	case err != nil:
		return "", err
	case gateway == "":
		return last.Gateway, nil
	case last.Gateway != "" && last.Gateway != gateway:
		return "", fmt.Errorf("%w: %s is that of %q", ErrOther, last.ID, last.Gateway)
	}
	return gateway, nil
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
	c.info.ID = c.info.Time.Format("20060102T150405.000Z")
	f, err := os.Open(snap.Meta)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if c.info.Meta, err = c.file(ctx, "backups/"+c.info.ID+"/meta.db", f, fi.Size()); err != nil {
		return fmt.Errorf("meta.db: %w", err)
	}
	b, err := json.MarshalIndent(c.info, "", "  ")
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	b = append(append(b, '\n'), hex.EncodeToString(sum[:])+"\n"...)
	return store.PutBytes(ctx, c.st, "backups/"+c.info.ID+"/backup.json", b, true)
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
	// It was read back when it was put. One that somebody has cut since is put again.
	if o, err := c.st.Stat(ctx, seg.Key); errors.Is(err, store.ErrNotExist) || err == nil && o.Size != f.Bytes {
		if _, err := c.file(ctx, seg.Key, f, f.Bytes); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	c.info.Segments = append(c.info.Segments, seg)
	if c.done += se.Bytes; c.o.Progress != nil {
		c.o.Progress(c.done, c.total)
	}
	return nil
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

const (
	readTries = 6 // of one place in an object, without a byte in between: about half a minute
	readPause = 500 * time.Millisecond
)

// read copies an object to w and checks it. Where the connection is lost it goes on from there.
func (f *File) read(ctx context.Context, st store.Store, w io.Writer) error {
	sum := sha256.New()
	out := &receiver{w: io.MultiWriter(w, sum)}
	for tries := 0; ; {
		n, err := f.readFrom(ctx, st, out)
		if err == nil {
			break
		}
		if n > 0 {
			tries = 0
		}
		tries++
		switch {
		case errors.Is(err, store.ErrNotExist):
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		case out.err != nil, ctx.Err() != nil, tries >= readTries, errors.Is(err, store.ErrDenied), errors.Is(err, store.ErrNoBucket), errors.Is(err, store.ErrVanished):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(readPause << (tries - 1)):
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); out.n != f.Bytes || got != f.SHA256 {
		return fmt.Errorf("%w: %s has %d bytes with SHA-256 %s, want %d with %s", ErrDamaged, f.Key, out.n, got, f.Bytes, f.SHA256)
	}
	return nil
}

// readFrom copies what out does not have yet.
func (f *File) readFrom(ctx context.Context, st store.Store, out *receiver) (int64, error) {
	r, err := st.Get(ctx, f.Key, out.n, -1)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return io.Copy(out, r)
}

// receiver counts, and keeps the error of the writer apart from those of the store.
type receiver struct {
	w   io.Writer
	n   int64
	err error
}

func (r *receiver) Write(p []byte) (int, error) {
	n, err := r.w.Write(p)
	r.n, r.err = r.n+int64(n), err
	return n, err
}

type ctxReader struct {
	ctx context.Context // lives for one copy
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// IDs are the backups in a store, oldest first.
func IDs(ctx context.Context, st store.Store) (ids []string, err error) {
	err = st.List(ctx, "backups/", func(o store.Object) error {
		if id, ok := strings.CutSuffix(strings.TrimPrefix(o.Key, "backups/"), "/backup.json"); ok {
			ids = append(ids, id)
		}
		return nil
	})
	slices.Sort(ids)
	return ids, err
}

// Read reads what belongs to a backup; "" or "latest" is the newest.
func Read(ctx context.Context, st store.Store, id string) (*Info, error) {
	if id == "" || id == "latest" {
		ids, err := IDs(ctx, st)
		if err != nil {
			return nil, err
		}
		if len(ids) == 0 {
			return nil, fmt.Errorf("%s: %w", st, ErrNone)
		}
		id = ids[len(ids)-1]
	}
	b, err := store.ReadAll(ctx, st, "backups/"+id+"/backup.json", 64<<20)
	if errors.Is(err, store.ErrNotExist) {
		return nil, fmt.Errorf("%s in %s: %w", id, st, ErrNone)
	}
	if err != nil {
		return nil, err
	}
	body, sum, ok := strings.Cut(string(b), "\n}\n")
	body += "\n}"
	if got := sha256.Sum256([]byte(body)); !ok || strings.TrimSpace(sum) != hex.EncodeToString(got[:]) {
		return nil, fmt.Errorf("%s: backup.json: %w", id, ErrDamaged)
	}
	info := new(Info)
	if err := json.Unmarshal([]byte(body), info); err != nil {
		return nil, fmt.Errorf("%s: backup.json: %w: %w", id, ErrDamaged, err)
	}
	if info.Version > version {
		return nil, fmt.Errorf("%s: %w", id, ErrUnsupported)
	}
	return info, nil
}

package tiering

import (
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/crypt"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// uploader puts segments into a store.
type uploader struct {
	store    store.Store
	partSize int64
	verify   Verify
	keys     *crypt.Keyring
	limit    *limiter
	yield    *yield // nil never waits
	log      *slog.Logger
	now      func() time.Time
	sent     func(bytes int64) // told of what went up
}

// upload stores a segment and its entry, both verified. What is there already, of an upload that broke off or was done before, is
// not sent again. The error wraps spool.ErrChanged when the segment goes or is rewritten meanwhile, and ErrConflict when the store has
// another one of its number.
//
// Each byte is hashed as it is sent, and compared with what comes back; the hash that the segment had when it was
// sealed is what it is held against.
func (u *uploader) upload(ctx context.Context, f *spool.SealedFile) (*manifest.Segment, error) {
	seg := manifest.EntryOf(f.Sealed)
	have, err := manifest.ReadEntry(ctx, u.store, seg.Stream, seg.Sequence)
	switch {
	case err == nil && !have.Same(&seg):
		return nil, fmt.Errorf("segment %d of %s: %w", seg.Sequence, seg.Stream, ErrConflict)
	case err == nil:
		if err := u.check(ctx, have); err == nil || !errors.Is(err, ErrDamaged) {
			return have, err
		}
	case errors.Is(err, store.ErrNotExist), errors.Is(err, manifest.ErrDamaged):
	default:
		return nil, err
	}
	if seg.PartSize = seg.Bytes; inPlace(u.store, &seg) == "" { // else one file, which can be read where it lies
		seg.PartSize = u.partSize
	}
	whole := sha256.New()
	for part := range seg.Parts() {
		off := int64(part) * seg.PartSize
		if err := u.part(ctx, f, &seg, part, off, min(seg.PartSize, seg.Bytes-off), whole); err != nil {
			return nil, fmt.Errorf("segment %d of %s, part %d: %w", seg.Sequence, seg.Stream, part, err)
		}
	}
	seg.SHA256 = hex.EncodeToString(whole.Sum(nil))
	if f.SHA256 != "" && f.SHA256 != seg.SHA256 {
		// What can be read of it is worth more in the store than nothing: each batch has a checksum of its own.
		u.log.Warn("segment on the disk is not what was sealed; it is stored as it is", "stream", seg.Stream, "segment", seg.Sequence,
			"sha256", seg.SHA256, "sealed_sha256", f.SHA256, "hint", "forebay spool verify tells what is damaged")
	}
	if seg.Topics, err = u.topics(f); err != nil {
		return nil, err
	}
	seg.Stored = u.now().UTC()
	if err := manifest.PutEntry(ctx, u.store, &seg); err != nil {
		return nil, err
	}
	if have, err := manifest.ReadEntry(ctx, u.store, seg.Stream, seg.Sequence); err != nil || have.SHA256 != seg.SHA256 {
		return nil, fmt.Errorf("segment %d of %s: entry: %w", seg.Sequence, seg.Stream, errors.Join(err, ErrDamaged))
	}
	return &seg, nil
}

// part makes sure that one part is in the store with the bytes that the segment has, and adds them to whole.
func (u *uploader) part(ctx context.Context, f io.ReaderAt, seg *manifest.Segment, part int, off, n int64, whole hash.Hash) error {
	key := manifest.PartKey(seg.Stream, seg.Sequence, part)
	o, err := u.store.Stat(ctx, key)
	switch {
	case err == nil && o.Size == n:
		// Of an upload that broke off. Its bytes are read back whatever verify says: they are of another time.
		before, err := stateOf(whole)
		if err != nil {
			return err
		}
		if err = u.content(ctx, key, f, off, n, whole); err == nil || !errors.Is(err, ErrDamaged) {
			return err
		}
		if err := before(whole); err != nil {
			return err
		}
	case err != nil && !errors.Is(err, store.ErrNotExist):
		return err
	}
	src, hashed := u.hashing(io.NewSectionReader(f, off, n), whole)
	_, toDisk := u.store.(store.Files)
	err = u.store.Put(ctx, key, u.yield.reader(ctx, src, u.limit, toDisk), n, store.PutOptions{NameLater: true}) // the entry is put beside it
	defer hashed()                                                                                               // beside the reading back
	if err != nil {
		return err
	}
	u.sent(n)
	if u.verify == VerifySize {
		o, err := u.store.Stat(ctx, key)
		if err == nil && o.Size != n {
			err = fmt.Errorf("%w: %d bytes, want %d", ErrDamaged, o.Size, n)
		}
		return err
	}
	return u.content(ctx, key, f, off, n, io.Discard)
}

// hashing is r, with what is read of it hashed into whole until done is called: beside the reading while nobody waits for an
// acknowledgement, and the other processor has nothing to do.
func (u *uploader) hashing(r io.Reader, whole hash.Hash) (src io.Reader, done func()) {
	if u.yield != nil && u.yield.busy(time.Now()) {
		h := &hashed{r: r, into: whole}
		return h, h.end
	}
	beside := newHasher(io.Discard, whole)
	h := &hashed{r: r, into: beside}
	return h, func() {
		h.end()
		beside.close()
	}
}

// hashed writes what is read. Libraries of clouds may go on reading when they have given up an upload: behind the end nothing is read.
type hashed struct {
	mu    sync.Mutex
	r     io.Reader
	into  io.Writer
	ended bool
}

func (h *hashed) Read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return 0, errEnded
	}
	n, err := h.r.Read(p)
	_, _ = h.into.Write(p[:n]) // never fails
	return n, err
}

func (h *hashed) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
}

var errEnded = errors.New("the upload has ended")

// stateOf remembers what h has; the function that it returns puts that back.
func stateOf(h hash.Hash) (func(hash.Hash) error, error) {
	b, err := h.(encoding.BinaryMarshaler).MarshalBinary() // sha256 has it
	return func(h hash.Hash) error { return h.(encoding.BinaryUnmarshaler).UnmarshalBinary(b) }, err
}

// content reads an object back, compares it with the segment's bytes, and writes them to whole.
func (u *uploader) content(ctx context.Context, key string, f io.ReaderAt, off, n int64, whole io.Writer) error {
	c := &comparer{ctx: ctx, f: f, off: off, whole: whole, yield: u.yield}
	got, err := fetchPart(ctx, u.store, key, 0, n, c, u.limit)
	var local *writeError
	switch {
	case errors.Is(err, errShort):
		return fmt.Errorf("%w: %d bytes came back of %d", ErrDamaged, got, n)
	case errors.As(err, &local):
		return local.err
	}
	return err
}

// comparer is written what comes back, and wants it to be what lies at off of f.
type comparer struct {
	ctx   context.Context // lives for one part
	f     io.ReaderAt
	off   int64
	whole io.Writer
	yield *yield
	buf   []byte
}

func (c *comparer) Write(p []byte) (int, error) {
	began := time.Now()
	n, err := c.compare(p)
	if err == nil {
		_, err = c.yield.pause(c.ctx, time.Since(began))
	}
	return n, err
}

func (c *comparer) compare(p []byte) (int, error) {
	if len(c.buf) < len(p) {
		c.buf = make([]byte, len(p))
	}
	mine := c.buf[:len(p)]
	if n, err := c.f.ReadAt(mine, c.off); n < len(mine) {
		return 0, err
	}
	if string(mine) != string(p) {
		return 0, fmt.Errorf("%w: other bytes came back than were sent", ErrDamaged)
	}
	c.off += int64(len(p))
	return c.whole.Write(mine)
}

// check verifies a segment that an earlier run has stored.
func (u *uploader) check(ctx context.Context, seg *manifest.Segment) error {
	_, err := Fetch(ctx, u.store, seg, io.Discard, u.limit)
	return err
}

// topics sums up what the segment's index has.
func (u *uploader) topics(f *spool.SealedFile) (manifest.Topics, error) {
	var c manifest.Collector
	err := f.Topics(func(topic string) error { c.Add(topic); return nil })
	if errors.Is(err, spool.ErrNoIndex) || spool.IsDamage(err) {
		return manifest.Topics{All: true}, nil
	}
	return c.Topics(u.keys, f.KeyID != 0), err
}

// openStored makes the entry of a segment whose entry is lost: its parts are fetched, verified and looked into.
func (u *uploader) openStored(ctx context.Context, stream string, seq uint64, parts []int64, tmp func() (path string, done func(), err error)) (*manifest.Segment, error) {
	path, done, err := tmp()
	if err != nil {
		return nil, err
	}
	defer done()
	sum, err := u.join(ctx, stream, seq, parts, path)
	if err != nil {
		return nil, err
	}
	a, err := spool.OpenArchive(path, u.keys)
	if err == nil {
		err = a.Verify(ctx)
	}
	if err != nil {
		if spool.IsDamage(err) {
			err = fmt.Errorf("%w: %w", manifest.ErrDamaged, err)
		}
		if a != nil {
			_ = a.Close()
		}
		return nil, err
	}
	defer a.Close()
	if a.Stream != stream || a.Sequence != seq {
		return nil, fmt.Errorf("%w: it is segment %d of %s", manifest.ErrDamaged, a.Sequence, a.Stream)
	}
	seg := manifest.EntryOf(a.Sealed)
	seg.PartSize, seg.SHA256, seg.Stored = parts[0], sum, u.now().UTC()
	var c manifest.Collector
	switch err := a.Topics(func(topic string) error { c.Add(topic); return nil }); {
	case err == nil:
		seg.Topics = c.Topics(u.keys, a.KeyID != 0)
	case errors.Is(err, spool.ErrNoIndex):
		seg.Topics = manifest.Topics{All: true}
	default:
		return nil, err
	}
	return &seg, nil
}

// join writes the parts into one file.
func (u *uploader) join(ctx context.Context, stream string, seq uint64, parts []int64, path string) (sum string, err error) {
	f, err := createFile(path)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for part, n := range parts {
		if _, err := fetchPart(ctx, u.store, manifest.PartKey(stream, seq, part), 0, n, io.MultiWriter(f, h), u.limit); err != nil {
			return "", errors.Join(err, f.Close())
		}
	}
	return hex.EncodeToString(h.Sum(nil)), f.Close()
}

package tiering

import (
	"context"
	"crypto/md5" // what stores check with
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
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
	now      func() time.Time
	sent     func(bytes int64) // told of what went up
}

// upload stores a segment and its entry, both verified. What is there already, of an upload that broke off or was done before, is
// not sent again. The error wraps spool.ErrChanged when the segment goes or is rewritten meanwhile, and ErrConflict when the store has
// another one of its number.
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
	seg.PartSize = u.partSize
	whole := sha256.New()
	for part := range seg.Parts() {
		off := int64(part) * u.partSize
		if err := u.part(ctx, f, &seg, part, off, min(u.partSize, seg.Bytes-off), whole); err != nil {
			return nil, fmt.Errorf("segment %d of %s, part %d: %w", seg.Sequence, seg.Stream, part, err)
		}
	}
	seg.SHA256 = hex.EncodeToString(whole.Sum(nil))
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

// part makes sure that one part is in the store, with these bytes.
func (u *uploader) part(ctx context.Context, f *spool.SealedFile, seg *manifest.Segment, part int, off, n int64, whole io.Writer) error {
	sum, weak := sha256.New(), md5.New() // see above
	if _, err := io.Copy(io.MultiWriter(sum, weak, whole), io.NewSectionReader(f, off, n)); err != nil {
		return err
	}
	want := hex.EncodeToString(sum.Sum(nil))
	key := manifest.PartKey(seg.Stream, seg.Sequence, part)
	if o, err := u.store.Stat(ctx, key); err == nil && o.Size == n {
		// Of an upload that broke off. Its bytes are read back whatever verify says: they are of another time.
		if err := u.content(ctx, key, n, want); err == nil || !errors.Is(err, ErrDamaged) {
			return err
		}
	} else if err != nil && !errors.Is(err, store.ErrNotExist) {
		return err
	}
	src := u.limit.reader(ctx, io.NewSectionReader(f, off, n))
	if err := u.store.Put(ctx, key, src, n, store.PutOptions{MD5: weak.Sum(nil)}); err != nil {
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
	return u.content(ctx, key, n, want)
}

// content reads an object back and compares.
func (u *uploader) content(ctx context.Context, key string, n int64, want string) error {
	h := sha256.New()
	got, err := fetchPart(ctx, u.store, key, 0, n, io.Discard, h, u.limit)
	switch {
	case errors.Is(err, errShort):
		return fmt.Errorf("%w: %d bytes came back of %d", ErrDamaged, got, n)
	case err != nil:
		return err
	case hex.EncodeToString(h.Sum(nil)) != want:
		return fmt.Errorf("%w: other bytes came back than were sent", ErrDamaged)
	}
	return nil
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
		if _, err := fetchPart(ctx, u.store, manifest.PartKey(stream, seq, part), 0, n, f, h, u.limit); err != nil {
			return "", errors.Join(err, f.Close())
		}
	}
	return hex.EncodeToString(h.Sum(nil)), f.Close()
}

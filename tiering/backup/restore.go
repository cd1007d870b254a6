package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// Restore makes a spool of a backup in cfg.Dir, which must be empty or missing. It is put together beside it, every byte is checked, and
// the whole is verified as forebay spool verify does; only then it has its name. cfg has the keys of an encrypted one.
func Restore(ctx context.Context, st store.Store, info *Info, cfg spool.Config, progress func(done, total int64)) error {
	if err := info.sound(); err != nil {
		return fmt.Errorf("restore %s: %w", info.ID, err)
	}
	dir := filepath.Clean(cfg.Dir)
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("restore into %s: %w", dir, ErrNotEmpty)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore into %s: %w", dir, err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := removeUnfinished(dir); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".restoring-*")
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer os.RemoveAll(tmp)
	unlock, err := lock(tmp)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer unlock()
	if err := restore(ctx, st, info, tmp, progress); err != nil {
		return fmt.Errorf("restore %s: %w", info.ID, err)
	}
	cfg.Dir = tmp
	if err := verify(ctx, cfg, info); err != nil {
		return fmt.Errorf("restore %s: %w", info.ID, err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	return syncDir(filepath.Dir(dir))
}

// removeUnfinished removes what a restore that was killed has left: it may be as large as the spool. One that runs holds a lock.
func removeUnfinished(dir string) error {
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), filepath.Base(dir)+".restoring-") {
			continue
		}
		tmp := filepath.Join(filepath.Dir(dir), e.Name())
		unlock, err := lock(tmp)
		if err == nil {
			err = os.RemoveAll(tmp)
			unlock()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lock locks a directory until unlock is called or the process ends.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	switch err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, ErrRestoring), d.Close())
	case err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EOPNOTSUPP): // a file system without locks
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
	}
	return func() { _ = d.Close() }, nil
}

func restore(ctx context.Context, st store.Store, info *Info, dir string, progress func(done, total int64)) error {
	if err := os.Chmod(dir, 0o750); err != nil {
		return err
	}
	var streams []string
	for _, s := range info.Segments {
		streams = append(streams, s.Stream)
	}
	if err := spool.MakeTree(dir, streams); err != nil {
		return err
	}
	var done int64
	for i := range info.Segments {
		s := &info.Segments[i]
		if err := fetch(ctx, st, &s.File, spool.SegmentFile(dir, s.Stream, s.Sequence)); err != nil {
			return fmt.Errorf("segment %d of %s: %w", s.Sequence, s.Stream, err)
		}
		if done += s.Bytes; progress != nil {
			progress(done, info.Bytes())
		}
	}
	if err := fetch(ctx, st, &info.Meta, filepath.Join(dir, "meta.db")); err != nil {
		return fmt.Errorf("meta.db: %w", err)
	}
	if err := spool.MarkRestored(dir); err != nil {
		return err
	}
	for _, s := range streams {
		if err := syncDir(filepath.Join(dir, "seg", s)); err != nil {
			return err
		}
	}
	return syncDir(dir)
}

func fetch(ctx context.Context, st store.Store, f *File, path string) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	err = f.read(ctx, st, out)
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

// verify looks at all of the restored spool, as the next start would find it.
func verify(ctx context.Context, cfg spool.Config, info *Info) error {
	v, err := spool.OpenView(cfg, spool.Options{})
	if err != nil {
		return err
	}
	r, err := v.Verify(ctx, spool.VerifyOptions{})
	if err = errors.Join(err, v.Close()); err != nil {
		return err
	}
	for _, f := range r.Findings {
		if f.Severity == spool.SeverityDamage {
			return fmt.Errorf("%w: %s: %s", ErrDamaged, f.Path, f.What)
		}
	}
	if r.Segments != len(info.Segments) {
		return fmt.Errorf("%w: %d segments, want %d", ErrDamaged, r.Segments, len(info.Segments))
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

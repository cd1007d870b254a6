package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// Restore makes a spool of a backup in cfg.Dir, which must be empty or missing. It is put together beside it, every byte is checked, and
// the whole is verified as forebay spool verify does; only then it has its name. cfg has the keys of an encrypted one.
func Restore(ctx context.Context, st store.Store, info *Info, cfg spool.Config, progress func(done, total int64)) error {
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

// removeUnfinished removes what a restore that was killed has left: it may be as large as the spool.
func removeUnfinished(dir string) error {
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), filepath.Base(dir)+".restoring-") {
			if err := os.RemoveAll(filepath.Join(filepath.Dir(dir), e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
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

// Prune removes all but the newest backups, and the segments that none of those has. It keeps at least one.
func Prune(ctx context.Context, st store.Store, keep int) (removed []string, err error) {
	ids, err := IDs(ctx, st)
	if err != nil || len(ids) <= max(keep, 1) {
		return nil, err
	}
	old, rest := ids[:len(ids)-max(keep, 1)], ids[len(ids)-max(keep, 1):]
	used := map[string]bool{}
	for _, id := range rest { // one that cannot be read stops it: its segments are not known
		info, err := Read(ctx, st, id)
		if err != nil {
			return nil, fmt.Errorf("prune: %w", err)
		}
		for _, s := range info.Segments {
			used[s.Key] = true
		}
	}
	for _, id := range old {
		for _, name := range []string{"backup.json", "meta.db"} {
			if err := st.Delete(ctx, "backups/"+id+"/"+name); err != nil {
				return removed, fmt.Errorf("prune: %w", err)
			}
		}
		removed = append(removed, id)
	}
	var unused []string
	if err := st.List(ctx, "segments/", func(o store.Object) error {
		if !used[o.Key] {
			unused = append(unused, o.Key)
		}
		return nil
	}); err != nil {
		return removed, fmt.Errorf("prune: %w", err)
	}
	for _, key := range unused {
		if err := st.Delete(ctx, key); err != nil {
			return removed, fmt.Errorf("prune: %w", err)
		}
	}
	return removed, nil
}

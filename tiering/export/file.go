package export

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/forebay-gateway/forebay/spool"
)

// Writer takes records.
type Writer interface {
	Write(partition int, r *spool.Record) error
	Records() int64
	Close() error
}

var (
	_ Writer = (*Parquet)(nil)
	_ Writer = (*Lines)(nil)
)

// Lines writes records as JSON, one a line, in the form of forebay spool dump, with the fields under "fields".
type Lines struct {
	w      *bufio.Writer
	stream string
	fields []Field
	total  int64
}

// NewLines writes to w. Close ends it, not the writer below.
func NewLines(w io.Writer, stream string, fields []Field) *Lines {
	return &Lines{w: bufio.NewWriterSize(w, 64<<10), stream: stream, fields: fields}
}

// Write adds a record.
func (l *Lines) Write(partition int, r *spool.Record) error {
	b, err := json.Marshal(spool.DumpItem{Stream: l.stream, Partition: partition, Record: r}.Line())
	if err == nil && len(l.fields) > 0 {
		values := map[string]any{}
		if doc := decode(r.Payload); doc != nil {
			for i := range l.fields {
				if v := l.fields[i].value(doc); v != nil {
					values[l.fields[i].Column] = v
				}
			}
		}
		var j []byte
		if j, err = json.Marshal(values); err == nil {
			b = append(append(append(b[:len(b)-1], `,"fields":`...), j...), '}')
		}
	}
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if _, err := l.w.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	l.total++
	return nil
}

// Records is how many were written.
func (l *Lines) Records() int64 { return l.total }

// Close writes the rest.
func (l *Lines) Close() error {
	if err := l.w.Flush(); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

// File makes a file that has its name only when fill has succeeded and all is synced.
func File(path string, fill func(w io.Writer) error) error {
	if fi, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("export: directory of %s: %w", path, err)
	} else if !fi.IsDir() {
		return fmt.Errorf("export: %s: %w", filepath.Dir(path), syscall.ENOTDIR)
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part~")
	if err != nil {
		return fmt.Errorf("export: %s: %w", path, err)
	}
	defer os.Remove(f.Name()) // when it has not got its name
	if err = fill(f); err == nil {
		err = errors.Join(f.Chmod(0o640), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

// SegmentParquet writes all records of a stored segment as a Parquet file. It is tiering.Options.Parquet.
func SegmentParquet(ctx context.Context, a *spool.Archive, path string) error {
	return File(path, func(w io.Writer) error {
		p := NewParquet(w, a.Stream, nil)
		for _, part := range a.Partitions {
			if _, _, err := a.Dump(ctx, part.Partition, part.First, spool.DumpQuery{Expired: true}, spool.WallClock, func(i spool.DumpItem) error {
				if i.Record == nil {
					return nil // a gap; dumps tell of it
				}
				return p.Write(part.Partition, i.Record)
			}); err != nil {
				return err
			}
		}
		return p.Close()
	})
}

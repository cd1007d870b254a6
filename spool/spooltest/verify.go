package spooltest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/journal"
	"github.com/forebay-gateway/forebay/spool/segment"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Verify checks every file of a closed spool, opens it, and reads everything: offsets dense, nothing damaged.
func Verify(cfg spool.Config) error {
	set, err := os.ReadDir(filepath.Join(cfg.Dir, "quarantine"))
	if err != nil || len(set) > 0 {
		return fmt.Errorf("quarantine holds %v: %v", set, err)
	}
	if report, err := journal.Scan(vfs.OS, filepath.Join(cfg.Dir, "journal")); err != nil || len(report.Lost) > 0 {
		return fmt.Errorf("journal has lost %v: %v", report.Lost, err)
	}
	segments, err := filepath.Glob(filepath.Join(cfg.Dir, "seg", "*", "*.db"))
	if err != nil {
		return err
	}
	for _, path := range segments {
		if _, err := segment.VerifyFile(context.Background(), path); err != nil {
			return err
		}
	}
	s, err := spool.Open(cfg, spool.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	for _, st := range s.Streams() {
		for p := range st.Partitions {
			if err := readAll(s, st.Name, p); err != nil {
				return fmt.Errorf("%s/%d: %w", st.Name, p, err)
			}
		}
	}
	return s.Close()
}

func readAll(s *spool.Spool, stream string, partition int) error {
	next, end := s.Bounds(stream, partition)
	r, err := s.NewReader(stream, partition, next)
	if err != nil {
		return err
	}
	defer r.Close()
	for next < end {
		b, ok, err := r.TryNext()
		switch {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("nothing at %d, the log ends at %d", next, end)
		case b.Gap != nil:
			return fmt.Errorf("gap %+v", *b.Gap)
		case b.First != next || b.Next <= next:
			return fmt.Errorf("batch %d..%d at %d", b.First, b.Next, next)
		}
		for i := range b.Records {
			if o := b.Records[i].Offset; o < next || o >= b.Next {
				return fmt.Errorf("record at %d after %d in batch %d..%d", o, next, b.First, b.Next)
			}
			next = b.Records[i].Offset + 1
		}
		next = b.Next
	}
	return nil
}

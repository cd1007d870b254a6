package main

import (
	"context"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// ours is package spool as the gateway opens it.
type ours struct {
	s *spool.Spool
}

// codec of ours in the loads: what it costs there is told by asking for another.
var codec = spool.DefaultConfig().Segment.Codec

func openOurs(dir string) (subject, error) {
	return openSpool(dir, func(c *spool.Config) { c.Segment.Codec = codec }, spool.Options{})
}

func openSpool(dir string, edit func(*spool.Config), opts spool.Options) (*ours, error) {
	cfg := spool.DefaultConfig()
	cfg.Dir = dir
	cfg.MaxSize = unit.Bytes(64 << 30)
	if edit != nil {
		edit(&cfg)
	}
	s, err := spool.Open(cfg, opts)
	if err != nil {
		return nil, err
	}
	for began := time.Now(); !journalReady(dir, cfg.Journal) && time.Since(began) < 30*time.Second; {
		time.Sleep(10 * time.Millisecond) // files but the first are zero-filled in the background, once in a spool's life
	}
	time.Sleep(50 * time.Millisecond)
	return &ours{s}, nil
}

// journalReady tells whether every journal file is there and written.
func journalReady(dir string, cfg spool.JournalConfig) bool {
	files, err := filepath.Glob(filepath.Join(dir, "journal", "*"))
	if err != nil {
		return false
	}
	ready := 0
	for _, name := range files {
		var st unix.Stat_t
		if unix.Stat(name, &st) == nil && st.Blocks*512 >= int64(cfg.FileSize) {
			ready++
		}
	}
	return ready >= cfg.Files
}

func (o *ours) append(r *spool.Record, done spool.Completion) error {
	return o.s.Append(context.Background(), spool.Entry{Record: r, Done: done})
}

// settle waits until everything is in segments.
func (o *ours) settle() {
	for began := time.Now(); o.s.Stats().UnappliedBytes > 0 && time.Since(began) < 30*time.Second; {
		time.Sleep(5 * time.Millisecond)
	}
}

func (o *ours) close() error { return o.s.Close() }

package main

import (
	"context"
	"time"

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
	o := &ours{s}
	for began := time.Now(); s.Stats().JournalBytes < int64(cfg.Journal.FileSize)*int64(cfg.Journal.Files) && time.Since(began) < 30*time.Second; {
		time.Sleep(10 * time.Millisecond) // the other journal files are zero-filled in the background, once in a spool's life
	}
	return o, nil
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

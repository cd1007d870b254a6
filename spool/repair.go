package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// RepairResult is what Repair would do, or has done.
type RepairResult struct {
	Dir      string         `json:"dir"`
	DryRun   bool           `json:"dry_run"`
	Actions  []RepairAction `json:"actions"`
	Findings []Finding      `json:"findings"` // of the look before
}

// RepairAction is one of its steps.
type RepairAction struct {
	Path string `json:"path"`
	What string `json:"what"`
	Done bool   `json:"done"`
	Err  string `json:"error,omitempty"`
}

// PlanRepair says what Repair would do. Nothing is changed.
func PlanRepair(ctx context.Context, cfg Config, opts Options, o VerifyOptions) (RepairResult, error) {
	r := RepairResult{Dir: cfg.Dir, DryRun: true, Actions: []RepairAction{}, Findings: []Finding{}}
	v, err := OpenView(cfg, opts)
	if err != nil {
		return r, err
	}
	found, err := v.Verify(ctx, o)
	if err = errors.Join(err, v.Close()); err != nil {
		return r, err
	}
	r.Findings = found.Findings
	told := make(map[string]bool)
	for _, f := range r.Findings {
		a := RepairAction{Path: f.Path, What: "as the next start: " + f.NextStart}
		switch f.repair {
		case repairSalvage:
			a.What = "set aside in quarantine/; batches that can be read are written to a new file in its place, the rest becomes a gap (damaged)"
		case repairIndex:
			a.What = "write it again with its index; the file that is there goes to quarantine/"
		case repairNone:
			if f.NextStart == "" || f.NextStart == "left alone" {
				continue
			}
		}
		if key := a.Path + a.What; !told[key] {
			told[key] = true
			r.Actions = append(r.Actions, a)
		}
	}
	return r, nil
}

// Repair does what the start of a gateway does: recovery, which sets damaged files aside and applies the journal. Then it
// sets aside the segments that are damaged inside and keeps what can be read of them, and writes missing indexes. Nothing
// is deleted: what is replaced is in quarantine/ afterwards. cfg is the configuration that the gateway has.
func Repair(ctx context.Context, cfg Config, opts Options, o VerifyOptions) (RepairResult, error) {
	r, err := PlanRepair(ctx, cfg, opts, o)
	if err != nil {
		return r, err
	}
	r.DryRun = false
	if err := cfg.Validate(); err != nil {
		return r, fmt.Errorf("spool: repair: %w", err)
	}
	opts = opts.withDefaults()
	s := newSpool(cfg, opts)
	defer func() { s.metrics.unregister() }()
	if err := s.recover(opts); err != nil {
		return r, errors.Join(fmt.Errorf("spool: repair %s: %w", cfg.Dir, err), s.release())
	}
	for i := range r.Actions {
		r.Actions[i].Done = true
	}
	for _, f := range repairsOf(r.Findings) {
		if err := s.repairSegment(ctx, f); err != nil {
			for i := range r.Actions {
				if a := &r.Actions[i]; a.Path == f.Path {
					a.Done, a.Err = false, err.Error()
				}
			}
		}
	}
	for _, st := range s.streams {
		s.sealRolled(ctx, st)
	}
	err = s.materialise(true)
	s.saveHashes()
	return r, errors.Join(err, s.release())
}

// repairsOf are the findings that call for a repair, one for each segment, however many batches of it are damaged: it is written again
// as a whole. One that is damaged inside gets its index with that.
func repairsOf(findings []Finding) (once []Finding) {
	for _, want := range []repairStep{repairSalvage, repairIndex} {
		for _, f := range findings {
			if f.repair == want && !slices.ContainsFunc(once, func(o Finding) bool { return o.Stream == f.Stream && o.seq == f.seq }) {
				once = append(once, f)
			}
		}
	}
	return once
}

func (s *Spool) repairSegment(ctx context.Context, found Finding) error {
	st := s.byName[found.Stream]
	if st == nil {
		return unknownStream("repair", found.Stream)
	}
	for _, f := range st.segments() {
		if f.seq != found.seq {
			continue
		}
		if found.repair == repairIndex {
			return s.reindex(ctx, f)
		}
		f.bad.Store(true)
		return s.quarantineSegment(ctx, f)
	}
	return nil // recovery has set it aside
}

// reindex writes a segment again, with its index, and keeps the file that it replaces in quarantine.
func (s *Spool) reindex(ctx context.Context, f *segmentFile) error {
	tmp := f.path + ".rewrite"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	indexed := false
	_, err := f.with(func(seg *segment.Segment) error {
		in, err := seg.Rewrite(ctx, tmp, s.segmentOptions(f.st, f.seq), indexBody, func(b segment.Batch) (segment.Batch, bool, error) {
			recs, _, err := decodeRecords(nil, b.Body, b.Partition, Offset(b.Base))
			b.Expiries = make([]int64, len(recs))
			for i := range recs {
				b.Expiries[i] = recs[i].ExpiresAt
			}
			return b, true, err
		})
		indexed = in.Topics >= 0 && in.Clients >= 0
		return err
	})
	switch {
	case err != nil:
		_ = os.Remove(tmp)
		return err
	case !indexed:
		return errors.Join(errors.New("it has too many topics or clients for an index"), os.Remove(tmp))
	}
	if _, err := s.linkAside(f.path, f.st.name+"-"+segmentName(f.seq)); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := s.replaceFile(f, tmp); err != nil {
		return err
	}
	s.hashSegment(ctx, f)
	f.catalogued.Store(false)
	s.log.Info("segment written again with its index", "stream", f.st.name, "segment", f.seq)
	return nil
}

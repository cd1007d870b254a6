package spool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/forebay-gateway/forebay/spool/journal"
	"github.com/forebay-gateway/forebay/spool/segment"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// VerifyOptions say what Verify looks at.
type VerifyOptions struct {
	Stream   string                               // "" is all
	Progress func(done, total int64, what string) // bytes; nil is fine

	// SHA256 is the hash that the catalog of a running gateway has of a sealed segment, "" when it has none. Nil is fine: then
	// VerifyRunning checks no hashes. Verify has the catalog itself.
	SHA256 func(ctx context.Context, stream string, seq uint64) string
}

// VerifyResult is what Verify has looked at, and found.
type VerifyResult struct {
	Dir      string    `json:"dir"`
	Running  bool      `json:"running"`
	Segments int       `json:"segments"`
	Hashed   int       `json:"hashed"` // of them, those whose file was held against the hash in the catalog
	Batches  uint64    `json:"batches"`
	Records  uint64    `json:"records"`
	Frames   int       `json:"frames"` // of the journal
	Bytes    int64     `json:"bytes"`
	Skipped  []string  `json:"skipped"` // files that a running gateway has in use
	Findings []Finding `json:"findings"`
}

// Damaged tells whether a finding is damage.
func (r VerifyResult) Damaged() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity == SeverityDamage })
}

func (r *VerifyResult) found(f Finding) { r.Findings = append(r.Findings, f) }

// Verify reads everything: each batch and its records, the chain of offsets, the catalog against the files, the frames of
// the journal.
func (v *View) Verify(ctx context.Context, o VerifyOptions) (VerifyResult, error) {
	if o.Stream != "" && v.s.byName[o.Stream] == nil {
		return VerifyResult{}, unknownStream("verify", o.Stream)
	}
	r := VerifyResult{Dir: v.s.cfg.Dir, Skipped: []string{}, Findings: append([]Finding{}, v.findings...)}
	p := progress{fn: o.Progress}
	for _, f := range v.report.Files {
		p.total += f.Size
	}
	var files []*segmentFile
	for _, st := range v.s.streams {
		if o.Stream == "" || o.Stream == st.name {
			files = append(files, st.segments()...)
			v.chain(st, &r)
		}
	}
	for _, f := range files {
		p.total += f.bytes.Load()
	}
	if err := v.frames(ctx, &r, &p); err != nil {
		return r, err
	}
	for _, f := range files {
		if _, err := f.with(func(seg *segment.Segment) error { return verifySegment(ctx, seg, f.st.name, f.seq, f.sum(), &r, &p) }); err != nil {
			return r, err
		}
		v.compare(f, &r)
	}
	p.end()
	return r, nil
}

type progress struct {
	fn          func(done, total int64, what string)
	done, total int64
	what        string
}

func (p *progress) add(n int64) {
	p.done = min(p.done+n, p.total)
	if p.fn != nil {
		p.fn(p.done, p.total, p.what)
	}
}

func (p *progress) end() { p.add(p.total - p.done) }

// frames reads every frame, those too whose records are in segments.
func (v *View) frames(ctx context.Context, r *VerifyResult, p *progress) error {
	dir := v.s.path("journal")
	if _, err := os.Stat(dir); err != nil {
		return nil // told when it was opened
	}
	p.what = "journal"
	_, err := journal.Frames(vfs.OS, dir, journalSealer{v.s.keys}, func(fr journal.Frame) error {
		r.Frames++
		r.Bytes += int64(len(fr.Payload))
		p.add(int64(len(fr.Payload)))
		if fr.Err != nil {
			return ctx.Err() // told when it was opened
		}
		err := decodePayload(fr.Payload, payloadVisitor{
			records: func(_ string, partition int, base Offset, count int, body []byte) error {
				recs, next, err := decodeRecords(nil, body, uint16(partition), base)
				if err == nil && (len(recs) != count || next != base+Offset(count)) {
					err = &CorruptionError{Where: "records section", Detail: fmt.Sprintf("%d records, %d expected", len(recs), count)}
				}
				return err
			},
			changes: func(b []byte) error { return decodeChanges(b, func(string, string, []byte) error { return nil }) },
		})
		if damaged(err) && uint64(fr.LSN) <= v.s.metaApplied { // above, it was told when it was opened
			r.found(Finding{
				Severity: SeverityNote, Path: filepath.Join(dir, fr.File),
				What: fmt.Sprintf("frame %d at byte %d: %s; all of it is applied", fr.LSN, fr.Offset, detailOf(err)), NextStart: "not read",
			})
		} else if err != nil && !damaged(err) {
			return err
		}
		return ctx.Err()
	})
	return err
}

// chain finds what is missing between the segments of a stream, and what is there twice.
func (v *View) chain(st *stream, r *VerifyResult) {
	for _, p := range st.parts {
		at := p.start
		for _, f := range st.segments() {
			rg, ok := f.rangeOf(p.num)
			if !ok || rg.Next <= p.start {
				continue
			}
			switch {
			case rg.First < at && rg.Next > at || rg.First < at && rg.First >= p.start:
				r.found(Finding{
					Severity: SeverityDamage, Path: f.path, What: "holds offsets that an older segment has",
					NextStart: "the older segment is read",
				}.in(st.name, p.num, rg.First, min(at, rg.Next)))
			case rg.First > at && !p.known(at, rg.First):
				r.found(Finding{
					Severity: SeverityDamage, Path: f.path, What: "offsets before it are in no segment",
					NextStart: "readers see a gap (damaged)",
				}.in(st.name, p.num, at, rg.First))
			}
			at = max(at, rg.Next)
		}
	}
}

// known tells whether all of [from, to) is known to be lost.
func (p *partition) known(from, to Offset) bool {
	for from < to {
		l, ok := p.lostAtLocked(from)
		if !ok {
			return false
		}
		from = l.To
	}
	return true
}

// compare finds a segment that has less than the catalog says.
func (v *View) compare(f *segmentFile, r *VerifyResult) {
	if v.s.meta == nil {
		return
	}
	for _, c := range v.catalog {
		if c.stream != f.st.name || c.seq != f.seq {
			continue
		}
		for _, want := range c.rec.Partitions {
			if got, ok := f.rangeOf(want.Partition); !ok || got.First > want.First || got.Next < want.Next {
				r.found(Finding{
					Severity: SeverityDamage, Path: f.path, What: fmt.Sprintf("holds offsets %d..%d, meta.db says %d..%d at least", got.First, got.Next, want.First, want.Next),
					NextStart: "readers see a gap (damaged) where the journal does not have them",
				}.in(f.st.name, want.Partition, want.First, want.Next))
			}
		}
	}
}

// Add takes over what another look has found.
func (r *VerifyResult) Add(o VerifyResult) {
	r.Segments += o.Segments
	r.Batches += o.Batches
	r.Records += o.Records
	r.Bytes += o.Bytes
	r.Findings = append(r.Findings, o.Findings...)
}

package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
}

// VerifyResult is what Verify has looked at, and found.
type VerifyResult struct {
	Dir      string    `json:"dir"`
	Running  bool      `json:"running"`
	Segments int       `json:"segments"`
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
		if _, err := f.with(func(seg *segment.Segment) error { return verifySegment(ctx, seg, f.st.name, f.seq, &r, &p) }); err != nil {
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

// verifySegment reads a whole segment.
func verifySegment(ctx context.Context, seg *segment.Segment, stream string, seq uint64, r *VerifyResult, p *progress) error {
	in := seg.Info()
	p.what = segmentID(stream, seq)
	before := p.done
	r.Segments++
	r.Bytes += in.FileBytes
	if in.Stream != stream || in.Sequence != seq {
		r.found(Finding{
			Severity: SeverityDamage, Path: in.Path, Stream: stream, seq: seq,
			What: fmt.Sprintf("says that it is segment %d of stream %q: it was copied or renamed", in.Sequence, in.Stream), NextStart: "read as it is",
		})
	}
	err := seg.VerifyEach(ctx, func(b segment.Batch) error {
		r.Batches++
		r.Records += uint64(b.Count)
		p.add(int64(b.StoredBytes))
		if detail := checkBody(b); detail != "" {
			return &segment.CorruptionError{Path: in.Path, Partition: int(b.Partition), Base: b.Base, Reason: detail}
		}
		return nil
	})
	p.add(before + in.FileBytes - p.done)
	for _, e := range joined(err) {
		var ce *segment.CorruptionError
		if !errors.As(e, &ce) {
			return e
		}
		r.found(segmentFinding(seg, stream, seq, ce))
	}
	if in.Sealed && (in.Topics < 0 || in.Clients < 0) {
		r.found(Finding{
			Severity: SeverityNote, Path: in.Path, Stream: stream, What: "has no index of topics and clients: reads by topic or client read all of it",
			NextStart: "stays so; repair writes it", repair: repairIndex, seq: seq,
		})
	}
	return nil
}

// segmentFinding says what a damaged place means for the records.
func segmentFinding(seg *segment.Segment, stream string, seq uint64, ce *segment.CorruptionError) Finding {
	f := Finding{
		Severity: SeverityDamage, Path: ce.Path, Stream: stream, What: ce.Reason, seq: seq, repair: repairSalvage,
		NextStart: "nothing; when a reader meets it, it is set aside in quarantine/, what can be read is kept, the rest is a gap (damaged); repair does that now",
	}
	if ce.Index {
		f.NextStart, f.repair = "nothing; reads by topic or client read all of it; repair writes the index again", repairIndex
	}
	if ce.Partition >= 0 {
		next := Offset(ce.Base) + 1
		if base, ok, err := seg.Skip(uint16(ce.Partition), ce.Base); err == nil && ok {
			next = Offset(base)
		} else if p, ok := seg.Info().Partition(uint16(ce.Partition)); ok {
			next = Offset(p.Next)
		}
		f = f.in(stream, ce.Partition, Offset(ce.Base), next)
	}
	return f
}

// checkBody decodes the records of a batch and holds them against its header; "" when they fit.
func checkBody(b segment.Batch) string {
	if b.Count == 0 {
		return ""
	}
	recs, next, err := decodeRecords(make([]Record, 0, b.Count), b.Body, b.Partition, Offset(b.Base))
	switch {
	case err != nil:
		return err.Error()
	case uint32(len(recs)) != b.Count || next > Offset(b.Next):
		return fmt.Sprintf("%d records up to %d, its header says %d up to %d", len(recs), next, b.Count, b.Next)
	}
	var again segment.Batch
	for i := range recs {
		countInto(&again, &recs[i])
	}
	if again.MinTime != b.MinTime || again.MaxTime != b.MaxTime || again.Never != b.Never || again.MinExpiry != b.MinExpiry || again.MaxExpiry != b.MaxExpiry {
		return "its header does not fit the times of its records"
	}
	return ""
}

// countInto is what addToBatch keeps of a record in the header.
func countInto(b *segment.Batch, r *Record) {
	if b.Count == 0 || r.ReceivedAt < b.MinTime {
		b.MinTime = r.ReceivedAt
	}
	if b.Count == 0 || r.ReceivedAt > b.MaxTime {
		b.MaxTime = r.ReceivedAt
	}
	b.Count++
	if r.ExpiresAt == 0 {
		b.Never++
		return
	}
	b.MinExpiry, b.MaxExpiry = minNonZero(b.MinExpiry, r.ExpiresAt), max(b.MaxExpiry, r.ExpiresAt)
}

// joined takes a joined error apart.
func joined(err error) []error {
	if err == nil {
		return nil
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		if j, ok := e.(interface{ Unwrap() []error }); ok { //nolint:errorlint // this is the taking apart
			var out []error
			for _, one := range j.Unwrap() {
				out = append(out, joined(one)...)
			}
			return out
		}
	}
	return []error{err}
}

// VerifySegment verifies a segment of the running spool, the active one up to what it holds now.
func (s *Spool) VerifySegment(ctx context.Context, stream string, seq uint64) (VerifyResult, error) {
	r := VerifyResult{Dir: s.cfg.Dir, Running: true, Skipped: []string{}, Findings: []Finding{}}
	st := s.byName[stream]
	if st == nil {
		return r, unknownStream("verify", stream)
	}
	for _, f := range st.segments() {
		if f.seq != seq {
			continue
		}
		if ok, err := f.with(func(seg *segment.Segment) error { return verifySegment(ctx, seg, stream, seq, &r, &progress{}) }); ok {
			return r, err
		}
	}
	return r, fmt.Errorf("spool: verify %s: %w", segmentID(stream, seq), ErrUnknownSegment)
}

// Add takes over what another look has found.
func (r *VerifyResult) Add(o VerifyResult) {
	r.Segments += o.Segments
	r.Batches += o.Batches
	r.Records += o.Records
	r.Bytes += o.Bytes
	r.Findings = append(r.Findings, o.Findings...)
}

// SegmentOf is the stream and the number of the segment whose file has this path; false for other files.
func SegmentOf(path string) (stream string, seq uint64, ok bool) {
	seq, ok = parseSegmentName(filepath.Base(path))
	return filepath.Base(filepath.Dir(path)), seq, ok
}

// VerifyRunning verifies what the files of a running spool allow: sealed segments. What the gateway has in use is skipped;
// it checks each batch that it reads.
func VerifyRunning(ctx context.Context, cfg Config, o VerifyOptions) (VerifyResult, error) {
	r := VerifyResult{Dir: cfg.Dir, Running: true, Skipped: []string{filepath.Join(cfg.Dir, "meta.db"), filepath.Join(cfg.Dir, "journal")}, Findings: []Finding{}}
	keys, err := loadKeys(cfg.Encryption)
	if err != nil {
		return r, err
	}
	p := progress{fn: o.Progress}
	stream := o.Stream
	if stream == "" {
		stream = "*"
	}
	paths, err := filepath.Glob(filepath.Join(cfg.Dir, "seg", stream, "*"+segmentSuffix))
	if err != nil {
		return r, err
	}
	for _, path := range paths {
		if fi, err := os.Stat(path); err == nil {
			p.total += fi.Size()
		}
	}
	for _, path := range paths {
		stream := filepath.Base(filepath.Dir(path))
		seq, ok := parseSegmentName(filepath.Base(path))
		if !ok {
			continue
		}
		seg, err := segment.Open(path, segment.Options{ReadOnly: true, Keys: keys})
		switch {
		case err == nil:
			err = errors.Join(verifySegment(ctx, seg, stream, seq, &r, &p), seg.Close())
		case errors.Is(err, fs.ErrNotExist): // it was removed meanwhile
			err = nil
		case errors.Is(err, segment.ErrLocked):
			r.Skipped = append(r.Skipped, path)
			err = nil
		case damaged(err):
			r.found(Finding{
				Severity: SeverityDamage, Path: path, Stream: stream, What: detailOf(err), seq: seq,
				NextStart: "set aside in quarantine/; readers see a gap (damaged)",
			})
			err = nil
		}
		if err != nil {
			return r, err
		}
	}
	p.end()
	return r, nil
}

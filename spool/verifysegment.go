package spool

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/forebay-gateway/forebay/spool/segment"
)

// verifySegment reads a whole segment. sum is its hash in the catalog, "" when that has none.
func verifySegment(ctx context.Context, seg *segment.Segment, stream string, seq uint64, sum string, r *VerifyResult, p *progress) error {
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
	if in.Sealed && sum != "" {
		if err := verifyHash(ctx, in, stream, seq, sum, r); err != nil {
			return err
		}
	}
	if in.Sealed && (in.Topics < 0 || in.Clients < 0) {
		r.found(Finding{
			Severity: SeverityNote, Path: in.Path, Stream: stream, What: "has no index of topics and clients: reads by topic or client read all of it",
			NextStart: "stays so; repair writes it", repair: repairIndex, seq: seq,
		})
	}
	return nil
}

// verifyHash finds a change that no checksum of a batch sees: of pages that nothing reads, or by somebody who made the checksums fit.
func verifyHash(ctx context.Context, in segment.Info, stream string, seq uint64, want string, r *VerifyResult) error {
	_, sum, err := segment.Hash(ctx, in.Path)
	if err != nil {
		return err
	}
	r.Hashed++
	if got := hex.EncodeToString(sum[:]); got != want {
		r.found(Finding{
			Severity: SeverityDamage, Path: in.Path, Stream: stream, seq: seq, repair: repairSalvage,
			What:      fmt.Sprintf("is not the file that was sealed: its SHA-256 is %s, meta.db has %s", got, want),
			NextStart: "nothing, each batch has its own checksum; repair sets it aside and keeps what can be read",
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
		if j, ok := e.(interface{ Unwrap() []error }); ok { // this is the taking apart
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
		if ok, err := f.with(func(seg *segment.Segment) error {
			return verifySegment(ctx, seg, stream, seq, f.sum(), &r, &progress{})
		}); ok {
			return r, err
		}
	}
	return r, fmt.Errorf("spool: verify %s: %w", segmentID(stream, seq), ErrUnknownSegment)
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
	} else if fi, err := os.Stat(filepath.Join(cfg.Dir, "seg", stream)); !validStreamName(stream) || err != nil || !fi.IsDir() {
		return r, unknownStream("verify", stream)
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
			sum := ""
			if o.SHA256 != nil && seg.Info().Sealed {
				sum = o.SHA256(ctx, stream, seq)
			}
			err = errors.Join(verifySegment(ctx, seg, stream, seq, sum, &r, &p), seg.Close())
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

package spool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/spool/crypt"
	"github.com/forebay-gateway/forebay/spool/segment"
)

// Archive is a sealed segment that is in no spool: fetched from where it is stored, or a copy. Its methods may be called by many
// goroutines.
type Archive struct {
	Sealed
	seg  *segment.Segment
	path string
}

// OpenArchive opens the file of a sealed segment for reading. Damage is IsDamage, a key that is missing is ErrKey.
func OpenArchive(path string, keys *crypt.Keyring) (*Archive, error) {
	seg, err := segment.Open(path, segment.Options{ReadOnly: true, Keys: keys})
	if errors.Is(err, segment.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("spool: open archive: %w", err)
	}
	in := seg.Info()
	if !in.Sealed {
		return nil, errors.Join(fmt.Errorf("spool: open archive %s: %w", path, segment.ErrNotSealed), seg.Close())
	}
	return &Archive{Sealed: sealedOf(in), seg: seg, path: path}, nil
}

// Close closes the file.
func (a *Archive) Close() error { return a.seg.Close() }

// IsDamage tells whether err says that a segment's bytes are not what was written.
func IsDamage(err error) bool { return damaged(err) }

// Verify reads all of it and checks every batch and record.
func (a *Archive) Verify(ctx context.Context) error {
	return a.seg.VerifyEach(ctx, func(b segment.Batch) error {
		if detail := checkBody(b); detail != "" {
			return &segment.CorruptionError{Path: a.path, Partition: int(b.Partition), Base: b.Base, Reason: detail}
		}
		return nil
	})
}

// Topics calls fn for each topic of its index, in order; ErrNoIndex when there is none.
func (a *Archive) Topics(fn func(topic string) error) error { return topicsOf(a.seg, fn) }

// SchemaVersion is the version of the segment format, as docs/SPOOL.md has it.
func (a *Archive) SchemaVersion() int { return SchemaVersion(a.KeyID) }

// SchemaVersion is the version of the segment format that a segment with that key has.
func SchemaVersion(keyID uint32) int {
	if keyID != 0 {
		return 2
	}
	return 1
}

// Dump calls fn for each record of a partition that q asks for, from offset from on, and for holes. q.Partition, q.From and q.At are
// not looked at. next is where to go on: at the limits of q, or after the segment's last record. clock is for what has expired.
func (a *Archive) Dump(ctx context.Context, partition int, from Offset, q DumpQuery, clock Clock, fn func(DumpItem) error) (next Offset, enough bool, err error) {
	own, ahead := clock()
	d := dumper{q: q, fn: fn, began: time.Now(), now: own.UnixNano(), skew: int64(ahead), since: math.MinInt64, until: math.MaxInt64}
	if !q.Since.IsZero() {
		d.since = UnixNano(q.Since)
	}
	if !q.Until.IsZero() {
		d.until = UnixNano(q.Until)
	}
	p := &partitionOf{st: &stream{name: a.Stream}, num: partition}
	end := Offset(math.MaxUint64)
	if q.To > 0 {
		end = q.To
	}
	in, ok := a.seg.Info().Partition(uint16(partition))
	if !ok || from >= Offset(in.Next) {
		return from, false, nil
	}
	next, err = d.segment(ctx, p, a.seg, max(from, Offset(in.First)), end)
	if errors.Is(err, errEnough) {
		return next, true, nil
	}
	return next, false, err
}

type partitionOf = partition // Dump has a parameter of that name

// ArchiveReader reads one partition of an archive in the order of offsets, as Reader reads the spool.
type ArchiveReader struct {
	a     *Archive
	p     int
	next  Offset
	end   Offset
	clock Clock
	match *Match
	refs  []Offset   // of batches with something that is wanted; nil when all are read
	index bool       // refs is to be used
	begun bool       // next is where a batch begins
	ready []archived // read and not asked for yet; without an index only
}

// archived is a stored batch and its records.
type archived struct {
	stored segment.Batch
	recs   []Record
}

// archiveBytes is how much is read at once where all is read: enough to decode on more than one processor. Of every reader so much is in
// memory.
const archiveBytes = 2 << 20

// NewReader starts at from, or at the first offset that the archive has of the partition. m selects records; nil is all.
func (a *Archive) NewReader(partition int, from Offset, m *Match, clock Clock) *ArchiveReader {
	r := &ArchiveReader{a: a, p: partition, next: from, end: from, clock: clock, match: m}
	if in, ok := a.seg.Info().Partition(uint16(partition)); ok {
		r.next, r.end = max(from, Offset(in.First)), max(from, Offset(in.Next))
	}
	if m != nil {
		r.refs, r.index = archiveRefs(a.seg, partition, m)
	}
	return r
}

// archiveRefs are the batches that the index names for m, ascending.
func archiveRefs(seg *segment.Segment, partition int, m *Match) (bases []Offset, ok bool) {
	kind, want := segment.KindTopic, m.topic
	if m.ClientID != "" {
		kind, want = segment.KindClient, func(key string) bool { return key == m.ClientID }
	}
	refs, err := seg.Lookup(kind, want)
	if err != nil {
		return nil, false // all of it is read
	}
	for _, ref := range refs {
		if int(ref.Partition) == partition {
			bases = append(bases, Offset(ref.Base))
		}
	}
	slices.Sort(bases)
	return bases, true
}

// Next is the next batch; false at the end of the archive. It speaks for all offsets in between, those without a record that is
// wanted included. A damaged batch is a Gap.
func (r *ArchiveReader) Next() (Batch, bool, error) {
	if r.next >= r.end {
		return Batch{}, false, nil
	}
	at := r.next
	if r.index {
		i, _ := slices.BinarySearch(r.refs, at)
		if !r.begun && i > 0 && (i == len(r.refs) || r.refs[i] != at) {
			i-- // at may be inside of the batch before
		}
		if i == len(r.refs) {
			return r.speak(Batch{First: at, Next: r.end})
		}
		if r.refs[i] > at {
			return r.speak(Batch{First: at, Next: min(r.refs[i], r.end)})
		}
	}
	err := r.read(at)
	switch {
	case len(r.ready) > 0: // what came before an error is good; the error comes again
		b := r.batch(at, r.ready[0].stored, r.ready[0].recs)
		if b.Next > Offset(r.ready[0].stored.Base) { // else it speaks for what is missing before
			r.ready = r.ready[1:]
		}
		return r.speak(b)
	case err != nil && damaged(err):
		return r.speak(r.damagedBatch(at, err))
	case err != nil:
		return Batch{}, false, fmt.Errorf("spool: read archive %s: %w", r.a.path, err)
	}
	return r.speak(Batch{First: r.end, Next: r.end, Gap: &Gap{From: at, To: r.end, Reason: GapDamaged}})
}

// read has the batch that is next, and some behind it, in ready.
func (r *ArchiveReader) read(at Offset) error {
	limit := archiveBytes
	switch {
	case r.index:
		limit = 1 // the index says which one is next
	case len(r.ready) > 0:
		return nil
	}
	r.ready = nil
	_, err := r.a.seg.Read(uint16(r.p), uint64(at), limit, func(sb segment.Batch) error {
		recs, _, err := decodeRecords(make([]Record, 0, sb.Count), sb.Body, sb.Partition, Offset(sb.Base))
		if err != nil {
			return &segment.CorruptionError{Path: r.a.path, Partition: r.p, Base: sb.Base, Reason: err.Error()}
		}
		r.ready = append(r.ready, archived{sb, recs})
		return nil
	})
	return err
}

// speak completes a batch and goes on behind it.
func (r *ArchiveReader) speak(b Batch) (Batch, bool, error) {
	b.Stream, b.Partition = r.a.Stream, r.p
	r.next, r.begun = b.Next, true
	return b, true, nil
}

func (r *ArchiveReader) batch(at Offset, sb segment.Batch, recs []Record) Batch {
	if first := Offset(sb.Base); first > at {
		if r.index { // the batches between were left out by the index
			return Batch{First: at, Next: first}
		}
		return Batch{First: first, Next: first, Gap: &Gap{From: at, To: first, Reason: GapDamaged}}
	}
	b := Batch{First: at, Next: Offset(sb.Next)}
	own, ahead := r.clock()
	now := own.UnixNano()
	if r.match == nil && (len(recs) == 0 || recs[0].Offset >= at) && (sb.MinExpiry == 0 || sb.MinExpiry > now) {
		b.Records = wallTimes(recs, int64(ahead)) // all of them
		return b
	}
	for i := range recs {
		switch rec := &recs[i]; {
		case rec.Offset < at || r.match != nil && !r.match.record(rec):
		case rec.expired(now):
			b.Expired++
		default:
			b.Records = append(b.Records, *rec)
		}
	}
	b.Records = wallTimes(b.Records, int64(ahead))
	return b
}

// damagedBatch is the gap of a batch that cannot be read.
func (r *ArchiveReader) damagedBatch(at Offset, err error) Batch {
	to := r.end
	if ce, ok := errors.AsType[*segment.CorruptionError](err); ok {
		if base, ok, serr := r.a.seg.Skip(uint16(r.p), max(uint64(at), ce.Base)); serr == nil && ok {
			to = min(to, Offset(base))
		}
	}
	return Batch{First: to, Next: to, Gap: &Gap{From: at, To: to, Reason: GapDamaged}}
}

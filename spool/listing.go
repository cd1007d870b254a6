package spool

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/spool/journal"
	"github.com/forebay-gateway/forebay/spool/segment"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Inspector answers what tools ask: of the files of a spool that stands (View), or of one that runs (Spool).
type Inspector interface {
	List(ctx context.Context) (Listing, error)
	ListSegments(ctx context.Context, q SegmentsQuery) (SegmentsPage, error)
	InspectSegment(ctx context.Context, q SegmentQuery) (SegmentDetail, error)
	InspectJournal(ctx context.Context, q JournalQuery) (JournalDetail, error)
	InspectMeta(ctx context.Context, q MetaQuery) (MetaDetail, error)
	Dump(ctx context.Context, q DumpQuery, fn func(DumpItem) error) (next *DumpPosition, err error)
}

var (
	_ Inspector = (*Spool)(nil)
	_ Inspector = (*View)(nil)
)

// Listing is what a spool holds.
type Listing struct {
	Dir         string          `json:"dir"`
	Running     bool            `json:"running"`
	Time        time.Time       `json:"time"` // by the spool's clock
	BytesOnDisk int64           `json:"bytes_on_disk"`
	MaxSize     int64           `json:"max_size"`
	Full        bool            `json:"full"`
	Streams     []StreamListing `json:"streams"`
	Cursors     []CursorListing `json:"cursors"`
	Journal     JournalListing  `json:"journal"`
	Quarantine  []FileListing   `json:"quarantine"`
	Findings    []Finding       `json:"findings"`
}

// StreamListing is one stream.
type StreamListing struct {
	Name       string             `json:"name"`
	Configured bool               `json:"configured"` // false: on the disk only, it gets nothing new
	Bytes      int64              `json:"bytes"`      // on disk
	Segments   int                `json:"segments"`
	Records    uint64             `json:"records"` // offsets kept
	Partitions []PartitionListing `json:"partitions"`
}

// PartitionListing is one partition.
type PartitionListing struct {
	Partition int    `json:"partition"`
	Start     Offset `json:"start"`
	End       Offset `json:"end"`
	Records   uint64 `json:"records"`    // offsets kept
	InJournal uint64 `json:"in_journal"` // of them, those that no segment has yet

	// Of a running spool: what came since its start, and a second over the last minute.
	Appended      uint64  `json:"appended"`
	AppendedBytes int64   `json:"appended_bytes"` // in memory
	RecordRate    float64 `json:"record_rate"`
	ByteRate      float64 `json:"byte_rate"`
	Share         float64 `json:"share"` // of the stream's bytes of the last minute
	Hot           bool    `json:"hot"`   // it carries far more than its share

	Lost []GapListing `json:"lost"` // gaps that readers are told of
}

// GapListing are the offsets [From, To), gone for a reason.
type GapListing struct {
	From   Offset `json:"from"`
	To     Offset `json:"to"`
	Reason string `json:"reason"`
}

// CursorListing is one cursor.
type CursorListing struct {
	Name      string   `json:"name"`
	Stream    string   `json:"stream"`
	Protect   bool     `json:"protect"`
	Lag       uint64   `json:"lag"`
	Positions []Offset `json:"positions"`
}

// JournalListing is the journal without its frames.
type JournalListing struct {
	Bytes   int64         `json:"bytes"`
	Last    uint64        `json:"last_lsn"`
	Applied uint64        `json:"applied_lsn"` // up to there everything is in segments and meta.db
	Files   []FileListing `json:"files"`
}

// FileListing is a file.
type FileListing struct {
	Name  string    `json:"name"`
	State string    `json:"state,omitempty"` // of a journal file: free, in use, void, damaged
	Bytes int64     `json:"bytes"`
	First uint64    `json:"first_lsn,omitempty"`
	Last  uint64    `json:"last_lsn,omitempty"`
	Time  time.Time `json:"time,omitzero"`
	KeyID uint32    `json:"key_id,omitempty"` // of the key that a journal file is encrypted with
}

// SegmentListing is one segment.
type SegmentListing struct {
	Stream      string         `json:"stream"`
	Sequence    uint64         `json:"sequence"`
	File        string         `json:"file"`
	State       string         `json:"state"` // active, rolled (waits for its sealing), sealed, damaged
	FileBytes   int64          `json:"file_bytes"`
	RawBytes    uint64         `json:"raw_bytes"`
	StoredBytes uint64         `json:"stored_bytes"`
	Batches     uint64         `json:"batches"`
	Records     uint64         `json:"records"`
	LiveRecords uint64         `json:"live_records"` // not expired: an upper bound
	LiveShare   float64        `json:"live_share"`   // of the raw bytes
	Codec       string         `json:"codec"`        // of its first batch
	KeyID       uint32         `json:"key_id"`       // of the key that it is encrypted with, 0 when it is not
	Created     time.Time      `json:"created,omitzero"`
	SealedAt    time.Time      `json:"sealed_at,omitzero"`
	MinTime     time.Time      `json:"min_time,omitzero"` // of the records
	MaxTime     time.Time      `json:"max_time,omitzero"`
	Applied     uint64         `json:"applied_lsn"`
	Topics      int            `json:"topics"`  // in the index, -1 without
	Clients     int            `json:"clients"` // likewise
	Partitions  []segmentRange `json:"partitions"`
	SHA256      string         `json:"sha256,omitempty"` // of the sealed file, once it is computed
	Problem     string         `json:"problem,omitempty"`
}

// SegmentsQuery asks for segments in the order of streams and sequences.
type SegmentsQuery struct {
	Stream string // "" is all
	After  string // Next of the page before
	Limit  int    // 0 is 100, at most 1000
}

// SegmentsPage is an answer to it.
type SegmentsPage struct {
	Segments []SegmentListing `json:"segments"`
	Next     string           `json:"next,omitempty"` // empty: there are no more
}

// List describes the running spool.
func (s *Spool) List(context.Context) (Listing, error) {
	l := s.list()
	js := s.journal.Stats()
	l.Running, l.BytesOnDisk, l.Full = true, s.diskUsed(), s.full.Load()
	l.Journal = JournalListing{Bytes: s.journalBytes(), Last: uint64(js.Last), Applied: uint64(js.Released)}
	files, err := journal.Files(vfs.OS, s.path("journal"))
	l.Journal.Files = journalFiles(files)
	return l, err
}

// List describes the spool as the next start would find it.
func (v *View) List(context.Context) (Listing, error) {
	l := v.s.list()
	l.BytesOnDisk = dirBytes(v.s.cfg.Dir)
	l.Findings = append([]Finding{}, v.findings...)
	l.Journal = JournalListing{Bytes: dirBytes(v.s.path("journal")), Last: uint64(v.report.Last), Applied: v.s.metaApplied, Files: journalFiles(v.report.Files)}
	for _, b := range v.bad {
		for i := range l.Streams {
			if st := &l.Streams[i]; st.Name == b.Stream {
				st.Segments++
				st.Bytes += b.FileBytes
			}
		}
	}
	return l, nil
}

func journalFiles(files []journal.FileReport) []FileListing {
	out := []FileListing{}
	for _, f := range files {
		l := FileListing{Name: f.Name, State: f.State, Bytes: f.Size, KeyID: sealKeyOf(f.Seal)}
		if f.State == "in use" {
			l.First, l.Last, l.Time = uint64(f.First), uint64(f.Last), f.Begun.UTC()
		}
		out = append(out, l)
	}
	return out
}

func (s *Spool) list() Listing {
	l := Listing{
		Dir: s.cfg.Dir, Time: s.Now().UTC(), MaxSize: int64(s.cfg.MaxSize),
		Streams: []StreamListing{}, Cursors: []CursorListing{}, Quarantine: listFiles(s.path("quarantine")), Findings: []Finding{},
	}
	for _, st := range s.streams {
		l.Streams = append(l.Streams, st.list())
	}
	for _, c := range s.Cursors() {
		l.Cursors = append(l.Cursors, CursorListing(c.listing()))
	}
	return l
}

func (c CursorInfo) listing() CursorListing {
	return CursorListing{Name: c.Name, Stream: c.Stream, Protect: c.Protect, Lag: c.Lag, Positions: c.Positions}
}

func listFiles(dir string) []FileListing {
	out := []FileListing{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if fi, err := e.Info(); err == nil {
			out = append(out, FileListing{Name: e.Name(), Bytes: fi.Size(), Time: fi.ModTime().UTC()})
		}
	}
	return out
}

func (st *stream) list() StreamListing {
	l := StreamListing{
		Name: st.name, Configured: st.configured, Bytes: st.bytes.Load(), Segments: len(st.segments()), Partitions: []PartitionListing{},
	}
	rate := 0.0
	for _, p := range st.parts {
		p.mu.RLock()
		pl := PartitionListing{
			Partition: p.num, Start: p.start, End: p.end, Records: uint64(p.end - p.start), InJournal: uint64(p.end - p.applied), Lost: []GapListing{},
			Appended: p.load.records, AppendedBytes: p.load.bytes, RecordRate: p.recordRate, ByteRate: p.byteRate,
		}
		rate += p.byteRate
		for _, g := range p.lost {
			pl.Lost = append(pl.Lost, GapListing(g))
		}
		p.mu.RUnlock()
		l.Records += pl.Records
		l.Partitions = append(l.Partitions, pl)
	}
	for i := range l.Partitions {
		if p := &l.Partitions[i]; rate > 0 {
			p.Share = p.ByteRate / rate
			p.Hot = isHot(p.Share, rate, st.writable)
		}
	}
	return l
}

const (
	segmentsLimit    = 100
	segmentsMaxLimit = 1000
)

// ListSegments describes the segments of the running spool.
func (s *Spool) ListSegments(ctx context.Context, q SegmentsQuery) (SegmentsPage, error) {
	return s.listSegments(ctx, q, nil)
}

// ListSegments describes the segments, those that cannot be opened too.
func (v *View) ListSegments(ctx context.Context, q SegmentsQuery) (SegmentsPage, error) {
	return v.s.listSegments(ctx, q, v.bad)
}

// segmentID sorts like the segments.
func segmentID(stream string, seq uint64) string { return stream + "/" + segmentName(seq) }

func (s *Spool) listSegments(ctx context.Context, q SegmentsQuery, bad []SegmentListing) (SegmentsPage, error) {
	if q.Stream != "" && s.byName[q.Stream] == nil {
		return SegmentsPage{}, unknownStream("list segments", q.Stream)
	}
	if q.Limit <= 0 {
		q.Limit = segmentsLimit
	}
	q.Limit = min(q.Limit, segmentsMaxLimit)
	type candidate struct {
		id  string
		f   *segmentFile
		bad *SegmentListing
	}
	var all []candidate
	for _, st := range s.streams {
		for _, f := range st.segments() {
			all = append(all, candidate{id: segmentID(st.name, f.seq), f: f})
		}
	}
	for i := range bad {
		all = append(all, candidate{id: segmentID(bad[i].Stream, bad[i].Sequence), bad: &bad[i]})
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.id, b.id) })
	page := SegmentsPage{Segments: []SegmentListing{}}
	for _, c := range all {
		if c.id <= q.After || q.Stream != "" && filepath.Dir(c.id) != q.Stream {
			continue
		}
		if err := ctx.Err(); err != nil {
			return page, err
		}
		if len(page.Segments) == q.Limit {
			last := page.Segments[q.Limit-1]
			page.Next = segmentID(last.Stream, last.Sequence)
			break
		}
		if c.bad != nil {
			page.Segments = append(page.Segments, *c.bad)
		} else if l, ok := c.f.list(s.clock); ok {
			page.Segments = append(page.Segments, l)
		}
	}
	return page, nil
}

// list describes a segment; false when it has gone meanwhile.
func (f *segmentFile) list(c *clock) (l SegmentListing, ok bool) {
	ok, _ = f.with(func(seg *segment.Segment) error {
		l = listSegment(seg, c)
		return nil
	})
	l.Stream, l.Sequence, l.File = f.st.name, f.seq, filepath.Base(f.path)
	l.SHA256 = f.sum()
	if l.State == "active" && f.rolled.Load() {
		l.State = "rolled"
	}
	if f.bad.Load() {
		l.State = "damaged"
	}
	return l, ok
}

func listSegment(seg *segment.Segment, c *clock) SegmentListing {
	now, skew := c.read()
	in := seg.Info()
	l := SegmentListing{
		Stream: in.Stream, Sequence: in.Sequence, File: filepath.Base(in.Path), State: "active", FileBytes: in.FileBytes,
		RawBytes: in.RawBytes, StoredBytes: in.StoredBytes, Batches: in.Batches, Records: in.Records,
		Created: timeOf(shiftTime(in.Created, skew)), SealedAt: timeOf(shiftTime(in.SealedAt, skew)), MinTime: timeOf(in.MinTime), MaxTime: timeOf(in.MaxTime),
		Applied: in.Applied, KeyID: in.KeyID, Topics: in.Topics, Clients: in.Clients, Partitions: []segmentRange{},
	}
	if in.Sealed {
		l.State = "sealed"
	}
	live, raw := in.Expiry.Live(now)
	l.LiveRecords = live
	if in.RawBytes > 0 {
		l.LiveShare = float64(raw) / float64(in.RawBytes)
	}
	for _, p := range in.Partitions {
		l.Partitions = append(l.Partitions, segmentRange{Partition: int(p.Partition), First: Offset(p.First), Next: Offset(p.Next)})
	}
	if in.MetaDamaged {
		l.Problem = "a meta page is damaged"
	}
	l.Codec = firstCodec(seg, in)
	return l
}

// firstCodec reads one batch: the codec is a batch's, not a segment's.
func firstCodec(seg *segment.Segment, in segment.Info) string {
	for _, p := range in.Partitions {
		codec := ""
		_, _ = seg.Read(p.Partition, p.First, 1, func(b segment.Batch) error {
			if b.Count > 0 {
				codec = b.Codec.String()
			}
			return nil
		})
		if codec != "" {
			return codec
		}
	}
	return ""
}

func timeOf(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

package spool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/spool/journal"
	"github.com/forebay-gateway/forebay/spool/segment"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// inspectMaxLimit bounds every list of an answer: a gateway that is asked must not take memory for it.
const (
	inspectLimit    = 100
	inspectMaxLimit = 10_000
)

func limitOf(n int) int {
	if n <= 0 {
		return inspectLimit
	}
	return min(n, inspectMaxLimit)
}

// SegmentQuery asks for one segment.
type SegmentQuery struct {
	Stream    string
	Sequence  uint64
	Partition int // its batches are listed; below 0 those of all partitions
	Limit     int // of each list: batches, topics, clients; 0 is 100
}

// SegmentDetail is one segment and what is in it.
type SegmentDetail struct {
	SegmentListing
	PartitionDetails []SegmentPartition `json:"partition_details"`
	Batches          []BatchListing     `json:"batch_list"`
	MoreBatches      bool               `json:"more_batches"`
	Topics           []Posting          `json:"topic_list"` // of the index, in order
	MoreTopics       bool               `json:"more_topics"`
	Clients          []Posting          `json:"client_list"`
	MoreClients      bool               `json:"more_clients"`
}

// SegmentPartition is what a segment holds of a partition.
type SegmentPartition struct {
	Partition   uint16    `json:"partition"`
	First       Offset    `json:"first"`
	Next        Offset    `json:"next"`
	Batches     uint64    `json:"batches"`
	Records     uint64    `json:"records"`
	RawBytes    uint64    `json:"raw_bytes"`
	StoredBytes uint64    `json:"stored_bytes"`
	MinTime     time.Time `json:"min_time,omitzero"`
	MaxTime     time.Time `json:"max_time,omitzero"`
	Gaps        uint64    `json:"gaps"`
	Missing     uint64    `json:"missing"`
}

// BatchListing is the header of a batch.
type BatchListing struct {
	Partition   uint16    `json:"partition"`
	First       Offset    `json:"first"`
	Next        Offset    `json:"next"`
	Records     uint32    `json:"records"`
	StoredBytes int       `json:"stored_bytes"`
	Codec       string    `json:"codec"`
	KeyID       uint32    `json:"key_id"` // 0: not encrypted
	MinTime     time.Time `json:"min_time,omitzero"`
	MaxTime     time.Time `json:"max_time,omitzero"`
	MinExpiry   time.Time `json:"min_expiry,omitzero"`
	MaxExpiry   time.Time `json:"max_expiry,omitzero"`
	Never       uint32    `json:"never"` // records without expiry
}

// Posting is a topic or a client of the index.
type Posting struct {
	Key     string `json:"key"`
	Batches int    `json:"batches"`
}

// InspectSegment looks into a segment of the running spool.
func (s *Spool) InspectSegment(ctx context.Context, q SegmentQuery) (SegmentDetail, error) {
	st := s.byName[q.Stream]
	if st == nil {
		return SegmentDetail{}, unknownStream("inspect", q.Stream)
	}
	for _, f := range st.segments() {
		if f.seq != q.Sequence {
			continue
		}
		var d SegmentDetail
		ok, err := f.with(func(seg *segment.Segment) (err error) {
			d, err = inspectSegment(ctx, seg, q, s.clock.now())
			return err
		})
		if l, there := f.list(s.clock.now()); there {
			d.SegmentListing = l
		}
		if ok {
			return d, err
		}
	}
	return SegmentDetail{}, fmt.Errorf("spool: inspect %s: %w", segmentID(q.Stream, q.Sequence), ErrUnknownSegment)
}

// ErrUnknownSegment means that a stream has no such segment.
var ErrUnknownSegment = errors.New("no such segment")

func unknownStream(op, name string) error {
	return fmt.Errorf("spool: %s: stream %q: %w", op, name, ErrUnknownStream)
}

// InspectSegment looks into a segment. One that cannot be opened shows its problem.
func (v *View) InspectSegment(ctx context.Context, q SegmentQuery) (SegmentDetail, error) {
	for _, b := range v.bad {
		if b.Stream == q.Stream && b.Sequence == q.Sequence {
			return SegmentDetail{SegmentListing: b}, nil
		}
	}
	return v.s.InspectSegment(ctx, q)
}

// InspectFile looks into a segment file anywhere, such as one in quarantine or a copy.
func InspectFile(ctx context.Context, cfg EncryptionConfig, path string, q SegmentQuery) (SegmentDetail, error) {
	keys, err := loadKeys(cfg)
	if err != nil {
		return SegmentDetail{}, err
	}
	seg, err := segment.Open(path, segment.Options{ReadOnly: true, Keys: keys})
	if err != nil {
		return SegmentDetail{}, err
	}
	d, err := inspectSegment(ctx, seg, q, time.Now().UnixNano())
	return d, errors.Join(err, seg.Close())
}

var errEnough = errors.New("enough")

func inspectSegment(ctx context.Context, seg *segment.Segment, q SegmentQuery, now int64) (SegmentDetail, error) {
	d := SegmentDetail{
		SegmentListing: listSegment(seg, now), PartitionDetails: []SegmentPartition{}, Batches: []BatchListing{}, Topics: []Posting{}, Clients: []Posting{},
	}
	limit := limitOf(q.Limit)
	for _, p := range seg.Info().Partitions {
		if q.Partition >= 0 && int(p.Partition) != q.Partition {
			continue
		}
		d.PartitionDetails = append(d.PartitionDetails, SegmentPartition{
			Partition: p.Partition, First: Offset(p.First), Next: Offset(p.Next), Batches: p.Batches, Records: p.Records, RawBytes: p.RawBytes,
			StoredBytes: p.StoredBytes, MinTime: timeOf(p.MinTime), MaxTime: timeOf(p.MaxTime), Gaps: p.Gaps, Missing: p.Missing,
		})
		err := seg.Headers(ctx, p.Partition, p.First, func(b segment.Batch) error {
			if len(d.Batches) == limit {
				d.MoreBatches = true
				return errEnough
			}
			d.Batches = append(d.Batches, listBatch(b))
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return d, err
		}
	}
	var err error
	if d.Topics, d.MoreTopics, err = postings(seg, segment.KindTopic, limit); err != nil {
		return d, err
	}
	d.Clients, d.MoreClients, err = postings(seg, segment.KindClient, limit)
	return d, err
}

func listBatch(b segment.Batch) BatchListing {
	return BatchListing{
		Partition: b.Partition, First: Offset(b.Base), Next: Offset(b.Next), Records: b.Count, StoredBytes: b.StoredBytes, Codec: b.Codec.String(), KeyID: b.KeyID,
		MinTime: timeOf(b.MinTime), MaxTime: timeOf(b.MaxTime), MinExpiry: timeOf(b.MinExpiry), MaxExpiry: timeOf(b.MaxExpiry), Never: b.Never,
	}
}

func postings(seg *segment.Segment, kind segment.Kind, limit int) (list []Posting, more bool, err error) {
	list = []Posting{}
	err = seg.Keys(kind, func(key string, batches int) error {
		if len(list) == limit {
			more = true
			return errEnough
		}
		list = append(list, Posting{key, batches})
		return nil
	})
	if errors.Is(err, errEnough) || errors.Is(err, segment.ErrNoIndex) || errors.Is(err, segment.ErrNotSealed) {
		err = nil
	}
	return list, more, err
}

// JournalQuery asks for frames of the journal.
type JournalQuery struct {
	After uint64 // LSN
	Limit int
}

// JournalDetail is the journal.
type JournalDetail struct {
	Files   []JournalFile  `json:"files"`
	Frames  []FrameListing `json:"frames"`
	More    bool           `json:"more"`
	Last    uint64         `json:"last_lsn"`
	Proven  uint64         `json:"proven_lsn"`
	Applied uint64         `json:"applied_lsn"`
	Lost    []string       `json:"lost"` // frames that were durable and are not there
	Torn    string         `json:"torn,omitempty"`
}

// JournalFile is one of its files.
type JournalFile struct {
	FileListing
	Generation uint64 `json:"generation"`
	End        int64  `json:"end"` // behind the last good frame
	Stop       string `json:"stop,omitempty"`
}

// FrameListing is one frame: what became durable in one piece.
type FrameListing struct {
	LSN     uint64           `json:"lsn"`
	File    string           `json:"file"`
	Offset  int64            `json:"offset"`
	Bytes   int              `json:"bytes"`
	Time    time.Time        `json:"time"`
	Records []SectionListing `json:"records"`
	Changes []ChangeListing  `json:"changes"`
	Problem string           `json:"problem,omitempty"`
}

// SectionListing are records of one partition in a frame.
type SectionListing struct {
	Stream    string `json:"stream"`
	Partition int    `json:"partition"`
	First     Offset `json:"first"`
	Records   int    `json:"records"`
	Bytes     int    `json:"bytes"`
}

// ChangeListing is a change of state.
type ChangeListing struct {
	Space  string `json:"space"`
	Key    string `json:"key"`
	Delete bool   `json:"delete,omitempty"`
	Bytes  int    `json:"bytes"`
}

// InspectJournal looks at the files of the running spool's journal. Nothing waits for that; frames of the last moment may
// be missing.
func (s *Spool) InspectJournal(ctx context.Context, q JournalQuery) (JournalDetail, error) {
	d, err := s.inspectJournal(ctx, q)
	for try := 0; try < 3 && err != nil && ctx.Err() == nil; try++ { // a file was begun anew while it was read
		d, err = s.inspectJournal(ctx, q)
	}
	d.Applied = uint64(s.journal.Stats().Released)
	return d, err
}

// InspectJournal looks at the journal.
func (v *View) InspectJournal(ctx context.Context, q JournalQuery) (JournalDetail, error) {
	d, err := v.s.inspectJournal(ctx, q)
	d.Applied = v.s.metaApplied
	return d, err
}

func (s *Spool) inspectJournal(ctx context.Context, q JournalQuery) (JournalDetail, error) {
	d := JournalDetail{Files: []JournalFile{}, Frames: []FrameListing{}, Lost: []string{}}
	limit := limitOf(q.Limit)
	r, err := journal.Frames(vfs.OS, s.path("journal"), journalSealer{s.keys}, func(fr journal.Frame) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if uint64(fr.LSN) <= q.After {
			return nil
		}
		if len(d.Frames) == limit {
			d.More = true
			return errEnough
		}
		d.Frames = append(d.Frames, listFrame(fr))
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	d.Last, d.Proven, d.Torn = uint64(r.Last), uint64(r.Proven), r.Torn
	for _, l := range r.Lost {
		d.Lost = append(d.Lost, l.String())
	}
	for i, f := range journalFiles(r.Files) {
		d.Files = append(d.Files, JournalFile{FileListing: f, Generation: r.Files[i].Generation, End: r.Files[i].End, Stop: r.Files[i].Stop})
	}
	return d, err
}

const frameChanges = 100 // of a frame that are listed

func listFrame(fr journal.Frame) FrameListing {
	l := FrameListing{
		LSN: uint64(fr.LSN), File: fr.File, Offset: fr.Offset, Bytes: len(fr.Payload), Time: timeOf(fr.Time),
		Records: []SectionListing{}, Changes: []ChangeListing{},
	}
	if fr.Err != nil {
		l.Problem = fr.Err.Error()
		return l
	}
	err := decodePayload(fr.Payload, payloadVisitor{
		records: func(stream string, partition int, base Offset, count int, body []byte) error {
			l.Records = append(l.Records, SectionListing{strings.Clone(stream), partition, base, count, len(body)})
			return nil
		},
		changes: func(b []byte) error {
			return decodeChanges(b, func(space, key string, value []byte) error {
				if len(l.Changes) < frameChanges {
					l.Changes = append(l.Changes, ChangeListing{strings.Clone(space), strings.Clone(key), value == nil, len(value)})
				}
				return nil
			})
		},
	})
	if err != nil {
		l.Problem = err.Error()
	}
	return l
}

// MetaQuery asks for meta.db.
type MetaQuery struct {
	Space string // its keys are listed
	After string // key
	Limit int
}

// MetaDetail is meta.db with what only the journal has of it.
type MetaDetail struct {
	Bytes       int64          `json:"bytes"`
	Format      int            `json:"format"`
	Encrypted   bool           `json:"encrypted"`
	Applied     uint64         `json:"applied_lsn"`
	Clock       time.Time      `json:"clock,omitzero"` // the latest time that the spool had seen when it was written
	Quarantined uint64         `json:"quarantined"`
	Catalog     int            `json:"catalog"` // segments
	Spaces      []SpaceListing `json:"spaces"`
	Pending     int            `json:"pending_changes"` // that only the journal has; of a running gateway they are not counted
	Keys        []KeyListing   `json:"keys"`
	More        bool           `json:"more"`
}

// SpaceListing is a space of state.
type SpaceListing struct {
	Name  string `json:"name"`
	Keys  int    `json:"keys"`
	Bytes int64  `json:"bytes"` // of keys and values
}

// KeyListing is a key of a space.
type KeyListing struct {
	Key   string `json:"key"`
	Bytes int    `json:"bytes"`
}

// InspectMeta looks at the running spool's meta.db.
func (s *Spool) InspectMeta(ctx context.Context, q MetaQuery) (MetaDetail, error) {
	return s.inspectMeta(ctx, q, nil, func(space string, fn func(string, []byte) error) error { return s.Load(space, fn) })
}

// InspectMeta looks at meta.db.
func (v *View) InspectMeta(ctx context.Context, q MetaQuery) (MetaDetail, error) {
	d, err := v.s.inspectMeta(ctx, q, sortedKeys(v.pending), func(space string, fn func(string, []byte) error) error {
		return v.space(ctx, space, fn)
	})
	d.Pending = v.changes
	return d, err
}

func (s *Spool) inspectMeta(ctx context.Context, q MetaQuery, more []string, load func(string, func(string, []byte) error) error) (MetaDetail, error) {
	d := MetaDetail{Spaces: []SpaceListing{}, Keys: []KeyListing{}}
	names, err := s.metaSpaces()
	if err != nil {
		return d, err
	}
	if s.meta != nil {
		d.Bytes, d.Encrypted = s.meta.size(), s.meta.key != nil
		if err := s.meta.view(func(tx *bolt.Tx) error {
			d.Format = int(tx.Bucket(bucketMeta).Get(keyFormat)[0])
			d.Applied, d.Quarantined = s.meta.number(tx, keyApplied), s.meta.number(tx, keyQuarantined)
			d.Clock = timeOf(int64(min(s.meta.number(tx, keyClock), math.MaxInt64)))
			d.Catalog = tx.Bucket(bucketSegments).Stats().KeyN
			return nil
		}); err != nil {
			return d, err
		}
	}
	for _, n := range more {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	for _, name := range names {
		sp := SpaceListing{Name: spaceName(name)}
		if err := load(name, func(key string, value []byte) error {
			sp.Keys++
			sp.Bytes += int64(len(key) + len(value))
			if sp.Name != q.Space || key <= q.After && q.After != "" {
				return ctx.Err()
			}
			if len(d.Keys) == limitOf(q.Limit) {
				d.More = true
				return nil
			}
			d.Keys = append(d.Keys, KeyListing{key, len(value)})
			return nil
		}); err != nil {
			return d, err
		}
		d.Spaces = append(d.Spaces, sp)
	}
	return d, nil
}

// spaceName is how a space is shown: the spool's own ones begin with a byte that cannot be typed.
func spaceName(name string) string {
	if own, ok := strings.CutPrefix(name, ownSpaces); ok {
		return "spool." + own
	}
	return name
}

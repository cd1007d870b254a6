package spool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/forebay-gateway/forebay/spool/segment"
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
			d, err = inspectSegment(ctx, seg, q, s.clock)
			return err
		})
		if l, there := f.list(s.clock); there {
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
	d, err := inspectSegment(ctx, seg, q, newClock(Options{}.withDefaults(), clockState{}))
	return d, errors.Join(err, seg.Close())
}

var errEnough = errors.New("enough")

func inspectSegment(ctx context.Context, seg *segment.Segment, q SegmentQuery, c *clock) (SegmentDetail, error) {
	d := SegmentDetail{
		SegmentListing: listSegment(seg, c), PartitionDetails: []SegmentPartition{}, Batches: []BatchListing{}, Topics: []Posting{}, Clients: []Posting{},
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
			d.Batches = append(d.Batches, listBatch(b, c.skew.Load()))
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

func listBatch(b segment.Batch, skew int64) BatchListing {
	return BatchListing{
		Partition: b.Partition, First: Offset(b.Base), Next: Offset(b.Next), Records: b.Count, StoredBytes: b.StoredBytes, Codec: b.Codec.String(), KeyID: b.KeyID,
		MinTime: timeOf(b.MinTime), MaxTime: timeOf(b.MaxTime), MinExpiry: timeOf(shiftTime(b.MinExpiry, skew)), MaxExpiry: timeOf(shiftTime(b.MaxExpiry, skew)), Never: b.Never,
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

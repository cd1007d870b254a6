package manifest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// Version is what this version writes, and the newest that it reads.
const Version = 1

var (
	// ErrUnsupported means that a newer version wrote it. It is not damage: nothing is touched.
	ErrUnsupported = errors.New("written in a newer format than this version reads")

	// ErrDamaged means that an object is not what was written.
	ErrDamaged = errors.New("damaged")

	// ErrLost means that there is no manifest, or none that can be read, although there are segments.
	ErrLost = errors.New("the manifest is lost")

	// ErrOwned means that the prefix belongs to another gateway.
	ErrOwned = errors.New("the prefix belongs to another gateway")
)

// Manifest is what a store holds of a stream.
type Manifest struct {
	Version    int       `json:"version"`
	Stream     string    `json:"stream"`
	Generation uint64    `json:"generation"`
	Instance   string    `json:"instance"` // who wrote it, see Owner
	Written    time.Time `json:"written"`
	Floor      uint64    `json:"floor"`    // segments below were removed by cold retention: they are not stored again
	Segments   []Segment `json:"segments"` // ascending by sequence

	// FloorCreated is when the last of the removed ones was begun: a newer segment below the floor is one of another log.
	FloorCreated time.Time `json:"floor_created,omitzero"`
}

// Segment is one segment in the store.
type Segment struct {
	Version    int         `json:"version"`
	Schema     int         `json:"schema"` // version of the segment's own format
	Stream     string      `json:"stream"`
	Sequence   uint64      `json:"sequence"`
	Bytes      int64       `json:"bytes"`
	SHA256     string      `json:"sha256"`
	PartSize   int64       `json:"part_size"`
	Records    uint64      `json:"records"`
	KeyID      uint32      `json:"key_id,omitempty"`
	Created    time.Time   `json:"created"`
	SealedAt   time.Time   `json:"sealed_at"`
	MinTime    time.Time   `json:"min_time,omitzero"`
	MaxTime    time.Time   `json:"max_time,omitzero"`
	Stored     time.Time   `json:"stored"`
	Partitions []Partition `json:"partitions"`
	Topics     Topics      `json:"topics"`
	Parquet    []string    `json:"parquet,omitempty"` // objects with the same records, below the stream

	ParquetBytes int64 `json:"parquet_bytes,omitempty"` // 0 of those that an earlier version has written
}

// Partition is what a segment holds of a partition: offsets [First, Next).
type Partition struct {
	Partition int          `json:"partition"`
	First     spool.Offset `json:"first"`
	Next      spool.Offset `json:"next"`
	MinTime   time.Time    `json:"min_time,omitzero"`
	MaxTime   time.Time    `json:"max_time,omitzero"`
}

// EntryOf is the entry of a sealed segment, without hash and topics.
func EntryOf(se spool.Sealed) Segment {
	s := Segment{
		Version: Version, Schema: spool.SchemaVersion(se.KeyID), Stream: se.Stream, Sequence: se.Sequence, Bytes: se.Bytes, Records: se.Records, KeyID: se.KeyID,
		Created: se.Created, SealedAt: se.SealedAt, MinTime: se.MinTime, MaxTime: se.MaxTime,
	}
	for _, p := range se.Partitions {
		s.Partitions = append(s.Partitions, Partition(p))
	}
	return s
}

// Parts is how many objects the segment's file is.
func (s *Segment) Parts() int { return int((s.Bytes + s.PartSize - 1) / s.PartSize) }

// Partition is what the segment holds of one.
func (s *Segment) Partition(p int) (Partition, bool) {
	for _, have := range s.Partitions {
		if have.Partition == p {
			return have, true
		}
	}
	return Partition{}, false
}

// Same tells whether both are the same segment, though one may have been rewritten without expired records.
func (s *Segment) Same(o *Segment) bool {
	return s.Created.Equal(o.Created) && slices.EqualFunc(s.Partitions, o.Partitions, func(a, b Partition) bool {
		return a.Partition == b.Partition && a.First == b.First && a.Next == b.Next
	})
}

// Find is the entry of a sequence number.
func (m *Manifest) Find(seq uint64) (*Segment, bool) {
	i, ok := slices.BinarySearchFunc(m.Segments, seq, func(s Segment, seq uint64) int {
		switch {
		case s.Sequence < seq:
			return -1
		case s.Sequence > seq:
			return 1
		}
		return 0
	})
	if !ok {
		return nil, false
	}
	return &m.Segments[i], true
}

// At is the first segment that has the partition at or behind an offset; nil when there is none. Segments follow each other in the order of
// offsets in every partition that they have.
func (m *Manifest) At(partition int, at spool.Offset) (*Segment, Partition) {
	has := func(i int) (int, Partition) { // the first from i on that has the partition
		for ; i < len(m.Segments); i++ {
			if p, ok := m.Segments[i].Partition(partition); ok {
				return i, p
			}
		}
		return i, Partition{Next: math.MaxUint64}
	}
	i, p := has(sort.Search(len(m.Segments), func(i int) bool {
		_, p := has(i)
		return p.Next > at
	}))
	if i == len(m.Segments) {
		return nil, Partition{}
	}
	return &m.Segments[i], p
}

// With is the manifest with more entries; one of the same sequence is replaced.
func (m *Manifest) With(more ...Segment) *Manifest {
	n := *m
	n.Segments = append(slices.Clone(m.Segments), more...)
	slices.SortStableFunc(n.Segments, func(a, b Segment) int { return cmp.Compare(a.Sequence, b.Sequence) })
	w := 0
	for i := range n.Segments {
		if w > 0 && n.Segments[w-1].Sequence == n.Segments[i].Sequence {
			w-- // the later one counts
		}
		n.Segments[w] = n.Segments[i]
		w++
	}
	n.Segments = n.Segments[:w]
	return &n
}

// WithoutFirst is the manifest without its first n segments.
func (m *Manifest) WithoutFirst(n int) *Manifest {
	w := *m
	w.Floor, w.FloorCreated = m.Segments[n-1].Sequence+1, m.Segments[n-1].Created
	w.Segments = slices.Clone(m.Segments[n:])
	return &w
}

// Bytes is the size of all segments.
func (m *Manifest) Bytes() (n int64) {
	for i := range m.Segments {
		n += m.Segments[i].Bytes
	}
	return n
}

// sealed is how an object is stored: the SHA-256 of the rest in a first line. An object that was cut or changed is told.
func seal(v any) ([]byte, error) {
	j, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(j)
	return append(append([]byte(hex.EncodeToString(sum[:])), '\n'), append(j, '\n')...), nil
}

// unseal reads what seal made. version is called before anything else is believed.
func unseal(b []byte, v any) error {
	sum, rest, ok := bytes.Cut(b, []byte("\n"))
	body, whole := bytes.CutSuffix(rest, []byte("\n"))
	got := sha256.Sum256(body)
	if !ok || !whole || string(sum) != hex.EncodeToString(got[:]) {
		return fmt.Errorf("%w: its bytes are not those of its SHA-256", ErrDamaged)
	}
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(body, &head); err != nil || head.Version < 1 {
		return fmt.Errorf("%w: no version", ErrDamaged)
	}
	if head.Version > Version {
		return fmt.Errorf("version %d: %w", head.Version, ErrUnsupported)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// Encode is the stored form of a manifest.
func (m *Manifest) Encode() ([]byte, error) { return seal(m) }

// Decode reads the stored form.
func Decode(b []byte) (*Manifest, error) {
	m := new(Manifest)
	if err := unseal(b, m); err != nil {
		return nil, err
	}
	for i := range m.Segments {
		if err := m.Segments[i].check(); err != nil {
			return nil, err
		}
		if i > 0 && m.Segments[i].Sequence <= m.Segments[i-1].Sequence {
			return nil, fmt.Errorf("%w: segments are not in order", ErrDamaged)
		}
	}
	return m, nil
}

func (s *Segment) check() error {
	switch {
	case s.Version > Version:
		return fmt.Errorf("entry of version %d: %w", s.Version, ErrUnsupported)
	case s.Bytes <= 0, s.PartSize <= 0, len(s.SHA256) != 2*sha256.Size:
		return fmt.Errorf("%w: entry of segment %d", ErrDamaged, s.Sequence)
	}
	return nil
}

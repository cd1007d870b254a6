package segment

import (
	"context"
	"errors"
	"time"
)

var errSoon = errors.New("segment: being written")

// Codec compresses bodies.
type Codec uint8

const (
	CodecNone Codec = 0
	CodecS2   Codec = 1
	CodecZstd Codec = 2
)

func (c Codec) String() string { return "" }

// ParseCodec turns "none", "s2" or "zstd" into a Codec.
func ParseCodec(name string) (Codec, error) { return 0, errSoon }

// Options say how a segment is created or opened. The zero value is usable.
type Options struct {
	Stream   string // name of the stream, stored by Create for tools and for checking that a file is where it belongs
	Sequence uint64 // number of the segment in its stream, stored by Create
	ReadOnly bool   // Open only: never write. A sealed segment is always opened read-only
	Codec    Codec  // for what Write stores; CodecNone by default
	MaxSize  int64  // hard limit of the file, 256 MiB by default; Write returns ErrFull one AllocSize (4 MiB) before it
	Now      func() time.Time
}

// Segment is an open segment. Its methods may be called from any goroutine.
type Segment struct{}

// Info is what is known about a segment without reading its batches.
type Info struct {
	Path        string
	Stream      string
	Sequence    uint64
	Created     int64 // Unix nanoseconds
	Applied     uint64
	Sealed      bool
	SealedAt    int64           // Unix nanoseconds, 0 while active
	FileBytes   int64           // size of the file; the disk may hold less while it is active (sparse tail)
	Partitions  []PartitionInfo // ascending, only those that have batches
	Batches     uint64
	Records     uint64
	RawBytes    uint64
	StoredBytes uint64
	MinTime     int64
	MaxTime     int64
	Expiry      Expiry
	Topics      int // distinct topics in the index, -1 without index
	Clients     int // distinct clients in the index, -1 without index
}

// Partition returns the part of in that is about partition p.
func (in Info) Partition(p uint16) (PartitionInfo, bool) { return PartitionInfo{}, false }

// PartitionInfo is the part of Info about one partition.
type PartitionInfo struct {
	Partition        uint16
	First, Next      uint64 // the segment holds offsets of [First, Next)
	Batches, Records uint64
	RawBytes         uint64
	StoredBytes      uint64
	MinTime, MaxTime int64
	Gaps             uint64 // places where a batch did not start at the next offset
	Missing          uint64 // offsets in these gaps
}

// Expiry is a histogram of the records' expiry times.
type Expiry struct{}

// Live estimates how many records, and bytes of raw body, are not expired at now. It never says fewer than there are.
func (e Expiry) Live(now int64) (records, rawBytes uint64) { return 0, 0 }

// Latest is the latest expiry of a record; never is true when a record has none.
func (e Expiry) Latest() (at int64, never bool) { return 0, false }

// Create makes a new, empty segment at path and syncs file and directory. It fails when path exists.
func Create(path string, o Options) (*Segment, error) { return nil, errSoon }

// Open opens an existing segment. A sealed one is opened read-only.
func Open(path string, o Options) (*Segment, error) { return nil, errSoon }

// Write stores the batches and the applied position in one transaction.
func (s *Segment) Write(applied uint64, batches []Batch) error { return errSoon }

// SetCodec changes the codec for later calls of Write (s2 while the materialiser lags).
func (s *Segment) SetCodec(c Codec) {}

// Applied is the journal position that the last Write stored.
func (s *Segment) Applied() uint64 { return 0 }

// Info returns what is known without reading batches.
func (s *Segment) Info() Info { return Info{} }

// Path returns the file's path.
func (s *Segment) Path() string { return "" }

// Kind is a kind of key in the index of a sealed segment.
type Kind uint8

const (
	KindTopic  Kind = 1
	KindClient Kind = 2
)

// IndexFunc calls yield for every topic and client in body, repeats allowed. key is not kept.
type IndexFunc func(body []byte, yield func(kind Kind, key []byte)) error

// Seal writes the index that index yields (nil: none) and the seal record, syncs, cuts the file to its length and opens
// it read-only. Sealing a sealed segment does nothing. After an error other than ErrFailed the segment is still active.
func (s *Segment) Seal(ctx context.Context, index IndexFunc) error { return errSoon }

// Read calls fn for the batches of the partition from the one that holds offset from, or else the first after it, until
// the bodies delivered reach maxBytes (at least one is delivered) or the segment ends. next is where to go on: the Next
// of the last batch that fn took, or from. A damaged batch ends it with *CorruptionError; Skip says where to go on then.
func (s *Segment) Read(partition uint16, from uint64, maxBytes int, fn func(Batch) error) (next uint64, err error) {
	return from, errSoon
}

// Skip returns the base of the first batch of the partition whose base is above offset; ok is false when there is none.
func (s *Segment) Skip(partition uint16, offset uint64) (base uint64, ok bool, err error) {
	return 0, false, errSoon
}

// Headers is Read without bodies: it neither decompresses nor checks them.
func (s *Segment) Headers(ctx context.Context, partition uint16, from uint64, fn func(Batch) error) error {
	return errSoon
}

// SeekTime returns the base of the first batch of the partition that has a record received at or after t (Unix
// nanoseconds), also when the clock went back in between. ok is false when there is none.
func (s *Segment) SeekTime(partition uint16, t int64) (offset uint64, ok bool, err error) {
	return 0, false, errSoon
}

// Lookup returns the batches that have a key of the kind that match accepts, by partition and base.
func (s *Segment) Lookup(kind Kind, match func(key string) bool) ([]Ref, error) { return nil, errSoon }

// Verify reads all of the segment and checks it against its own totals.
func (s *Segment) Verify(ctx context.Context) error { return errSoon }

// VerifyFile opens the file at path read-only, checks its page tree and verifies it.
func VerifyFile(ctx context.Context, path string) (Info, error) { return Info{}, errSoon }

// Rewrite makes a sealed segment at dst from s, which is sealed, with what keep returns for each batch; false leaves a
// hole (Count 0) for the batch's offsets, so that no gap shows. keep must not change partition, base or next. dst is
// synced, its directory is not: the caller renames it.
func (s *Segment) Rewrite(ctx context.Context, dst string, o Options, index IndexFunc, keep func(Batch) (Batch, bool, error)) (Info, error) {
	return Info{}, errSoon
}

// Close closes the file. Twice is fine.
func (s *Segment) Close() error { return errSoon }

// Remove removes the file in steps that do not stall the syncs of others, and syncs the directory. The file must be closed.
// Ending ctx makes it stop between two steps; calling it again goes on. A missing file is no error.
func Remove(ctx context.Context, path string) error { return errSoon }

// Hash returns size and SHA-256 of the file.
func Hash(ctx context.Context, path string) (size int64, sum [32]byte, err error) {
	return 0, sum, errSoon
}

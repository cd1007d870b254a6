package segment

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/forebay-gateway/forebay/spool/crypt"
)

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
	MetaDamaged bool   // a meta page is damaged: an active segment may show the state before its last Write, see Open
	KeyID       uint32 // of the key that it is encrypted with, 0 when it is not
	Topics      int    // distinct topics in the index, -1 without index
	Clients     int    // distinct clients in the index, -1 without index
}

// Partition returns the part of in that is about partition p.
func (in Info) Partition(p uint16) (PartitionInfo, bool) {
	i, ok := slices.BinarySearchFunc(in.Partitions, p, func(pi PartitionInfo, p uint16) int {
		return int(pi.Partition) - int(p)
	})
	if !ok {
		return PartitionInfo{}, false
	}
	return in.Partitions[i], true
}

// PartitionInfo is the part of Info about one partition.
type PartitionInfo struct {
	Partition        uint16
	First, Next      uint64 // the segment holds offsets of [First, Next)
	Batches, Records uint64
	RawBytes         uint64
	StoredBytes      uint64
	MinTime, MaxTime int64  // of the records; 0 when there are none
	Gaps             uint64 // places where a batch did not start at the next offset
	Missing          uint64 // offsets in these gaps
}

// format is written once, by Create.
//
//	magic "forebay-segment\n" (16) | version u16 | sequence u64 | created i64 | stream, to the end | CRC32C u32 of all before
//
// Version 2 is an encrypted file; it has crypt.Params (28 bytes) before the stream. Magic, version and the place of the CRC
// stay the same in every version.
type format struct {
	stream   string
	sequence uint64
	created  int64
	params   crypt.Params // KeyID 0: not encrypted
}

const (
	formatMagic   = "forebay-segment\n"
	formatVersion = 1
	formatSealed  = 2
)

func (f format) encode() []byte {
	v := append([]byte(nil), formatMagic...)
	if f.params.KeyID == 0 {
		v = le.AppendUint16(v, formatVersion)
	} else {
		v = le.AppendUint16(v, formatSealed)
	}
	v = le.AppendUint64(v, f.sequence)
	v = le.AppendUint64(v, uint64(f.created))
	if f.params.KeyID != 0 {
		v = f.params.Append(v)
	}
	v = append(v, f.stream...)
	return appendCRC(v)
}

func decodeFormat(v []byte) (f format, err error) {
	if len(v) < len(formatMagic) || string(v[:len(formatMagic)]) != formatMagic {
		return f, storedError("not a segment: no format record")
	}
	v, err = checkCRC(v, "format record")
	if err != nil {
		return f, err
	}
	v = v[len(formatMagic):]
	if len(v) < 2 {
		return f, storedError("format record too short")
	}
	n := le.Uint16(v)
	if n != formatVersion && n != formatSealed {
		return f, fmt.Errorf("segment format %d: %w", n, ErrUnsupported)
	}
	if len(v) < 18 || n == formatSealed && len(v) < 18+crypt.ParamsSize {
		return f, storedError("format record too short")
	}
	f.sequence, f.created = le.Uint64(v[2:]), int64(le.Uint64(v[10:]))
	v = v[18:]
	if n == formatSealed {
		if f.params, err = crypt.ParseParams(v[:crypt.ParamsSize]); err != nil {
			return f, storedError(err.Error())
		}
		v = v[crypt.ParamsSize:]
	}
	f.stream = string(v)
	return f, nil
}

// state changes with every Write. A published state is never modified: clone, change, store, publish.
//
//	version u8 (1) | flags u8 (1 sealed) | varints: applied, sealed at, topics+1, clients+1, never records and bytes,
//	latest expiry, buckets (count, then index, records, bytes for each that is not empty), partitions (count, then
//	the fields of PartitionInfo in their order) | CRC32C u32 of all before
type state struct {
	applied         uint64
	sealed          bool
	sealedAt        int64
	topics, clients int
	parts           map[uint16]PartitionInfo
	expiry          Expiry
}

const stateVersion = 1

func newState(created int64) *state {
	return &state{topics: -1, clients: -1, parts: map[uint16]PartitionInfo{}, expiry: Expiry{created: created}}
}

func (st *state) clone() *state {
	c := *st
	c.parts = maps.Clone(st.parts)
	c.expiry = st.expiry.clone()
	return &c
}

// add counts a batch that is stored in n bytes.
func (st *state) add(b *Batch, n int) error {
	p, ok := st.parts[b.Partition]
	switch {
	case !ok:
		p = PartitionInfo{Partition: b.Partition, First: b.Base}
	case b.Base < p.Next:
		return &OffsetError{Partition: b.Partition, Base: b.Base, Next: p.Next}
	case b.Base > p.Next:
		p.Gaps++
		p.Missing += b.Base - p.Next
	}
	if b.Count > 0 {
		if p.Records == 0 {
			p.MinTime, p.MaxTime = b.MinTime, b.MaxTime
		}
		p.MinTime, p.MaxTime = min(p.MinTime, b.MinTime), max(p.MaxTime, b.MaxTime)
	}
	p.Next = b.Next
	p.Batches++
	p.Records += uint64(b.Count)
	p.RawBytes += uint64(len(b.Body))
	p.StoredBytes += uint64(n)
	st.parts[b.Partition] = p
	st.expiry.addBatch(b)
	return nil
}

func (st *state) encode() []byte {
	v := []byte{stateVersion, 0}
	if st.sealed {
		v[1] = 1
	}
	u := func(xs ...uint64) {
		for _, x := range xs {
			v = binary.AppendUvarint(v, x)
		}
	}
	e := &st.expiry
	u(st.applied, uint64(st.sealedAt), uint64(st.topics+1), uint64(st.clients+1))
	u(e.never.records, e.never.bytes, uint64(e.latest))
	used := 0
	for _, b := range e.buckets {
		if b.records > 0 {
			used++
		}
	}
	u(uint64(used))
	for i, b := range e.buckets {
		if b.records > 0 {
			u(uint64(i), b.records, b.bytes)
		}
	}
	u(uint64(len(st.parts)))
	for _, k := range slices.Sorted(maps.Keys(st.parts)) {
		p := st.parts[k]
		u(uint64(k), p.First, p.Next, p.Batches, p.Records, p.RawBytes, p.StoredBytes, uint64(p.MinTime), uint64(p.MaxTime), p.Gaps, p.Missing)
	}
	return appendCRC(v)
}

func decodeState(v []byte, created int64) (*state, error) {
	v, err := checkCRC(v, "state record")
	if err != nil {
		return nil, err
	}
	if len(v) < 2 {
		return nil, storedError("state record too short")
	}
	if v[0] != stateVersion || v[1] > 1 {
		return nil, fmt.Errorf("state version %d flags %#x: %w", v[0], v[1], ErrUnsupported)
	}
	st := newState(created)
	st.sealed = v[1] == 1
	v = v[2:]
	short := false
	u := func() uint64 {
		x, n := binary.Uvarint(v)
		if n <= 0 {
			short, v = true, nil
			return 0
		}
		v = v[n:]
		return x
	}
	st.applied, st.sealedAt = u(), int64(u())
	st.topics, st.clients = int(u())-1, int(u())-1
	e := &st.expiry
	e.never.records, e.never.bytes, e.latest = u(), u(), int64(u())
	for n := u(); n > 0 && !short; n-- {
		i := u()
		if i >= maxExpiryBuckets {
			return nil, storedError("state record: expiry bucket out of range")
		}
		for uint64(len(e.buckets)) <= i {
			e.buckets = append(e.buckets, share{})
		}
		e.buckets[i] = share{records: u(), bytes: u()}
	}
	for n := u(); n > 0 && !short; n-- {
		p := PartitionInfo{
			Partition: uint16(u()), First: u(), Next: u(), Batches: u(), Records: u(), RawBytes: u(), StoredBytes: u(),
			MinTime: int64(u()), MaxTime: int64(u()), Gaps: u(), Missing: u(),
		}
		st.parts[p.Partition] = p
	}
	if short || len(v) != 0 {
		return nil, storedError("state record has not its length")
	}
	return st, nil
}

func (st *state) info(path string, f format, size int64) Info {
	in := Info{
		Path: path, Stream: f.stream, Sequence: f.sequence, Created: f.created,
		KeyID: f.params.KeyID, Applied: st.applied, Sealed: st.sealed, SealedAt: st.sealedAt, FileBytes: size,
		Expiry: st.expiry, Topics: st.topics, Clients: st.clients,
	}
	timed := false
	for _, k := range slices.Sorted(maps.Keys(st.parts)) {
		p := st.parts[k]
		in.Partitions = append(in.Partitions, p)
		in.Batches += p.Batches
		in.Records += p.Records
		in.RawBytes += p.RawBytes
		in.StoredBytes += p.StoredBytes
		if p.Records > 0 {
			if !timed {
				in.MinTime, in.MaxTime, timed = p.MinTime, p.MaxTime, true
			}
			in.MinTime, in.MaxTime = min(in.MinTime, p.MinTime), max(in.MaxTime, p.MaxTime)
		}
	}
	return in
}

func appendCRC(v []byte) []byte { return le.AppendUint32(v, crc32.Checksum(v, castagnoli)) }

func checkCRC(v []byte, what string) ([]byte, error) {
	if len(v) < 4 {
		return nil, storedError(what + " too short")
	}
	n := len(v) - 4
	if crc32.Checksum(v[:n], castagnoli) != le.Uint32(v[n:]) {
		return nil, storedError(what + ": wrong crc")
	}
	return v[:n], nil
}

package segment

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// Kind is a kind of key in the index of a sealed segment.
type Kind uint8

// The kinds; the numbers are stored.
const (
	kindBatches Kind = 0 // the batches by number, to which the others point
	KindTopic   Kind = 1
	KindClient  Kind = 2
)

// IndexFunc calls yield for every topic and client in body, repeats allowed. key is not kept.
type IndexFunc func(body []byte, yield func(kind Kind, key []byte)) error

// The index has blocks of about 64 KiB, each stored like a batch: compressed, with a CRC. Batches are numbered in the
// order of their keys.
//
//	kind 0: the data keys of 4096 batches, 10 bytes each, so block n/4096 has batch n
//	kind 1, 2: entries in the order of their keys: key length uvarint | key | count uvarint | numbers: uvarint differences
const (
	indexBlock    = 64 << 10
	refsPerBlock  = 4096
	maxIndexBytes = 48 << 20 // of keys and postings in memory while an index is built: 300 000 topics; above, there is none
	indexTx       = 2 << 20  // raw bytes of blocks per transaction
)

// index collects the postings of a segment.
type index struct {
	refs  []byte
	kinds map[Kind]*postings
}

type postings struct {
	keys  map[string]*posting
	bytes int
	over  bool // too many: no index of this kind
}

type posting struct {
	next  uint32 // one more than the last number, 0 when there is none
	count int
	list  []byte
}

func newIndex() *index {
	return &index{kinds: map[Kind]*postings{KindTopic: {keys: map[string]*posting{}}, KindClient: {keys: map[string]*posting{}}}}
}

// add counts the keys of a batch.
func (x *index) add(b *Batch, fn IndexFunc) error {
	n := uint32(len(x.refs) / dataKeySize)
	x.refs = append(x.refs, dataKey(b.Partition, b.Base)...)
	if b.Count == 0 {
		return nil
	}
	return fn(b.Body, func(kind Kind, key []byte) {
		if p := x.kinds[kind]; p != nil {
			p.add(key, n)
		}
	})
}

func (p *postings) add(key []byte, n uint32) {
	if p.over {
		return
	}
	e := p.keys[string(key)]
	if e == nil {
		e = &posting{}
		p.keys[string(key)] = e
		p.bytes += len(key) + 96 // the entry, its map slot and a list
	}
	if e.next == n+1 {
		return // again in the same batch
	}
	before := len(e.list)
	e.list = binary.AppendUvarint(e.list, uint64(n+1-e.next))
	e.next = n + 1
	e.count++
	p.bytes += len(e.list) - before
	if p.bytes > maxIndexBytes {
		p.over, p.keys = true, nil
	}
}

func (p *postings) count() int {
	if p.over {
		return -1
	}
	return len(p.keys)
}

// block is one block of the index, ready to be stored.
type block struct {
	kind   Kind
	number uint32
	count  uint32
	raw    []byte
}

// blocks calls fn for each block. raw is reused.
func (x *index) blocks(fn func(block) error) error {
	for n := 0; n*refsPerBlock*dataKeySize < len(x.refs); n++ {
		raw := x.refs[n*refsPerBlock*dataKeySize:]
		raw = raw[:min(len(raw), refsPerBlock*dataKeySize)]
		if err := fn(block{kindBatches, uint32(n), uint32(len(raw) / dataKeySize), raw}); err != nil {
			return err
		}
	}
	for _, kind := range []Kind{KindTopic, KindClient} {
		p := x.kinds[kind]
		if p.over {
			continue
		}
		b := block{kind: kind}
		for _, key := range slices.Sorted(maps.Keys(p.keys)) {
			e := p.keys[key]
			b.raw = binary.AppendUvarint(b.raw, uint64(len(key)))
			b.raw = append(b.raw, key...)
			b.raw = binary.AppendUvarint(b.raw, uint64(e.count))
			b.raw = append(b.raw, e.list...)
			b.count++
			if len(b.raw) >= indexBlock {
				if err := fn(b); err != nil {
					return err
				}
				b = block{kind: kind, number: b.number + 1, raw: b.raw[:0]}
			}
		}
		if b.count > 0 {
			if err := fn(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// buildIndex reads all batches.
func (s *Segment) buildIndex(ctx context.Context, fn IndexFunc) (*index, error) {
	x := newIndex()
	err := s.each(ctx, func(b Batch) error {
		if err := x.add(&b, fn); err != nil {
			return fmt.Errorf("index partition %d batch %d: %w", b.Partition, b.Base, err)
		}
		return nil
	})
	return x, err
}

// each calls fn for all batches in the order of their keys.
func (s *Segment) each(ctx context.Context, fn func(Batch) error) error {
	st := s.state.Load()
	for _, k := range slices.Sorted(maps.Keys(st.parts)) {
		for at, end := st.parts[k].First, st.parts[k].Next; at < end; {
			if err := ctx.Err(); err != nil {
				return err
			}
			next, err := s.Read(k, at, 4*maxChunk, func(b Batch) error {
				if b.Base >= end {
					return errEnough
				}
				return fn(b)
			})
			if err == errEnough { // our own, unwrapped
				break
			}
			if err != nil {
				return err
			}
			at = next
		}
	}
	return nil
}

// Lookup returns the batches that have a key of the kind that match accepts, by partition and base: read these to see
// all of a topic filter or of a client. match sees every key once, in order. ErrNotSealed and ErrNoIndex mean that all of
// the segment must be read.
func (s *Segment) Lookup(kind Kind, match func(key string) bool) ([]Ref, error) {
	st := s.state.Load()
	switch {
	case !st.sealed:
		return nil, s.wrap("lookup", ErrNotSealed)
	case kind == KindTopic && st.topics < 0, kind == KindClient && st.clients < 0, kind != KindTopic && kind != KindClient:
		return nil, s.wrap("lookup", ErrNoIndex)
	}
	want := map[uint32]struct{}{}
	entries := 0
	for n := uint32(0); ; n++ {
		raw, count, ok, err := s.indexBlock(kind, n)
		if err != nil {
			return nil, s.wrap("lookup", err)
		}
		if !ok {
			break
		}
		entries += count
		if err := scanBlock(raw, match, want); err != nil {
			return nil, s.wrap("lookup", place(s.path, -1, 0, err))
		}
	}
	if expect := map[Kind]int{KindTopic: st.topics, KindClient: st.clients}[kind]; entries != expect {
		return nil, s.wrap("lookup", place(s.path, -1, 0, damaged("index has %d keys, its state says %d", entries, expect)))
	}
	refs, err := s.refs(slices.Sorted(maps.Keys(want)))
	return refs, s.wrap("lookup", err)
}

// refs turns numbers of batches into their keys.
func (s *Segment) refs(numbers []uint32) ([]Ref, error) {
	var refs []Ref
	var raw []byte
	loaded := uint32(math.MaxUint32)
	for _, n := range numbers {
		if b := n / refsPerBlock; b != loaded {
			var err error
			var ok bool
			if raw, _, ok, err = s.indexBlock(kindBatches, b); err != nil {
				return nil, err
			} else if !ok {
				return nil, place(s.path, -1, 0, damaged("index names batch %d", n))
			}
			loaded = b
		}
		at := int(n%refsPerBlock) * dataKeySize
		if at+dataKeySize > len(raw) {
			return nil, place(s.path, -1, 0, damaged("index names batch %d", n))
		}
		r, err := parseDataKey(raw[at : at+dataKeySize])
		if err != nil {
			return nil, place(s.path, -1, 0, err)
		}
		refs = append(refs, r)
	}
	return refs, nil
}

// indexBlock reads one block of the index.
func (s *Segment) indexBlock(kind Kind, n uint32) (raw []byte, count int, ok bool, err error) {
	var v []byte
	err = s.view(func(tx *bolt.Tx) error {
		x := tx.Bucket(bucketIndex)
		k, val := x.Cursor().Seek(indexKey(kind, n))
		if string(k) != string(indexKey(kind, n)) {
			return nil
		}
		var err error
		v, _, err = s.appendValue([]byte{}, tx, x, k, val, math.MaxInt, false)
		return err
	})
	if err != nil || v == nil {
		return nil, 0, false, place(s.path, -1, 0, err)
	}
	b, err := decodeStored(v, s.seal, inIndex)
	if err == nil && (b.Partition != uint16(kind) || b.Base != uint64(n)) {
		err = damaged("index block %d of kind %d says it is %d of %d", n, kind, b.Base, b.Partition)
	}
	return b.Body, int(b.Count), err == nil, place(s.path, -1, 0, err)
}

var errPostings = storedError("index: bad posting")

// scanBlock adds the batches of the accepted keys to want.
func scanBlock(raw []byte, match func(key string) bool, want map[uint32]struct{}) error {
	uvarint := func() (uint64, error) {
		x, n := binary.Uvarint(raw)
		if n <= 0 {
			return 0, errPostings
		}
		raw = raw[n:]
		return x, nil
	}
	for len(raw) > 0 {
		n, err := uvarint()
		if err != nil || n > uint64(len(raw)) {
			return errPostings
		}
		hit := match(string(raw[:n]))
		raw = raw[n:]
		count, err := uvarint()
		if err != nil {
			return err
		}
		for at := uint64(0); count > 0; count-- {
			d, err := uvarint()
			if err != nil {
				return err
			}
			if at += d; at == 0 || at > math.MaxUint32 {
				return errPostings
			}
			if hit {
				want[uint32(at-1)] = struct{}{}
			}
		}
	}
	return nil
}

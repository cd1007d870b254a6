package segment

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"syscall"
)

// tree checks the pages of a bbolt file with plain reads, before bbolt maps it: every page number in range and reached
// once, every key and value inside its page, keys in order. What passes cannot make bbolt fault, recurse or loop.
//
// bbolt's own check will not do: it runs on a goroutine of bbolt, where a memory fault ends the process. So does the scan
// for free pages when a file is opened read-write. The layout (bbolt file version 2, little-endian machines):
//
//	page    id u64 | flags u16 (1 branch, 2 leaf, 4 meta) | count u16 | overflow u32, then elements, then keys and values
//	branch  pos u32 | key size u32 | page u64               leaf  flags u32 (1 bucket) | pos u32 | key size u32 | value size u32
//	bucket  root page u64 (0: a leaf page follows inline) | sequence u64
//	meta    magic u32 | version u32 | page size u32 | flags u32 | root bucket | free list u64 | pages u64 | txid u64 | FNV-1a u64
type tree struct {
	f     io.ReaderAt
	deep  bool // look at the page runs of single batches too
	any   bool // no segment: buckets may be nested and the free list stored
	pages uint64
	free  uint64   // page of the free list
	seen  []uint64 // bit set of reached pages

	meta    map[string][]byte // bucket m
	entries map[string]uint64 // keys per top bucket
	format  format

	metaDamaged bool // one of the two
}

const (
	pageSize     = 4096
	boltMagic    = 0xED0CDAED
	boltVersion  = 2
	noFreelist   = math.MaxUint64
	pageHeader   = 16
	elemSize     = 16
	bucketHeader = 16
	flagBranch   = 1
	flagLeaf     = 2
	flagMeta     = 4
	flagBucket   = 1
	maxNode      = 4096 // pages: 16 MiB, room for the state of 65536 partitions; a damaged length cannot make us allocate more
	maxDepth     = 32   // 2 keys a page at least: 2^32 pages of 4 KiB
)

func damaged(format string, args ...any) error { return storedError(fmt.Sprintf(format, args...)) }

// checkTree checks the file of the given size.
func checkTree(f io.ReaderAt, size int64, deep bool) (*tree, error) {
	t := &tree{f: f, deep: deep, meta: map[string][]byte{}, entries: map[string]uint64{}}
	root, err := t.readMeta(size)
	if err != nil {
		return nil, err
	}
	t.seen = make([]uint64, t.pages/64+1)
	return t, t.walk(root, 0, nil, func(key []byte, flags uint32, value []byte) error {
		if flags != flagBucket {
			return damaged("plain value beside the buckets")
		}
		return t.topBucket(string(key), value)
	})
}

func (t *tree) readMeta(size int64) (root uint64, err error) {
	if size == 0 {
		return 0, storedError("empty file")
	}
	var best []byte
	var newer bool
	for i := range int64(2) {
		p := make([]byte, pageHeader+64)
		if _, err := t.f.ReadAt(p, i*pageSize); err != nil {
			if err == io.EOF {
				return 0, damaged("%d bytes are too short", size)
			}
			return 0, readError(uint64(i), err)
		}
		m := p[pageHeader:]
		if !validMeta(m) {
			t.metaDamaged = true
			continue
		}
		if le.Uint32(m[4:]) != boltVersion {
			newer = true
			continue
		}
		// bbolt does not look at these, but a page that was written elsewhere is none that Write has left here.
		if le.Uint64(p) != uint64(i) || le.Uint16(p[8:]) != flagMeta || le.Uint64(m[48:])%2 != uint64(i) {
			t.metaDamaged = true
		}
		if best == nil || le.Uint64(m[48:]) > le.Uint64(best[48:]) {
			best = m
		}
	}
	switch {
	case best == nil && newer:
		return 0, fmt.Errorf("database version: %w", ErrUnsupported)
	case best == nil:
		return 0, storedError("no valid meta page")
	case le.Uint32(best[8:]) != pageSize && t.any:
		return 0, errPageSize
	case le.Uint32(best[8:]) != pageSize:
		return 0, damaged("page size %d", le.Uint32(best[8:]))
	case le.Uint64(best[32:]) != noFreelist && !t.any:
		return 0, storedError("holds a free list: not written by this gateway")
	}
	t.free, t.pages = le.Uint64(best[32:]), le.Uint64(best[40:])
	if t.pages > uint64(size)/pageSize {
		return 0, damaged("truncated: %d pages in %d bytes", t.pages, size)
	}
	return le.Uint64(best[16:]), nil
}

func validMeta(m []byte) bool {
	h := fnv.New64a()
	_, _ = h.Write(m[:56])
	return le.Uint32(m) == boltMagic && le.Uint64(m[56:]) == h.Sum64()
}

// topBucket walks m, d, t or x.
func (t *tree) topBucket(name string, value []byte) error {
	return t.bucket(value, func(key []byte, flags uint32, v []byte) error {
		t.entries[name]++
		if flags == flagBucket {
			return t.batchRun(v)
		}
		if name == "m" {
			t.meta[string(key)] = bytes.Clone(v)
		}
		return nil
	})
}

type leafFunc func(key []byte, flags uint32, value []byte) error

// bucket walks the bucket whose header, and inline page if it has one, is value.
func (t *tree) bucket(value []byte, fn leafFunc) error {
	if len(value) < bucketHeader {
		return storedError("bucket too short")
	}
	var last []byte
	inOrder := func(key []byte, flags uint32, v []byte) error {
		if last != nil && bytes.Compare(key, last) <= 0 {
			return storedError("keys out of order")
		}
		last = key
		return fn(key, flags, v)
	}
	if root := le.Uint64(value); root != 0 {
		return t.walk(root, 0, nil, inOrder)
	}
	p := value[bucketHeader:]
	if len(p) < pageHeader || le.Uint16(p[8:]) != flagLeaf {
		return storedError("bad inline bucket")
	}
	return t.leaf(p, nil, func(key []byte, flags uint32, v []byte) error {
		if flags != 0 {
			return storedError("bucket in an inline bucket")
		}
		return inOrder(key, 0, v)
	})
}

// batchRun looks at the nested bucket of one batch: its root is a leaf with one element.
func (t *tree) batchRun(value []byte) error {
	if len(value) < bucketHeader {
		return storedError("bucket too short")
	}
	root := le.Uint64(value)
	if !t.deep {
		if root < 2 || root >= t.pages {
			return damaged("page %d out of range", root)
		}
		return nil
	}
	if root == 0 {
		return storedError("batch in an inline bucket")
	}
	r, err := readRun(t.f, root, t.pages)
	if err != nil {
		return err
	}
	return t.mark(root, r.pages)
}

// run is where the value of a batch with a page run of its own lies in the file.
type run struct {
	pages uint64
	off   int64
	size  int
}

// readRun checks the first bytes of the page run that holds one batch.
func readRun(f io.ReaderAt, id, pages uint64) (r run, err error) {
	if id < 2 || id >= pages {
		return r, damaged("page %d out of range", id)
	}
	h := make([]byte, pageHeader+elemSize)
	if _, err := f.ReadAt(h, int64(id)*pageSize); err != nil {
		return r, readError(id, err)
	}
	r.pages = uint64(le.Uint32(h[12:])) + 1
	if le.Uint64(h) != id || le.Uint16(h[8:]) != flagLeaf || le.Uint16(h[10:]) != 1 || r.pages > pages-id {
		return r, damaged("page %d is no batch", id)
	}
	e := h[pageHeader:]
	pos, ks, vs := uint64(le.Uint32(e[4:])), uint64(le.Uint32(e[8:])), uint64(le.Uint32(e[12:]))
	if le.Uint32(e) != 0 || ks != 1 || pos < elemSize || pageHeader+pos+ks+vs > r.pages*pageSize || vs > maxStored {
		return r, damaged("page %d: batch does not fit", id)
	}
	r.off, r.size = int64(id*pageSize+pageHeader+pos+ks), int(vs)
	return r, nil
}

func (t *tree) mark(id, n uint64) error {
	for i := id; i < id+n; i++ {
		if t.seen[i/64]>>(i%64)&1 != 0 {
			return damaged("page %d reached twice", i)
		}
		t.seen[i/64] |= 1 << (i % 64)
	}
	return nil
}

// walk visits the tree below page id. All its keys are at least low.
func (t *tree) walk(id uint64, depth int, low []byte, fn leafFunc) error {
	if id < 2 || id >= t.pages || depth > maxDepth {
		return damaged("page %d out of range", id)
	}
	p := make([]byte, pageSize)
	if _, err := t.f.ReadAt(p, int64(id)*pageSize); err != nil {
		return readError(id, err)
	}
	flags, n := le.Uint16(p[8:]), uint64(le.Uint32(p[12:]))+1
	if le.Uint64(p) != id || flags != flagBranch && flags != flagLeaf || n > t.pages-id || n > maxNode && !t.any {
		return damaged("page %d: bad header", id)
	}
	if err := t.mark(id, n); err != nil {
		return err
	}
	if n > 1 { // all of it: what a value says about itself has to fit
		p = make([]byte, n*pageSize)
		if _, err := t.f.ReadAt(p, int64(id)*pageSize); err != nil {
			return readError(id, err)
		}
	}
	if flags == flagLeaf {
		return at(id, t.leaf(p, low, fn))
	}
	return t.branch(id, p, depth, low, fn)
}

func (t *tree) branch(id uint64, p []byte, depth int, low []byte, fn leafFunc) error {
	count := int(le.Uint16(p[10:]))
	if count == 0 || pageHeader+count*elemSize > len(p) {
		return damaged("page %d: %d elements", id, count)
	}
	var last []byte
	for i := range count {
		o := pageHeader + i*elemSize
		key, err := cut(p, o, le.Uint32(p[o:]), le.Uint32(p[o+4:]))
		if err != nil {
			return at(id, err)
		}
		if bytes.Compare(key, low) < 0 || last != nil && bytes.Compare(key, last) <= 0 {
			return damaged("page %d: keys out of order", id)
		}
		last = key
		if err := t.walk(le.Uint64(p[o+8:]), depth+1, key, fn); err != nil {
			return err
		}
	}
	return nil
}

// leaf visits the elements of a leaf page, which may be inline.
func (t *tree) leaf(p, low []byte, fn leafFunc) error {
	count := int(le.Uint16(p[10:]))
	if pageHeader+count*elemSize > len(p) {
		return damaged("%d elements", count)
	}
	for i := range count {
		o := pageHeader + i*elemSize
		flags, pos, ks, vs := le.Uint32(p[o:]), le.Uint32(p[o+4:]), le.Uint32(p[o+8:]), le.Uint32(p[o+12:])
		key, err := cut(p, o, pos, ks)
		if err != nil {
			return err
		}
		value, err := cut(p, o, pos+ks, vs)
		if err != nil {
			return err
		}
		if flags > flagBucket || len(key) == 0 || uint64(pos)+uint64(ks) > math.MaxUint32 {
			return damaged("element %d", i)
		}
		if bytes.Compare(key, low) < 0 {
			return storedError("keys out of order")
		}
		if err := fn(key, flags, value); err != nil {
			return err
		}
	}
	return nil
}

// cut returns n bytes of p at pos after the element at o.
func cut(p []byte, o int, pos, n uint32) ([]byte, error) {
	from := uint64(o) + uint64(pos)
	if from+uint64(n) > uint64(len(p)) {
		return nil, damaged("element at %d reaches beyond its page", o)
	}
	return p[from : from+uint64(n)], nil
}

func at(id uint64, err error) error {
	if se, ok := err.(storedError); ok {
		return damaged("page %d: %s", id, string(se))
	}
	return err
}

// readError gives an error of a read its meaning: what the disk cannot read any more is damage.
func readError(id uint64, err error) error {
	if err == io.EOF {
		return damaged("page %d is beyond the end", id)
	}
	if errors.Is(err, syscall.EIO) {
		return damaged("page %d cannot be read: %v", id, err)
	}
	return fmt.Errorf("read page %d: %w", id, err)
}

package segment

import (
	"errors"
	"io"
	"os"
)

var errPageSize = errors.New("pages of another size")

// CheckPages checks the pages of any file of bbolt, as Open does those of a segment: what passes cannot make bbolt fault,
// recurse, loop, or write over what is in use. Damage is a *CorruptionError. It reads all pages once. A file of another
// machine, with pages of another size, is not looked at.
func CheckPages(path string) error {
	if os.Getpagesize() != pageSize { // bbolt takes the system's
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return &CorruptionError{Path: path, Partition: -1, Reason: "not a regular file"}
	}
	err = checkPages(f, fi.Size())
	if errors.Is(err, errPageSize) {
		return nil
	}
	return place(path, -1, 0, err)
}

func checkPages(f io.ReaderAt, size int64) error {
	t := &tree{f: f, any: true}
	root, err := t.readMeta(size)
	if err != nil {
		return err
	}
	t.seen = make([]uint64, t.pages/64+1)
	if err := t.walk(root, 0, nil, t.nested(0)); err != nil {
		return err
	}
	if t.free == noFreelist {
		return nil
	}
	return t.freeList()
}

const maxNested = 8

// nested visits buckets in buckets.
func (t *tree) nested(depth int) leafFunc {
	return func(_ []byte, flags uint32, value []byte) error {
		switch {
		case flags != flagBucket:
			return nil
		case depth == maxNested:
			return storedError("buckets too deep")
		}
		return t.bucket(value, t.nested(depth+1))
	}
}

const flagFreelist = 0x10

// freeList checks that no page is free and in use: bbolt would write over it.
func (t *tree) freeList() error {
	if t.free < 2 || t.free >= t.pages {
		return damaged("free list on page %d", t.free)
	}
	h := make([]byte, pageHeader+8)
	if _, err := t.f.ReadAt(h, int64(t.free)*pageSize); err != nil {
		return readError(t.free, err)
	}
	n := uint64(le.Uint32(h[12:])) + 1
	if le.Uint64(h) != t.free || le.Uint16(h[8:]) != flagFreelist || n > t.pages-t.free {
		return damaged("page %d: bad free list", t.free)
	}
	if err := t.mark(t.free, n); err != nil {
		return err
	}
	count, at := uint64(le.Uint16(h[10:])), uint64(pageHeader)
	if count == 0xFFFF { // more than fit into the header
		count, at = le.Uint64(h[pageHeader:]), pageHeader+8
	}
	if count > (n*pageSize-at)/8 {
		return damaged("page %d: free list of %d pages", t.free, count)
	}
	ids := make([]byte, count*8)
	if _, err := t.f.ReadAt(ids, int64(t.free*pageSize+at)); err != nil {
		return readError(t.free, err)
	}
	for ; len(ids) > 0; ids = ids[8:] {
		id := le.Uint64(ids)
		if id < 2 || id >= t.pages {
			return damaged("free page %d out of range", id)
		}
		if err := t.mark(id, 1); err != nil {
			return err
		}
	}
	return nil
}

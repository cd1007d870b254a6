package journal

import (
	"bytes"
	"errors"
	"testing"

	"github.com/forebay-gateway/forebay/spool/vfs/vfstest"
)

// FuzzParseFrame: hostile bytes are refused without a panic, and what is accepted encodes to the same bytes.
func FuzzParseFrame(f *testing.F) {
	good := appendFrame(nil, frame{lsn: 7, synced: 6, time: 1, payload: []byte("payload")})
	sealFrames(good, 1)
	f.Add(good, uint32(1))
	f.Add(good[:40], uint32(1))
	f.Add(good[:31], uint32(1))
	f.Add(make([]byte, blockSize), uint32(0))
	f.Add(append([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1}, make([]byte, 100)...), uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, seed uint32) {
		fr, err := parseFrame(b, seed)
		if err != nil {
			if !errors.Is(err, errNoFrame) && !errors.Is(err, errTorn) {
				t.Fatal(err)
			}
			return
		}
		again := appendFrame(nil, fr)
		sealFrames(again, seed)
		if n := frameHeader + len(fr.payload); !bytes.Equal(again[:n], b[:n]) {
			t.Fatalf("%x, want %x", again[:n], b[:n])
		}
	})
}

// FuzzParseHeader: only what put wrote is read, and as it was written.
func FuzzParseHeader(f *testing.F) {
	b := make([]byte, headerSize)
	header{state: stateInUse, size: 64 << 10, epoch: 1, generation: 2, first: 3, begun: 3, time: 4}.put(b)
	f.Add(b[:headerUsed])
	f.Add(b[:100])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, sum := range []bool{false, true} {
			if sum && len(b) >= headerUsed {
				b = bytes.Clone(b)
				copy(b, magic[:])
				resum(b)
			}
			h, err := parseHeader(b)
			if err != nil {
				if !errors.Is(err, errBadHeader) && !errors.Is(err, ErrUnsupported) {
					t.Fatal(err)
				}
				continue
			}
			again := make([]byte, headerSize)
			h.put(again)
			if g, err := parseHeader(again); err != nil || g != h {
				t.Fatalf("%+v, want %+v: %v", g, h, err)
			}
		}
	})
}

// FuzzScan opens a journal whose two files were changed at will: frames and headers at known places, each with an edit of
// its own. Whatever they hold, only what was appended under an LSN is replayed, in order, and Append goes on.
func FuzzScan(f *testing.F) {
	d := vfstest.NewDisk()
	b := newBook()
	j := openOn(f, d, small())
	for i := range 10 {
		p := string(body("x", 3000*(i%4)))
		first, _ := mustAppend(f, j, p)
		b.acked[first] = p
	}
	j.quiesce()
	j.Close()
	n := d.Ops()

	f.Add([]byte{})
	f.Add([]byte{0, 0, 20, 1})            // a header
	f.Add([]byte{0, 1, 0, 0xff, 0xff, 1}) // a frame
	f.Add([]byte{1, 2, 8, 3, 0, 0, 4, 9}) // two frames
	f.Add([]byte{0xff, 0xff, 0xff, 0, 2, 1})
	f.Fuzz(func(t *testing.T, edits []byte) {
		d := d.Cut(n, vfstest.KeepAll, nil)
		for len(edits) >= 4 { // file, block, offset in the block, bits
			name, off := slotName(uint64(edits[0]%3)+1), int64(edits[1]%16)*blockSize+int64(edits[2])
			flip(t, d, name, off, edits[3])
			edits = edits[4:]
		}
		j, err := tryOpen(d, small())
		if errors.Is(err, ErrUnsupported) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		prev := LSN(0)
		var missing LSN
		err = j.Replay(0, func(lsn LSN, p []byte) error {
			if lsn <= prev || b.acked[lsn] != string(p) {
				t.Fatalf("lsn %d after %d: %.20q", lsn, prev, p)
			}
			missing += lsn - prev - 1
			prev = lsn
			return nil
		})
		loss, _ := errors.AsType[*LossError](err)
		if err != nil && loss == nil {
			t.Fatal(err)
		}
		if missing > 0 && loss == nil {
			t.Fatalf("%d frames are missing and nobody says so", missing)
		}
		if first, _, err := j.Append([]byte("next")); !errors.Is(err, ErrFull) && (err != nil || first <= prev) {
			t.Fatalf("append: lsn %d after %d: %v", first, prev, err)
		}
	})
}

func flip(t *testing.T, d *vfstest.Disk, name string, off int64, bits byte) {
	t.Helper()
	f, err := d.OpenFile(testDir+"/"+name, 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= bits
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
}

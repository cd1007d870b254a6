package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// LSN is a log sequence number: the place of a payload in the journal. The first is 1, and they are dense.
type LSN uint64

const frameHeader = 32

// A frame is one payload.
//
//	 0  4  length of the payload
//	 4  4  CRC32C, seeded with the epoch of the file, of bytes 0..3 and 8..end of the payload
//	 8  8  LSN
//	16  8  synced: highest LSN that was known to be durable when this frame was written
//	24  8  time of the write, Unix nanoseconds
//	32     payload; encrypted it has 16 bytes more, and bytes 0..3 and 8..31 are bound to it
//	       zero to the next multiple of 4096, outside of the checksum
type frame struct {
	lsn     LSN
	synced  LSN
	time    int64
	payload []byte // points into the parsed bytes
	room    int    // appendFrame: bytes behind the payload for the cipher
}

var (
	errNoFrame = errors.New("no frame")
	errStale   = errors.New("frame of an older use")
	errTorn    = errors.New("torn frame")
)

// span is what a payload of n bytes takes in a file.
func span(n int) int64 { return (frameHeader + int64(n) + blockSize - 1) &^ (blockSize - 1) }

// seedOf is where the checksums of a file with this epoch start.
func seedOf(epoch uint64) uint32 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], epoch)
	return crc32.Checksum(b[:], castagnoli)
}

// appendFrame appends fr to dst, without its checksum.
func appendFrame(dst []byte, fr frame) []byte {
	n := len(dst)
	length := len(fr.payload) + fr.room
	dst = binary.LittleEndian.AppendUint32(dst, uint32(length))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(fr.lsn))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(fr.synced))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(fr.time))
	dst = append(append(dst, fr.payload...), zeros[:fr.room]...)
	return append(dst, zeros[:n+int(span(length))-len(dst)]...)
}

var zeros [blockSize]byte

// sealFrames sets the checksums of the frames in b for a file with this seed. b holds whole frames, made by appendFrame.
func sealFrames(b []byte, seed uint32) {
	for len(b) > 0 {
		n := int(binary.LittleEndian.Uint32(b))
		binary.LittleEndian.PutUint32(b[4:], checksum(b, n, seed))
		b = b[span(n):]
	}
}

func checksum(b []byte, n int, seed uint32) uint32 {
	return crc32.Update(crc32.Update(seed, castagnoli, b[:4]), castagnoli, b[8:frameHeader+n])
}

// peekFrame reads the length and the LSN of what may be a frame at the start of b. Nothing is checked but that it would
// end within limit bytes; a frame of only zeros is none.
func peekFrame(b []byte, limit int64) (length int, lsn LSN, err error) {
	if len(b) < frameHeader {
		return 0, 0, errNoFrame
	}
	n := int64(binary.LittleEndian.Uint32(b))
	lsn = LSN(binary.LittleEndian.Uint64(b[8:]))
	if lsn == 0 {
		return 0, 0, errNoFrame
	}
	if n > limit || span(int(n)) > limit {
		return 0, 0, fmt.Errorf("%w: length %d", errTorn, n)
	}
	return int(n), lsn, nil
}

// parseFrame checks and reads the frame at the start of b. It never looks beyond b and never allocates.
func parseFrame(b []byte, seed uint32) (frame, error) {
	n, lsn, err := peekFrame(b, int64(len(b)))
	if err != nil {
		return frame{}, err
	}
	if got, want := checksum(b, n, seed), binary.LittleEndian.Uint32(b[4:]); got != want {
		return frame{}, fmt.Errorf("%w: lsn %d, checksum %08x, want %08x", errTorn, lsn, got, want)
	}
	synced := LSN(binary.LittleEndian.Uint64(b[16:]))
	if synced >= lsn {
		return frame{}, fmt.Errorf("%w: lsn %d, synced %d", errTorn, lsn, synced)
	}
	return frame{
		lsn:     lsn,
		synced:  synced,
		time:    int64(binary.LittleEndian.Uint64(b[24:])),
		payload: b[frameHeader : frameHeader+n],
	}, nil
}

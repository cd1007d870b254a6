package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

const (
	blockSize   = 4096      // unit of allocation inside a file: a page, and at least the largest sector in use
	headerSize  = blockSize // frames start here
	headerUsed  = 512       // all of the header's content lies in one sector, so a power cut leaves the old or the new one
	version     = 1
	versionSeal = 2 // the payloads are encrypted

	maxLSN LSN = 1 << 62 // a million groups a second last 146,000 years; sums of LSNs cannot overflow
)

var (
	magic      = [8]byte{'F', 'B', 'J', 'O', 'U', 'R', 'N', '\n'}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)

	errBadHeader = errors.New("bad header")
)

// state of a file as its header tells it.
type state uint8

const (
	stateFree  state = 1 // holds nothing; what follows the header is of older uses
	stateInUse state = 2
)

// header is the first block of a file.
//
//	 0  8  magic "FBJOURN\n"
//	 8  2  version                      all versions keep magic, version and checksum where they are, so that
//	10  1  state                        a newer file can be told from a damaged one
//	11  5  zero
//	16  8  size of the file
//	24  8  epoch
//	32  8  generation
//	40  8  first LSN
//	48  8  time of this use, Unix nanoseconds
//	56  8  last LSN of the first write  zero in a free file
//	64  2  length of the sealer's parameters, then these; version 2 only
//	       zero
//	508 4  CRC32C of bytes 0..507
//	512    zero to 4096
//
// All numbers are little endian.
type header struct {
	state state
	size  int64

	// epoch is random, new at each use, and seeds the checksum of the frames.
	epoch uint64

	// generation rises by one with each use of any file of the journal. A free file keeps that of its last use.
	generation uint64

	// first is the LSN of the first frame. All LSNs below it were durable, in other files, before this header was
	// written. In a free file: LSNs below it were used.
	first LSN

	time int64

	// begun is the last LSN of the write that carried this header. If these frames are not all there, the write was
	// never synced.
	begun LSN

	seal string // parameters of the Sealer, "" when the payloads are not encrypted
}

// put writes h into the block b.
func (h header) put(b []byte) {
	b = b[:headerSize]
	clear(b)
	copy(b, magic[:])
	binary.LittleEndian.PutUint16(b[8:], version)
	if h.seal != "" {
		binary.LittleEndian.PutUint16(b[8:], versionSeal)
		binary.LittleEndian.PutUint16(b[64:], uint16(len(h.seal)))
		copy(b[66:], h.seal)
	}
	b[10] = byte(h.state)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.size))
	binary.LittleEndian.PutUint64(b[24:], h.epoch)
	binary.LittleEndian.PutUint64(b[32:], h.generation)
	binary.LittleEndian.PutUint64(b[40:], uint64(h.first))
	binary.LittleEndian.PutUint64(b[48:], uint64(h.time))
	binary.LittleEndian.PutUint64(b[56:], uint64(h.begun))
	binary.LittleEndian.PutUint32(b[headerUsed-4:], crc32.Checksum(b[:headerUsed-4], castagnoli))
}

// parseHeader reads the header of a file from its first sector. The error is ErrUnsupported or errBadHeader.
func parseHeader(b []byte) (header, error) {
	if len(b) < headerUsed {
		return header{}, fmt.Errorf("%w: file of %d bytes", errBadHeader, len(b))
	}
	if !bytes.Equal(b[:8], magic[:]) {
		return header{}, fmt.Errorf("%w: no journal file", errBadHeader)
	}
	if got, want := crc32.Checksum(b[:headerUsed-4], castagnoli), binary.LittleEndian.Uint32(b[headerUsed-4:]); got != want {
		return header{}, fmt.Errorf("%w: checksum %08x, want %08x", errBadHeader, got, want)
	}
	v := binary.LittleEndian.Uint16(b[8:])
	if v != version && v != versionSeal {
		return header{}, fmt.Errorf("%w %d, this program knows %d", ErrUnsupported, v, versionSeal)
	}
	h := header{
		state:      state(b[10]),
		size:       int64(binary.LittleEndian.Uint64(b[16:])),
		epoch:      binary.LittleEndian.Uint64(b[24:]),
		generation: binary.LittleEndian.Uint64(b[32:]),
		first:      LSN(binary.LittleEndian.Uint64(b[40:])),
		time:       int64(binary.LittleEndian.Uint64(b[48:])),
		begun:      LSN(binary.LittleEndian.Uint64(b[56:])),
	}
	if v == versionSeal {
		n := int(binary.LittleEndian.Uint16(b[64:]))
		if n == 0 || n > maxSeal {
			return header{}, fmt.Errorf("%w: %d bytes of encryption parameters", errBadHeader, n)
		}
		h.seal = string(b[66 : 66+n])
	}
	if h.state != stateFree && h.state != stateInUse || h.size < headerSize || h.size > maxFileSize ||
		h.first == 0 || h.first > maxLSN {
		return header{}, fmt.Errorf("%w: state %d, size %d, first %d", errBadHeader, h.state, h.size, h.first)
	}
	if h.state == stateInUse && (h.begun < h.first || h.begun > maxLSN) {
		return header{}, fmt.Errorf("%w: first %d, begun %d", errBadHeader, h.first, h.begun)
	}
	return h, nil
}

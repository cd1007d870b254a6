package segment

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/forebay-gateway/forebay/spool/crypt"
)

// A stored batch. The first 8 bytes and what the CRC covers are the same in every version to come, so that damage and a
// newer format can be told apart.
//
//	 0        1        2        3        4                 8                12
//	+--------+--------+--------+--------+-----------------+-----------------+----------------+
//	| version| codec  | cipher | flags  | CRC32C of 0..4  | stored length   | raw length     |
//	|   1    | 0,1,2  |  0, 1  |   0    | and 8..end, u32 | u32             | u32            |
//	+--------+--------+--------+--------+-----------------+-----------------+----------------+
//	16: base u64    24: next u64    32: count u32    36: partition u16    38: zero u16
//	40: never u32   44: key id u32, 0 with cipher 0
//	48: min time i64    56: max time i64    64: min expiry i64    72: max expiry i64
//	80: body, stored length bytes
//
// All integers are little-endian. With cipher 1 (AES-256-GCM, see package crypt) the body is a nonce of 12 bytes, the
// encrypted compressed body, and a tag of 16 bytes; the header, with a CRC of 0, and the bucket it lies in are authenticated
// too. The CRC is that of what is stored, so that damage is found without the key.
const (
	storedVersion = 1
	headerSize    = 80
	maxStored     = headerSize + MaxBody + crypt.Overhead // compress falls back to the raw body

	cipherNone = 0
	cipherGCM  = 1
)

// The buckets that a stored batch is bound to when it is encrypted: a block of the index cannot pass for a batch.
const (
	inData  = 'd'
	inIndex = 'x'
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	le         = binary.LittleEndian
)

func storedCRC(v []byte) uint32 {
	return crc32.Update(crc32.Checksum(v[:4], castagnoli), castagnoli, v[8:])
}

// appendStored appends the stored form of b to dst, encrypted unless seal is nil.
func appendStored(dst []byte, b *Batch, c Codec, seal *crypt.Cipher, bucket byte) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, headerSize)...)
	var plain []byte
	if seal == nil {
		dst, c = compress(dst, c, b.Body)
	} else {
		scratch := scratchPool.Get().(*[]byte)
		defer scratchPool.Put(scratch)
		plain, c = compress((*scratch)[:0], c, b.Body)
		*scratch = plain
		dst = slices.Grow(dst, len(plain)+crypt.Overhead)
	}
	h := dst[at:]
	h[0], h[1] = storedVersion, byte(c)
	le.PutUint32(h[8:], uint32(len(h)-headerSize))
	le.PutUint32(h[12:], uint32(len(b.Body)))
	le.PutUint64(h[16:], b.Base)
	le.PutUint64(h[24:], b.Next)
	le.PutUint32(h[32:], b.Count)
	le.PutUint16(h[36:], b.Partition)
	le.PutUint32(h[40:], b.Never)
	le.PutUint64(h[48:], uint64(b.MinTime))
	le.PutUint64(h[56:], uint64(b.MaxTime))
	le.PutUint64(h[64:], uint64(b.MinExpiry))
	le.PutUint64(h[72:], uint64(b.MaxExpiry))
	if seal != nil {
		h[2] = cipherGCM
		le.PutUint32(h[44:], seal.KeyID())
		le.PutUint32(h[8:], uint32(len(plain)+crypt.Overhead))
		dst = seal.Seal(dst, plain, bound(h, bucket))
		h = dst[at:]
	}
	le.PutUint32(h[4:], storedCRC(h))
	return dst
}

// scratchPool has buffers for what is compressed and not, or no longer, encrypted.
var scratchPool = sync.Pool{New: func() any { return new([]byte) }}

// bound is what an encrypted body is bound to: its header without the CRC, and its bucket.
func bound(h []byte, bucket byte) []byte {
	aad := append(make([]byte, 0, headerSize+1), h[:headerSize]...)
	le.PutUint32(aad[4:], 0)
	return append(aad, bucket)
}

// storedError is damage whose place the caller knows.
type storedError string

func (e storedError) Error() string { return string(e) }

// parseHeader reads the header of a stored batch without checking its CRC. rawLen is bounded by MaxBody.
func parseHeader(v []byte) (b Batch, rawLen int, err error) { return parseHeaderOf(v, uint64(len(v))) }

// parseHeaderOf is parseHeader for a value of size bytes of which v is at least the header.
func parseHeaderOf(v []byte, size uint64) (b Batch, rawLen int, err error) {
	if len(v) < headerSize {
		return b, 0, storedError(fmt.Sprintf("%d bytes are no batch", len(v)))
	}
	if v[0] != storedVersion {
		return b, 0, fmt.Errorf("batch version %d: %w", v[0], ErrUnsupported)
	}
	if v[2] > cipherGCM || (v[2] == cipherNone) != (le.Uint32(v[44:]) == 0) {
		return b, 0, fmt.Errorf("cipher %d, key id %d: %w", v[2], le.Uint32(v[44:]), ErrUnsupported)
	}
	if v[1] > byte(CodecZstd) {
		return b, 0, fmt.Errorf("%v: %w", Codec(v[1]), ErrUnsupported)
	}
	if v[3] != 0 || le.Uint16(v[38:]) != 0 {
		return b, 0, fmt.Errorf("flags %#x: %w", v[3], ErrUnsupported)
	}
	if stored := le.Uint32(v[8:]); uint64(stored)+headerSize != size {
		return b, 0, storedError(fmt.Sprintf("stored length %d, the batch has %d bytes", stored, size))
	}
	raw := le.Uint32(v[12:])
	if raw > MaxBody {
		return b, 0, storedError(fmt.Sprintf("raw length %d", raw))
	}
	b = Batch{
		Partition:   le.Uint16(v[36:]),
		Base:        le.Uint64(v[16:]),
		Next:        le.Uint64(v[24:]),
		Count:       le.Uint32(v[32:]),
		Never:       le.Uint32(v[40:]),
		MinTime:     int64(le.Uint64(v[48:])),
		MaxTime:     int64(le.Uint64(v[56:])),
		MinExpiry:   int64(le.Uint64(v[64:])),
		MaxExpiry:   int64(le.Uint64(v[72:])),
		StoredBytes: int(size),
		Codec:       Codec(v[1]),
		KeyID:       le.Uint32(v[44:]),
	}
	return b, int(raw), nil
}

// decodeStored checks v and returns the batch with a body of its own. The CRC comes first: what fails it is damaged, what
// passes it and is not understood is newer. In a file that is encrypted (seal is not nil) everything has to be.
func decodeStored(v []byte, seal *crypt.Cipher, bucket byte) (Batch, error) {
	if len(v) < headerSize {
		return Batch{}, storedError(fmt.Sprintf("%d bytes are no batch", len(v)))
	}
	if want, got := le.Uint32(v[4:]), storedCRC(v); want != got {
		return Batch{}, storedError(fmt.Sprintf("crc %08x, stored %08x", got, want))
	}
	b, rawLen, err := parseHeader(v)
	if err != nil {
		return Batch{}, err
	}
	body := v[headerSize:]
	if b.KeyID != seal.KeyID() {
		return Batch{}, storedError(fmt.Sprintf("encrypted with key %d in a file of key %d", b.KeyID, seal.KeyID()))
	}
	if seal != nil {
		scratch := scratchPool.Get().(*[]byte)
		defer scratchPool.Put(scratch)
		if body, err = seal.Open((*scratch)[:0], body, bound(v, bucket)); err != nil {
			return Batch{}, storedError(err.Error())
		}
		*scratch = body
	}
	if b.Body, err = decompress(b.Codec, body, rawLen); err != nil {
		return Batch{}, storedError(fmt.Sprintf("%v body: %v", b.Codec, err))
	}
	return b, nil
}

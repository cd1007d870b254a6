package segment

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Codec compresses bodies.
type Codec uint8

// The codecs; the numbers are stored.
const (
	CodecNone Codec = 0
	CodecS2   Codec = 1 // about half the size of JSON telemetry, 1 GB/s
	CodecZstd Codec = 2 // about a quarter, 0.3 GB/s
)

var codecNames = [...]string{CodecNone: "none", CodecS2: "s2", CodecZstd: "zstd"}

func (c Codec) String() string {
	if int(c) < len(codecNames) {
		return codecNames[c]
	}
	return fmt.Sprintf("codec(%d)", uint8(c))
}

// ParseCodec turns "none", "s2" or "zstd" into a Codec.
func ParseCodec(name string) (Codec, error) {
	for i, n := range codecNames {
		if n == name {
			return Codec(i), nil
		}
	}
	return 0, fmt.Errorf("codec %q: want none, s2 or zstd", name)
}

// minCompress is the size from which compression is tried: a zstd frame of one 365 B record saves a quarter at 54 MB/s.
const minCompress = 512

// One encoder and one decoder serve all segments: each holds buffers of a few MiB.
var (
	zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2),
			zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
		if err != nil {
			panic("BUG: zstd encoder: " + err.Error())
		}
		return e
	})
	zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(MaxBody),
			zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderLowmem(true))
		if err != nil {
			panic("BUG: zstd decoder: " + err.Error())
		}
		return d
	})
)

// compress appends the compressed body to dst and returns the codec that was really used: none when it does not shrink.
func compress(dst []byte, c Codec, body []byte) ([]byte, Codec) {
	if len(body) < minCompress {
		c = CodecNone
	}
	n := len(dst)
	switch c {
	case CodecS2:
		if cap(dst)-n < s2.MaxEncodedLen(len(body)) {
			grown := make([]byte, n, n+s2.MaxEncodedLen(len(body)))
			copy(grown, dst)
			dst = grown
		}
		out := s2.Encode(dst[n:cap(dst)], body)
		dst = dst[:n+len(out)]
	case CodecZstd:
		dst = zstdEncoder().EncodeAll(body, dst)
	}
	if c == CodecNone || len(dst)-n >= len(body) {
		return append(dst[:n], body...), CodecNone
	}
	return dst, c
}

var errLength = errors.New("body has not the length that its header says")

// decompress returns a fresh slice of exactly rawLen bytes. rawLen is at most MaxBody: more is never allocated, whatever
// the stored bytes claim.
func decompress(c Codec, stored []byte, rawLen int) ([]byte, error) {
	var out []byte
	var err error
	switch c {
	case CodecNone:
		if len(stored) != rawLen {
			return nil, errLength
		}
		return append([]byte(nil), stored...), nil
	case CodecS2:
		n, lerr := s2.DecodedLen(stored)
		if lerr != nil || n != rawLen {
			return nil, errors.Join(errLength, lerr)
		}
		out, err = s2.Decode(make([]byte, rawLen), stored)
	case CodecZstd:
		var h zstd.Header // EncodeAll writes the size: look before memory for it is taken
		if herr := h.Decode(stored); herr != nil || !h.HasFCS || h.FrameContentSize != uint64(rawLen) {
			return nil, errors.Join(errLength, herr)
		}
		out, err = zstdDecoder().DecodeAll(stored, make([]byte, 0, rawLen))
	default:
		return nil, fmt.Errorf("%w: %v", ErrUnsupported, c)
	}
	if err != nil {
		return nil, err
	}
	if len(out) != rawLen {
		return nil, errLength
	}
	return out, nil
}

package segment

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/s2"
)

func TestStoredBatchEveryByteCounts(t *testing.T) {
	b := batch(rand.New(rand.NewPCG(1, 1)), 2, 17, 20)
	for c := CodecNone; c <= CodecZstd; c++ {
		v := appendStored(nil, &b, c, nil, inData)
		got, err := decodeStored(v, nil, inData)
		if err != nil || !same(got, b) || got.Codec != c {
			t.Fatalf("%v: %v", c, err)
		}
		for i := range v {
			v[i] ^= 0x10
			var se storedError
			if _, err := decodeStored(v, nil, inData); !errors.As(err, &se) {
				t.Fatalf("%v: byte %d changed: %v", c, i, err)
			}
			v[i] ^= 0x10
		}
		for i := range v {
			if _, err := decodeStored(v[:i], nil, inData); err == nil {
				t.Fatalf("%v: cut at %d", c, i)
			}
		}
	}
}

func TestSmallAndIncompressibleBodiesAreStoredRaw(t *testing.T) {
	f := func(body []byte, want Codec) {
		t.Helper()
		for _, c := range []Codec{CodecS2, CodecZstd} {
			b := Batch{Base: 1, Next: 2, Count: 1, Body: body}
			got, err := decodeStored(appendStored([]byte("before"), &b, c, nil, inData)[6:], nil, inData)
			if err != nil || !bytes.Equal(got.Body, body) {
				t.Errorf("%d bytes: %v", len(body), err)
			}
			if want == CodecNone && got.Codec != CodecNone || want != CodecNone && got.Codec != c {
				t.Errorf("%d bytes with %v: stored as %v", len(body), c, got.Codec)
			}
		}
	}
	noise := make([]byte, 5000)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	f(nil, CodecNone)
	f(bytes.Repeat([]byte("a"), minCompress-1), CodecNone)
	f(bytes.Repeat([]byte("a"), minCompress), CodecZstd)
	f(noise, CodecNone)
}

// craft changes a stored batch and makes its CRC right again, as another version or an attacker would.
func craft(v []byte, change func([]byte)) []byte {
	v = bytes.Clone(v)
	change(v)
	le.PutUint32(v[4:], storedCRC(v))
	return v
}

func TestUnknownIsUnsupportedNotCorrupt(t *testing.T) {
	b := batch(rand.New(rand.NewPCG(1, 1)), 2, 17, 20)
	v := appendStored(nil, &b, CodecZstd, nil, inData)
	for name, change := range map[string]func([]byte){
		"version": func(v []byte) { v[0] = 2 },
		"codec":   func(v []byte) { v[1] = 3 },
		"cipher":  func(v []byte) { v[2] = 1 },
		"flags":   func(v []byte) { v[3] = 1 },
		"key id":  func(v []byte) { v[44] = 1 },
	} {
		var se storedError
		if _, err := decodeStored(craft(v, change), nil, inData); !errors.Is(err, ErrUnsupported) || errors.As(err, &se) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecompressionIsBounded(t *testing.T) {
	huge := make([]byte, MaxBody+1)
	for _, c := range []Codec{CodecS2, CodecZstd} {
		var stored []byte
		if c == CodecS2 {
			stored = s2.Encode(nil, huge)
		} else {
			stored = zstdEncoder().EncodeAll(huge, nil)
		}
		for _, raw := range []uint32{10, MaxBody, MaxBody + 1, 1<<32 - 1} {
			v := craft(append(make([]byte, headerSize), stored...), func(v []byte) {
				v[0], v[1] = storedVersion, byte(c)
				le.PutUint32(v[8:], uint32(len(stored)))
				le.PutUint32(v[12:], raw)
			})
			var se storedError
			if _, err := decodeStored(v, nil, inData); !errors.As(err, &se) {
				t.Errorf("%v, raw length %d: %v", c, raw, err)
			}
		}
	}
}

func FuzzDecodeStored(f *testing.F) {
	b := batch(rand.New(rand.NewPCG(1, 1)), 2, 17, 20)
	for c := CodecNone; c <= CodecZstd; c++ {
		f.Add(appendStored(nil, &b, c, nil, inData), true)
	}
	f.Fuzz(func(t *testing.T, v []byte, fix bool) {
		if fix && len(v) >= headerSize { // else the CRC stops almost everything
			le.PutUint32(v[4:], storedCRC(v))
			le.PutUint32(v[8:], uint32(len(v)-headerSize))
			le.PutUint32(v[4:], storedCRC(v))
		}
		got, err := decodeStored(v, nil, inData)
		if err != nil {
			return
		}
		if len(got.Body) > MaxBody {
			t.Fatalf("%d bytes", len(got.Body))
		}
		again, err := decodeStored(appendStored(nil, &got, got.Codec, nil, inData), nil, inData)
		if err != nil || !bytes.Equal(again.Body, got.Body) {
			t.Fatal(err)
		}
	})
}

func FuzzState(f *testing.F) {
	st := newState(5)
	b := batch(rand.New(rand.NewPCG(1, 1)), 2, 17, 20)
	_ = st.add(&b, 100)
	f.Add(st.encode())
	f.Add(format{stream: "plant", sequence: 3}.encode())
	f.Fuzz(func(t *testing.T, v []byte) {
		for _, v := range [][]byte{v, appendCRC(bytes.Clone(v))} {
			if st, err := decodeState(v, 5); err == nil {
				if _, err := decodeState(st.encode(), 5); err != nil {
					t.Fatal(err)
				}
			}
			_, _ = decodeFormat(v)
		}
		_ = scanBlock(v, func(string) bool { return true }, map[uint32]struct{}{})
	})
}

func FuzzCheckTree(f *testing.F) {
	f.Add(uint32(0), []byte{1})
	f.Add(uint32(4096*3+8), []byte{1, 0, 2, 0})
	var base []byte
	f.Fuzz(func(t *testing.T, at uint32, with []byte) {
		if base == nil {
			base = smallFile(t)
		}
		v := bytes.Clone(base)
		copy(v[int(at)%len(v):], with)
		_, _ = checkTree(bytes.NewReader(v), int64(len(v)), true)
	})
}

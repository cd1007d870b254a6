package mqtt

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// However a stream is cut into writes, no piece holds the end of one packet and the start of the next.
func TestPacketCutterCutsAtTheEndsOfPackets(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	var stream []byte
	ends := map[int]bool{}
	for _, size := range []int{0, 1, 2, 126, 127, 128, 129, 0, 0, 16383, 16384, 70000, 0, 3} {
		stream = binary.AppendUvarint(append(stream, 0x30), uint64(size))
		stream = append(stream, bytes.Repeat([]byte{0x80}, size)...)
		ends[len(stream)] = true
	}
	for range 200 {
		var c packetCutter
		most := []int{1, 2, 7, 500, 100000}[rnd.IntN(5)]
		found := map[int]bool{}
		for at := 0; at < len(stream); {
			write := stream[at:min(len(stream), at+1+rnd.IntN(most))]
			for len(write) > 0 {
				n := c.next(write)
				for end := at + 1; end < at+n; end++ {
					if ends[end] {
						t.Fatalf("seed %d: a piece from %d to %d holds the end of a packet at %d", seed, at, at+n, end)
					}
				}
				at += n
				write = write[n:]
				if len(write) > 0 {
					found[at] = true
				}
			}
			if ends[at] {
				found[at] = true
			}
		}
		if len(found) != len(ends) {
			t.Fatalf("seed %d: %d pieces, want %d", seed, len(found), len(ends))
		}
	}
}

package kafka

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Arena is memory for the small pieces of messages that are made one after the other: a few messages share an allocation, which
// is kept until the last of them is gone. It belongs to one goroutine at a time. The zero Arena is ready.
type Arena struct {
	headers slabs[kgo.RecordHeader]
	bytes   slabs[byte]
	grows   bool // that of a Block, which is kept as a whole
}

// The sizes of an arena's slabs: the work of about a dozen messages, so that a message that waits keeps no more than that; doubling
// in one that grows.
const (
	firstHeaders, mostHeaders = 64, 8 << 10
	firstBytes, mostBytes     = 1 << 10, 256 << 10
)

// Bytes is room for n bytes: an empty slice of that capacity.
func (a *Arena) Bytes(n int) []byte { return a.bytes.take(n, firstBytes, mostBytes, a.grows) }

func (a *Arena) headersFor(n int) []kgo.RecordHeader {
	return a.headers.take(n, firstHeaders, mostHeaders, a.grows)
}

// slabs are pieces of memory that are cut up in order.
type slabs[T any] struct {
	all  [][]T
	at   int // the slab in hand
	used int // of it
}

func (s *slabs[T]) take(n, first, most int, grows bool) []T {
	for s.at < len(s.all) {
		if slab := s.all[s.at]; n <= len(slab)-s.used {
			piece := slab[s.used : s.used : s.used+n]
			s.used += n
			return piece
		}
		if s.at+1 == len(s.all) {
			break
		}
		s.at, s.used = s.at+1, 0
	}
	size := first
	if grows && len(s.all) > 0 {
		size = min(2*len(s.all[len(s.all)-1]), most)
	}
	if n > size/4 {
		return make([]T, 0, n)
	}
	if !grows {
		s.all = s.all[:0]
	}
	s.all = append(s.all, make([]T, size))
	s.at, s.used = len(s.all)-1, n
	return s.all[s.at][0:0:n]
}

// reset takes everything back, and reports what was used and what there is.
func (s *slabs[T]) reset() (used, have int) {
	for i, slab := range s.all {
		have += len(slab)
		switch {
		case i < s.at:
			clear(slab)
			used += len(slab)
		case i == s.at:
			clear(slab[:s.used])
			used += s.used
		}
	}
	s.at, s.used = 0, 0
	return used, have
}

// Block is the memory of a flight's messages. A flight of a thousand takes half a megabyte, and there are hundreds of them a second: it is
// used again when all of them are acknowledged, and what lies beside each other in it leaves one after the other.
type Block struct {
	Arena
	messages []Message
}

var blocks = sync.Pool{New: func() any { return &Block{Arena: Arena{grows: true}} }}

// NewBlock is an empty one, maybe used before.
func NewBlock() *Block { return blocks.Get().(*Block) }

// Messages is where messages are appended to: an empty slice.
func (b *Block) Messages() []Message { return b.messages[:0] }

// Release takes the memory back from msgs, which were made in b. Nobody may look at them any more.
func (b *Block) Release(msgs []Message) {
	clear(msgs)
	b.messages = msgs[:0]
	used, have := b.headers.reset()
	usedBytes, haveBytes := b.bytes.reset()
	// What a rush has left behind is not kept for a trickle.
	if 8*len(msgs) >= cap(msgs) && 8*used >= have && 8*usedBytes >= haveBytes {
		blocks.Put(b)
	}
}

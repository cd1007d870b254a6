package kafka

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// fill makes messages in a block, each with its number in every piece of it.
func fill(b *Block, n int) []Message {
	msgs := b.Messages()
	for i := range n {
		msgs = append(msgs, Message{})
		piece := append(b.Bytes(12), fmt.Sprintf("%012d", i)...)
		b.NewMessage(&msgs[i], uint64(i), piece, piece, time.Time{}, 2)
		msgs[i].AddHeader("a", piece)
		msgs[i].AddHeader("b", piece)
	}
	return msgs
}

func TestMessagesOfABlockShareNothing(t *testing.T) {
	b := NewBlock()
	for _, n := range []int{1, 3000, 2, 500, 3000} { // grown, and used again
		msgs := fill(b, n)
		for i := range msgs {
			want := fmt.Appendf(nil, "%012d", i)
			pieces := [][]byte{msgs[i].Key(), msgs[i].Value()}
			msgs[i].Headers(func(_ string, value []byte) { pieces = append(pieces, value) })
			if len(pieces) != 4 {
				t.Fatalf("message %d of %d has %d pieces, want 4", i, n, len(pieces))
			}
			for _, p := range pieces {
				if !bytes.Equal(p, want) {
					t.Fatalf("message %d of %d has %q", i, n, p)
				}
			}
		}
		b.Release(msgs)
	}
}

func TestReleasedBlockHoldsNoRecord(t *testing.T) {
	b := NewBlock()
	msgs := fill(b, 2000)
	b.Release(msgs)
	for i := range msgs {
		if msgs[i].Value() != nil || msgs[i].rec.Headers != nil {
			t.Fatalf("message %d is still there", i)
		}
	}
	for _, slab := range b.headers.all {
		for i := range slab {
			if slab[i].Value != nil {
				t.Fatal("a header is still there")
			}
		}
	}
}

// A Kafka record as the protocol writes it, inside a batch, is never larger than what the message says.
func TestWireSizeIsAnUpperBound(t *testing.T) {
	f := func(key, value, header, headers int) {
		t.Helper()
		var a Arena
		var m Message
		r := kmsg.NewRecord()
		r.TimestampDelta64, r.OffsetDelta, r.Length = 1<<62, 1<<31-1, 1<<31-1
		r.Key, r.Value = make([]byte, key), make([]byte, value)
		a.NewMessage(&m, 1, r.Key, r.Value, time.Time{}, headers)
		for range headers {
			h := kmsg.NewHeader()
			h.Key, h.Value = string(make([]byte, header)), make([]byte, header)
			m.AddHeader(h.Key, h.Value)
			r.Headers = append(r.Headers, h)
		}
		if got := len(r.AppendTo(nil)); got > m.WireSize() {
			t.Errorf("key %d, value %d, %d headers of %d: %d bytes, more than %d", key, value, headers, header, got, m.WireSize())
		}
	}
	f(0, 0, 0, 0)
	f(0, 0, 0, 300)
	f(1, 1<<20, 1<<17, 3)
	for range 200 {
		f(rand.IntN(1<<10), rand.IntN(1<<18), rand.IntN(1<<9), rand.IntN(40))
	}
}

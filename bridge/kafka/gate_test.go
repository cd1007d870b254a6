package kafka

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A broker that refuses the beginning of each flight while the rest is being appended: behind the gate nothing of the rest
// gets through, whether the broker knows the producer already or not. The control without the gate shows that the test
// would see it.
func TestGateKeepsRefusedFlightsWhole(t *testing.T) {
	torn := func(off, known bool, flights int) uint64 {
		var n uint64
		synctest.Test(t, func(t *testing.T) {
			b := newBedWith(t, Options{eager: true}, kfake.SeedTopics(1, "t"))
			defer b.end()
			b.c.gate.off = off
			bad := binary.BigEndian.AppendUint64(nil, 1<<40)
			b.cluster.Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: -1,
				When: func(req kmsg.Request) bool {
					return bytes.Contains(req.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records, bad)
				},
			})
			topic := b.c.Topic("t", nil)
			if known {
				if _, r, _ := b.send("t", messages(0, 10), time.Minute); r.Acked != 10 {
					t.Fatalf("the first flight: %+v", r)
				}
			}
			for i := 0; i < flights && n == 0; i++ {
				done := make(chan Result)
				f := &Flight{Topic: topic, Messages: messages(1<<40, 750), Done: func(_ *Flight, r Result) { done <- r }}
				b.c.Ship(f)
				if r := <-done; r.Acked != 0 {
					t.Fatalf("%d acknowledged behind the refused one", r.Acked)
				}
				n = b.c.Status().Torn
			}
		})
		return n
	}
	for _, known := range []bool{true, false} {
		if n := torn(false, known, 300); n != 0 {
			t.Errorf("known %v: %d torn records behind the gate", known, n)
		}
	}
	if n := torn(true, true, 3000); n == 0 {
		t.Error("none torn without the gate: the test does not see what it is for")
	}
}

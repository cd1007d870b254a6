package kafka

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A broker that refuses the beginning of each flight while the rest is being appended: behind the gate nothing of the rest
// gets through. The control without the gate shows that the test would see it.
func TestGateKeepsRefusedFlightsWhole(t *testing.T) {
	torn := func(off bool, flights int) uint64 {
		var n uint64
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t, kfake.SeedTopics(1, "t"))
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
			for i := 0; i < flights && n == 0; i++ {
				done := make(chan Result)
				f := &Flight{Topic: topic, Messages: messages(1<<40, MaxFlightRecords), Done: func(_ *Flight, r Result) { done <- r }}
				b.c.Ship(f)
				if r := <-done; r.Acked != 0 {
					t.Fatalf("%d acknowledged behind the refused one", r.Acked)
				}
				n = b.c.Status().Torn
			}
		})
		return n
	}
	if n := torn(false, 300); n != 0 {
		t.Errorf("%d torn records behind the gate", n)
	}
	if n := torn(true, 3000); n == 0 {
		t.Error("none torn without the gate: the test does not see what it is for")
	}
}

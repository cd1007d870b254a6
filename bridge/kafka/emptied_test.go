package kafka

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Somebody empties the topic of positions: a process that makes its producer anew does not wait for marks that are gone, and doubles nothing.
func TestEmptiedPositionsDoNotHoldANewProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, kfake.SeedTopics(1, "t"))
		defer b.end()
		for b.c.EnsurePositions(t.Context()) != nil {
			time.Sleep(100 * time.Millisecond)
		}
		e := b.c.NewExactly("id", "epoch")
		if _, err := e.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		flights := flightsOf(b, 2)
		if done, _, err := e.main.try(t.Context(), flights[:1], time.Minute); len(done) != 1 {
			t.Fatal(err)
		}
		e.main.drop()
		reader, err := e.main.reader()
		if err != nil {
			t.Fatal(err)
		}
		deleteAll(t, reader, e.main)
		reader.Close()
		if done, _, err := e.main.try(t.Context(), flights[1:], time.Minute); len(done) != 1 {
			t.Errorf("nothing is sent: %v", err)
		}
		if at := e.main.positions[flights[1].lane()]; at != flights[1].next() {
			t.Errorf("position %d, want %d", at, flights[1].next())
		}
		e.main.drop()
		e.side.drop()
		if n := len(b.committed("t")); n != 20 {
			t.Errorf("%d records, want 20", n)
		}
	})
}

func deleteAll(t *testing.T, cl *kgo.Client, tr *transactor) {
	t.Helper()
	admin := kadm.NewClient(cl)
	ends, err := admin.ListEndOffsets(t.Context(), tr.e.offset)
	if err != nil {
		t.Fatal(err)
	}
	upTo := make(kadm.Offsets)
	end, _ := ends.Lookup(tr.e.offset, tr.partition())
	upTo.AddOffset(tr.e.offset, tr.partition(), end.Offset, -1)
	resp, err := admin.DeleteRecords(t.Context(), upTo)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
}

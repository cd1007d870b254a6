package kafka

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A process is replaced while its commit is on its way. Whoever reads the positions and fences then delivers twice; whoever
// fences first does not.
func TestFencingComesBeforeReading(t *testing.T) {
	copies := func(fenceFirst bool) int {
		n := 0
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t, kfake.SeedTopics(1, "t"))
			defer b.end()
			for b.c.EnsurePositions(t.Context()) != nil {
				time.Sleep(100 * time.Millisecond)
			}
			flight := func() *Flight {
				return &Flight{Topic: b.c.Topic("t", nil), Spread: 1, Messages: messages(0, 10)}
			}
			// The old process has sent everything, and is about to commit.
			old := b.c.NewExactly("id", "epoch").main
			if err := old.open(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer old.drop()
			if err := old.producer.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			f := flight()
			ended, _, noted := old.produce([]*Flight{f})
			if <-ended; noted() != nil {
				t.Fatal(noted())
			}
			commit := func() error { return old.producer.EndTransaction(t.Context(), kgo.TryCommit) }

			now := b.c.NewExactly("id", "epoch").main
			defer now.drop()
			if fenceFirst {
				if err := now.fence(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := commit(); err == nil {
					t.Error("a fenced producer has committed")
				}
				if err := now.read(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				before := map[string]uint64{} // nothing is committed yet: that is what a reader finds now
				if err := commit(); err != nil {
					t.Fatal(err)
				}
				if err := now.fence(t.Context()); err != nil {
					t.Fatal(err)
				}
				now.positions = before
			}
			again := flight()
			if now.positions[again.lane()] < again.next() {
				if done, _, err := now.try(t.Context(), []*Flight{again}, time.Minute); len(done) != 1 {
					t.Fatal(err)
				}
			}
			n = len(b.committed("t"))
		})
		return n
	}
	if n := copies(true); n != 10 {
		t.Errorf("%d records, want each of 10 once", n)
	}
	if n := copies(false); n != 20 {
		t.Errorf("%d records without fencing first, want each twice: otherwise this test shows nothing", n)
	}
}

// A commit whose outcome is unknown: the positions tell, and nothing is sent twice.
func TestUnknownCommitIsLookedUp(t *testing.T) {
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
		f := &Flight{Topic: b.c.Topic("t", nil), Spread: 1, Messages: messages(0, 10)}
		if done, _, err := e.main.try(t.Context(), []*Flight{f}, time.Minute); len(done) != 1 {
			t.Fatal(err)
		}
		e.main.drop() // as after an EndTransaction without an answer
		done, faulty, err := e.main.try(t.Context(), []*Flight{f}, time.Minute)
		if !slices.Contains(done, f) || len(faulty) != 0 || err != nil {
			t.Errorf("%v %v %v, want it to be known as done", done, faulty, err)
		}
		e.main.drop()
		e.side.drop()
		if n := len(b.committed("t")); n != 10 {
			t.Errorf("%d records, want 10", n)
		}
	})
}

// A route that delivered exactly once, is killed, and then delivers at least once: what a transaction has left behind is in
// the partition, aborted, and not delivered.
func TestReadingBackDoesNotTakeAbortedForDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, kfake.SeedTopics(1, "t"))
		defer b.end()
		for b.c.EnsurePositions(t.Context()) != nil {
			time.Sleep(100 * time.Millisecond)
		}
		old := b.c.NewExactly("id", "epoch").main
		if err := old.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := old.producer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		msgs := messages(0, 10)
		for i := range msgs {
			msgs[i].AddHeader("id", []byte("gw/"+string(rune('0'+i))))
		}
		ended, _, _ := old.produce([]*Flight{{Topic: b.c.Topic("t", nil), Spread: 1, Messages: msgs}})
		<-ended
		old.drop()
		found := make(chan []uint64, 1)
		b.c.ReadBack(&Scan{
			Topic: b.c.Topic("t", nil), From: -1, Since: time.Now().Add(-time.Hour), Header: "id", Prefix: "gw/",
			Done: func(f []uint64, _ int64, err error) {
				if err != nil {
					t.Error(err)
				}
				found <- f
			},
		})
		if f := <-found; len(f) != 0 {
			t.Errorf("found %v, want nothing", f)
		}
		if n := b.cluster.PartitionInfo("t", 0).HighWatermark; n < 10 {
			t.Errorf("%d records in the partition: the test shows nothing", n)
		}
	})
}

// committed are the records of a partition that a reader of committed ones gets.
func (b *bed) committed(topic string) []*kgo.Record {
	b.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.Dialer(b.net.DialContext), kgo.ConsumeTopics(topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		b.t.Fatal(err)
	}
	defer cl.Close()
	last := b.cluster.PartitionInfo(topic, 0).HighWatermark - 1
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	var out []*kgo.Record
	for at := int64(-1); at < last; {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			b.t.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			at = r.Offset
			if !r.Attrs.IsControl() {
				out = append(out, r)
			}
		})
	}
	return out
}

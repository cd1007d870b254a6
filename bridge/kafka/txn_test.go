package kafka

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
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
		for _, f := range flightsOf(b, 3) {
			if done, _, err := e.main.try(t.Context(), []*Flight{f}, time.Minute); len(done) != 1 {
				t.Fatal(err)
			}
		}
		f := &Flight{Topic: b.c.Topic("t", nil), Spread: 1, Messages: messages(30, 10)}
		commitUnknown(t, e.main, f)
		done, faulty, err := e.main.try(t.Context(), []*Flight{f}, time.Minute)
		if !slices.Contains(done, f) || len(faulty) != 0 || err != nil {
			t.Errorf("%v %v %v, want it to be known as done", done, faulty, err)
		}
		e.main.drop()
		e.side.drop()
		if n := len(b.committed("t")); n != 40 {
			t.Errorf("%d records, want 40", n)
		}
	})
}

// flightsOf are n flights of a lane, ten messages each.
func flightsOf(b *bed, n int) (out []*Flight) {
	for i := range n {
		out = append(out, &Flight{Topic: b.c.Topic("t", nil), Spread: 1, Messages: messages(10*i, 10)})
	}
	return out
}

// commitUnknown commits f, and t does not learn of it.
func commitUnknown(test *testing.T, t *transactor, f *Flight) {
	test.Helper()
	if err := t.producer.BeginTransaction(); err != nil {
		test.Fatal(err)
	}
	ended, _, noted := t.produce([]*Flight{f})
	if <-ended; noted() != nil {
		test.Fatal(noted())
	}
	if err := t.producer.EndTransaction(test.Context(), kgo.TryCommit); err != nil {
		test.Fatal(err)
	}
	t.drop()
}

// A lane with many records that Kafka refuses has a new producer for each of them, and positions without end may be in the topic: what
// this process has seen of them is not read again.
func TestReplacedProducerReadsWhatIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, kfake.SeedTopics(1, "t"))
		defer b.end()
		for b.c.EnsurePositions(t.Context()) != nil {
			time.Sleep(100 * time.Millisecond)
		}
		var mu sync.Mutex
		first := int64(math.MaxInt64) // that was asked for
		b.cluster.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.cluster.KeepControl()
			mu.Lock()
			defer mu.Unlock()
			for _, topic := range req.(*kmsg.FetchRequest).Topics {
				for _, p := range topic.Partitions {
					first = min(first, p.FetchOffset)
				}
			}
			return nil, nil, false
		})
		from := func() int64 {
			mu.Lock()
			defer mu.Unlock()
			n := first
			first = math.MaxInt64
			return n
		}
		e := b.c.NewExactly("id", "epoch")
		if _, err := e.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer e.side.drop()
		defer e.main.drop()
		if n := from(); n != 0 {
			t.Errorf("the first look begins at %d, want all", n)
		}
		flights := flightsOf(b, 20)
		for _, f := range flights[:19] {
			if done, _, err := e.main.try(t.Context(), []*Flight{f}, time.Minute); len(done) != 1 {
				t.Fatal(err)
			}
		}
		seen := e.main.seen
		commitUnknown(t, e.main, flights[19])
		if done, _, err := e.main.try(t.Context(), flights[19:], time.Minute); len(done) != 1 {
			t.Fatal(err)
		}
		if n := from(); n < seen || seen < 2*19 { // a position and the end of a transaction each
			t.Errorf("the next look begins at %d, want what is behind %d", n, seen)
		}
		if at := e.main.positions[flights[0].lane()]; at != 200 {
			t.Errorf("the lane is at %d, want 200", at)
		}

		// Another topic of the name: it has none of what was seen.
		cl, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.Dialer(b.net.DialContext))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if _, err := kadm.NewClient(cl).DeleteTopic(t.Context(), PositionsTopic); err != nil {
			t.Fatal(err)
		}
		e.main.drop()
		for b.c.EnsurePositions(t.Context()) != nil {
			time.Sleep(100 * time.Millisecond)
		}
		if err := e.main.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := from(); n != 0 || len(e.main.positions) != 0 {
			t.Errorf("the look at another topic begins at %d and finds %v", n, e.main.positions)
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

// A gateway is frozen after it has looked whether another one has taken over, and before it fences. When it wakes it fences the one that
// has taken over meanwhile: it is the older one, sends nothing, and the other goes on.
func TestLateFencingOfTheReplacedGivesUp(t *testing.T) {
	for name, of := range map[string]func(*Exactly) *transactor{
		"main": func(e *Exactly) *transactor { return e.main },
		"side": func(e *Exactly) *transactor { return e.side },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, kfake.SeedTopics(1, "t"))
				defer b.end()
				for b.c.EnsurePositions(t.Context()) != nil {
					time.Sleep(100 * time.Millisecond)
				}
				flights := flightsOf(b, 4)
				open := func() (*Exactly, *transactor) {
					e := b.c.NewExactly("id", "epoch")
					if _, err := e.Open(t.Context()); err != nil {
						t.Fatal(err)
					}
					return e, of(e)
				}
				send := func(tr *transactor, f *Flight) bool {
					done, _, err := tr.try(t.Context(), []*Flight{f}, time.Minute)
					t.Logf("%d done, %v", len(done), err)
					return len(done) == 1
				}
				e, old := open()
				if !send(old, flights[0]) {
					t.Fatal("the first one does not send")
				}
				old.drop() // a producer that is replaced has an older mark than that of the process
				if !send(old, flights[1]) {
					t.Fatal("the first one does not send with a new producer")
				}
				old.drop()
				if err := old.notTaken(t.Context()); err != nil {
					t.Fatal(err)
				}
				e2, now := open()
				if !send(now, flights[2]) {
					t.Fatal("the second one does not send")
				}
				if err := old.fence(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := old.read(t.Context()); !errors.Is(err, errTaken) || !e.Taken() {
					t.Errorf("the first one goes on: %v", err)
				}
				old.drop()
				if send(old, flights[3]) {
					t.Error("the first one sends")
				}
				sent := false
				for range 2 { // the first try may only find that the old producer is gone
					sent = sent || send(now, flights[3])
				}
				if !sent || e2.Taken() {
					t.Error("the second one does not go on with a new producer")
				}
				for _, e := range []*Exactly{e, e2} {
					e.main.drop()
					e.side.drop()
				}
				if n := len(b.committed("t")); n != 40 {
					t.Errorf("%d records, want 40", n)
				}
			})
		})
	}
}

// Who starts reads the whole active segment of the positions: it must not grow to Kafka's 1 GiB, unless the cluster wants it so.
func TestPositionsHaveSmallSegments(t *testing.T) {
	f := func(refusal *kerr.Error, want string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			defer b.end()
			if refusal != nil {
				b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Topic: PositionsTopic, Err: refusal, Count: 1})
			}
			for b.c.EnsurePositions(t.Context()) != nil {
				time.Sleep(100 * time.Millisecond)
			}
			cl, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.Dialer(b.net.DialContext))
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			all, err := kadm.NewClient(cl).DescribeTopicConfigs(t.Context(), PositionsTopic)
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[string]string)
			for _, c := range all[0].Configs {
				if c.Source == kmsg.ConfigSourceDynamicTopicConfig {
					got[c.Key] = c.MaybeValue()
				}
			}
			if got["segment.bytes"] != want || got["cleanup.policy"] != "compact" {
				t.Errorf("refused with %v: configs %v, want segment.bytes %q", refusal, got, want)
			}
		})
	}
	f(nil, "67108864")
	f(kerr.PolicyViolation, "")
	f(kerr.InvalidConfig, "")
}

package downlink

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What is not committed does not come down, also over a restart of the gateway; what is read uncommitted does, or this test would show nothing.
func TestOnlyWhatIsCommittedComesDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(2, "commands"))
		cl, err := kgo.NewClient(kgo.SeedBrokers(r.cluster.ListenAddrs()...), kgo.Dialer(r.net.DialContext), kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.TransactionalID("commander"), kgo.TransactionTimeout(10*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		begin := func(values ...string) {
			t.Helper()
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			for p := range int32(2) {
				for _, v := range values {
					if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "commands", Partition: p, Key: []byte("k"), Value: []byte(v)}).FirstErr(); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		end := func(how kgo.TransactionEndTry) {
			t.Helper()
			if err := cl.EndTransaction(t.Context(), how); err != nil {
				t.Fatal(err)
			}
		}
		all := commands()
		all.Name, all.Topic, all.Isolation = "all", "all/${key}", ReadUncommitted
		came := func(topic string) string { // the first values of each pair: both partitions have the same
			var of []string
			for _, rec := range r.log.all() {
				if strings.HasPrefix(rec.Topic, topic) && strings.HasSuffix(rec.ClientID, "/0") {
					of = append(of, string(rec.Payload))
				}
			}
			return strings.Join(of, " ")
		}
		reads := func(committed, uncommitted string) {
			t.Helper()
			r.until(committed+" and "+uncommitted, func() bool { return came("cmd/") == committed && came("all/") == uncommitted })
			time.Sleep(time.Minute) // for what comes too much
			if c, u := came("cmd/"), came("all/"); c != committed || u != uncommitted {
				t.Fatalf("read committed %q and uncommitted %q, want %q and %q", c, u, committed, uncommitted)
			}
		}
		begin("0", "1")
		end(kgo.TryCommit)
		begin("aborted")
		end(kgo.TryAbort)
		begin("2")
		end(kgo.TryCommit)
		begin("open")
		r.start(commands(), all)
		reads("0 1 2", "0 1 aborted 2 open")
		r.stop()
		r.start(commands(), all)
		reads("0 1 2", "0 1 aborted 2 open")
		end(kgo.TryCommit)
		reads("0 1 2 open", "0 1 aborted 2 open")
		begin("aborted too")
		reads("0 1 2 open", "0 1 aborted 2 open aborted too")
		end(kgo.TryAbort)
		begin("3")
		end(kgo.TryCommit)
		reads("0 1 2 open 3", "0 1 aborted 2 open aborted too 3")
		r.end()
	})
}

package downlink

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

func TestNewPartitionsAndTopicsBeginAtTheirBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "cmd.a"))
		defer r.end()
		cfg := commands()
		cfg.Topics, cfg.Pattern, cfg.From, cfg.Topic = nil, `cmd\..*`, FromEnd, "${topic}/${key}"
		r.start(cfg)
		r.until("it begins", func() bool { return r.info("down").Partitions == 1 })
		ctx := context.Background()
		if _, err := r.admin.UpdatePartitions(ctx, 3, "cmd.a"); err != nil {
			t.Fatal(err)
		}
		if _, err := r.admin.CreateTopics(ctx, 1, 1, nil, "cmd.b", "other"); err != nil {
			t.Fatal(err)
		}
		for p := range int32(3) {
			r.produce("cmd.a", p, 0, 10)
		}
		r.produce("cmd.b", 0, 0, 10)
		r.produce("other", 0, 0, 10)
		r.untilRecords(40)
		time.Sleep(time.Minute)
		r.inOrder(40)
	})
}

// Each transaction of an exactly_once route writes positions: nobody has asked for those.
func TestPatternDoesNotTakeTheTopicOfPositions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "commands", kafka.PositionsTopic))
		defer r.end()
		cfg := commands()
		cfg.Topics, cfg.Pattern, cfg.From, cfg.Topic = nil, ".*", FromBeginning, "${topic}/${key}"
		r.start(cfg)
		r.produce(kafka.PositionsTopic, 0, 0, 10)
		r.produce("commands", 0, 0, 10)
		r.untilRecords(10)
		time.Sleep(time.Minute)
		if i := r.info("down"); i.Partitions != 1 || i.Records != 10 {
			t.Errorf("%d partitions, %d records, want 1 and 10", i.Partitions, i.Records)
		}
	})
}

func TestTopicThatIsMadeAnewIsAGap(t *testing.T) {
	for _, policy := range []string{Continue, Hold} {
		t.Run(policy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, kfake.SeedTopics(2, "commands"))
				defer r.end()
				cfg := commands()
				cfg.OnGap, cfg.Topic = policy, "${key}"
				r.start(cfg)
				r.produce("commands", 0, 0, 10)
				r.produce("commands", 1, 0, 10)
				r.untilRecords(20)
				ctx := context.Background()
				if _, err := r.admin.DeleteTopics(ctx, "commands"); err != nil {
					t.Fatal(err)
				}
				r.until("missing", func() bool { i := r.info("down"); return i.State == Stuck && i.Reason == "topic_missing" })
				if _, err := r.admin.CreateTopics(ctx, 2, 1, nil, "commands"); err != nil {
					t.Fatal(err)
				}
				r.cl.PurgeTopicsFromClient("commands")
				r.produce("commands", 0, 10, 20) // as many that the old position is in it
				r.produce("commands", 1, 10, 20)
				if policy == Hold {
					r.until("held", func() bool { return r.info("down").Held == 2 })
					time.Sleep(time.Minute)
					if n := len(r.log.all()); n != 20 {
						t.Fatalf("%d records while it is held, want 20", n)
					}
					r.stop()
					r.start(cfg) // it is held after a restart too
					r.until("held", func() bool { return r.info("down").Held == 2 })
					if err := r.e.Resume(ctx, "down"); err != nil {
						t.Fatal(err)
					}
				}
				r.untilRecords(60)
				time.Sleep(time.Minute)
				r.inOrder(60)
				i := r.info("down")
				if i.Gaps[gapRecreated] != 2 || i.Held != 0 || i.State != Idle {
					t.Errorf("info %+v, want two gaps and nothing held", i)
				}
				r.stop()
				r.start(cfg)
				r.produce("commands", 0, 30, 5)
				r.untilRecords(65)
				r.inOrder(65)
			})
		})
	}
}

// It was made anew while nobody looked.
func TestTopicThatWasMadeAnewMeanwhileIsAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "commands"))
		defer r.end()
		r.start(commands())
		r.produce("commands", 0, 0, 10)
		r.untilRecords(10)
		r.stop()
		ctx := context.Background()
		if _, err := r.admin.DeleteTopics(ctx, "commands"); err != nil {
			t.Fatal(err)
		}
		if _, err := r.admin.CreateTopics(ctx, 1, 1, nil, "commands"); err != nil {
			t.Fatal(err)
		}
		r.cl.PurgeTopicsFromClient("commands")
		r.produce("commands", 0, 10, 30)
		r.start(commands())
		r.untilRecords(40)
		time.Sleep(time.Minute)
		r.inOrder(40)
		if g := r.info("down").Gaps[gapRecreated]; g != 1 {
			t.Errorf("%d gaps, want 1", g)
		}
	})
}

func TestRecordsThatRetentionTookAreAGap(t *testing.T) {
	for _, policy := range []string{Continue, Hold} {
		t.Run(policy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, kfake.SeedTopics(1, "commands"))
				defer r.end()
				cfg := commands()
				cfg.OnGap = policy
				r.start(cfg)
				r.produce("commands", 0, 0, 10)
				r.untilRecords(10)
				r.stop()
				r.produce("commands", 0, 10, 20)
				ctx := context.Background()
				if _, err := r.admin.DeleteRecords(ctx, deleteBelow("commands", 0, 25)); err != nil {
					t.Fatal(err)
				}
				r.start(cfg)
				if policy == Hold {
					r.until("held", func() bool { return r.info("down").Held == 1 })
					if i := r.info("down"); i.State != Stuck || i.Reason != "gap_retention" {
						t.Errorf("info %+v, want it stuck for the gap", i)
					}
					if err := r.e.Resume(ctx, "down"); err != nil {
						t.Fatal(err)
					}
				}
				r.untilRecords(15)
				time.Sleep(time.Minute)
				var got []string
				for _, rec := range r.log.all()[10:] {
					got = append(got, string(rec.Payload))
				}
				if fmt.Sprint(got) != "[25 26 27 28 29]" {
					t.Errorf("behind the gap come %v", got)
				}
				if i := r.info("down"); i.Gaps[gapRetention] != 1 || i.GapOffsets[gapRetention] != 15 || i.State != Idle {
					t.Errorf("info %+v, want one gap of 15", i)
				}
			})
		})
	}
}

func deleteBelow(topic string, partition int32, offset int64) kadm.Offsets {
	o := make(kadm.Offsets)
	o.AddOffset(topic, partition, offset, -1)
	return o
}

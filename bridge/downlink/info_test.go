package downlink

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

// lagSeries is whether the metrics of an engine say how far its downlinks are behind.
func lagSeries(t *testing.T, e *Engine) bool {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{e})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "forebay_downlink_lag_records" {
			return true
		}
	}
	return false
}

func TestLagIsNotKnownWhileNothingIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "commands"))
		defer r.end()
		r.start(commands())
		r.produce("commands", 0, 0, 10)
		r.untilRecords(10)
		r.until("no lag", func() bool { i := r.info("down"); return i.Lag != nil && *i.Lag == 0 && i.MaxLag != nil })
		if !lagSeries(t, r.e) {
			t.Error("a downlink that reads has no metric of its lag")
		}
		if err := r.e.Pause(context.Background(), "down"); err != nil {
			t.Fatal(err)
		}
		r.produce("commands", 0, 10, 10)
		look := func() {
			t.Helper()
			if i := r.info("down"); i.Lag != nil || i.MaxLag != nil || i.State != Paused || lagSeries(t, r.e) {
				t.Errorf("%+v, metric %v, want a pause whose lag is not known", i, lagSeries(t, r.e))
			}
		}
		look()
		r.stop()
		r.start(commands())
		time.Sleep(time.Minute)
		look()
		if err := r.e.Resume(context.Background(), "down"); err != nil {
			t.Fatal(err)
		}
		r.untilRecords(20)
		r.until("a known lag", func() bool { return r.info("down").Lag != nil })
	})
}

// An upstream that has gone shows before the reading notices, and it is not known what waits there.
func TestAnUpstreamThatHasGoneIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "commands"))
		defer r.end()
		r.start(commands())
		r.produce("commands", 0, 0, 10)
		r.untilRecords(10)
		r.until("a known lag", func() bool { return r.info("down").Lag != nil })
		r.cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.KeepControl()
			return nil, errors.New("gone"), true
		})
		r.until("the upstream is down", func() bool { return !r.client.Status().Down.IsZero() })
		if i := r.info("down"); i.State == Idle || i.Reason == "" || i.Where != "upstream main" || i.Lag != nil || i.Since.IsZero() || lagSeries(t, r.e) {
			t.Errorf("%+v, want the upstream named and no lag", i)
		}
		r.until("stuck", func() bool {
			i := r.info("down")
			return i.State == Stuck && i.Where == "upstream main" && !i.Since.IsZero()
		})
	})
}

func TestAMissingTopicSaysSinceWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "commands"))
		defer r.end()
		cfg := commands()
		cfg.Topics = append(cfg.Topics, "later")
		began := time.Now()
		r.start(cfg)
		r.until("missing", func() bool { i := r.info("down"); return i.State == Stuck && i.Reason == "topic_missing" })
		since := r.info("down").Since
		time.Sleep(time.Minute)
		if i := r.info("down"); !i.Since.Equal(since) || since.Before(began) || i.Where != "topic later" {
			t.Errorf("since %v after %v, want what it was when it was seen first: %+v", i.Since, since, i)
		}
		if _, err := r.admin.CreateTopic(context.Background(), 1, 1, nil, "later"); err != nil {
			t.Fatal(err)
		}
		r.until("well", func() bool { return r.info("down").State == Idle })
	})
}

// What is wrong is told with the time of what has been wrong for longest.
func TestTheOldestProblemIsTold(t *testing.T) {
	d := &downlink{cfg: commands(), up: new(kafka.Client), faults: map[string]*fault{}}
	now := time.Now()
	d.missing = []missing{{"b", now.Add(-time.Minute)}, {"a", now.Add(-time.Hour)}}
	if i := d.info(now); i.Where != "topic a" || !i.Since.Equal(now.Add(-time.Hour)) {
		t.Errorf("%+v, want the topic that has been missing for longest", i)
	}
}

// A partition whose end is not known hides the lag of the downlink, and not that of the others.
func TestOnePartitionWithoutAnEndHidesNoOther(t *testing.T) {
	d := &downlink{cfg: commands(), up: new(kafka.Client), faults: map[string]*fault{}, looked: true, parts: map[kafka.Partition]*partition{}}
	for n := range int32(16) {
		p := kafka.Partition{Topic: "commands", N: n}
		d.parts[p] = &partition{d: d, Partition: p, durable: 3, high: 5}
	}
	d.parts[kafka.Partition{Topic: "commands", N: 7}].high = -1
	i := d.info(time.Now())
	known := 0
	for _, p := range i.PartitionList {
		if p.Lag != nil && *p.Lag == 2 && p.End == 5 {
			known++
		}
	}
	if known != 15 || i.Lag != nil || i.MaxLag != nil || i.State != OK {
		t.Errorf("the lag of %d partitions is known, want 15, and that of the downlink is %v, %v; it is %s", known, i.Lag, i.MaxLag, i.State)
	}
}

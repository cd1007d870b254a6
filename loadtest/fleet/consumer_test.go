package fleet

import (
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// bridged lets b copy what it accepts into a Kafka topic, changed by copy.
func bridged(t *testing.T, b *fakeBroker, topicExists bool, copy func(n int, r *kgo.Record) []*kgo.Record) Config {
	t.Helper()
	opts := []kfake.Opt{kfake.NumBrokers(1), kfake.AllowAutoTopicCreation(), kfake.DefaultNumPartitions(3)}
	if topicExists {
		opts = append(opts, kfake.SeedTopics(3, "telemetry"))
	}
	k, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.ListenAddrs()...), kgo.AllowAutoTopicCreation(), kgo.DefaultProduceTopic("telemetry"), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	if topicExists {
		old := appendPayload(nil, "before", message{0, 0, 0}, time.Now(), 200)
		if err := cl.ProduceSync(t.Context(), kgo.StringRecord(string(old))).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	b.take = func(p *packets.Publish) []*packets.Publish {
		n++
		for _, r := range copy(n, &kgo.Record{Key: []byte(p.Topic), Value: p.Payload}) {
			if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Errorf("produce: %v", err)
			}
		}
		return []*packets.Publish{p}
	}
	cfg := small(b)
	cfg.Kafka, cfg.KafkaTopic = k.ListenAddrs(), []string{"telemetry"}
	return cfg
}

func TestKafkaSideReconciles(t *testing.T) {
	for _, exists := range []bool{true, false} {
		b := newFakeBroker(t)
		r := run(t, bridged(t, b, exists, func(_ int, r *kgo.Record) []*kgo.Record { return []*kgo.Record{r} }))
		c := r.Verdict.Checks[1]
		if !r.Verdict.Reconciled || c.Unique.Total() != 400 || c.Foreign != 0 {
			t.Errorf("topic exists %t: %+v\n%s", exists, c, r.Text())
		}
	}
}

func TestKafkaSideTellsFaults(t *testing.T) {
	b := newFakeBroker(t)
	var held *kgo.Record
	cfg := bridged(t, b, true, func(n int, r *kgo.Record) []*kgo.Record {
		switch {
		case n == 50 || n == 51 || n == 52:
			return nil
		case n == 100:
			return []*kgo.Record{r, r}
		case n == 200:
			held = r
			return nil
		case held != nil && string(held.Key) == string(r.Key):
			out := []*kgo.Record{r, held}
			held = nil
			return out
		}
		return []*kgo.Record{r}
	})
	cfg.Drain, cfg.StrictKafka = 2*time.Second, true
	r := run(t, cfg)
	wantFault(t, r, "acknowledged messages are missing: kafka", "missing")
	wantFault(t, r, "1 messages came twice that may come once: kafka", "doubled")
	wantFault(t, r, "1 messages came out of order: kafka", "reordered")
}

func TestKafkaDoubleIsCountedWithoutStrict(t *testing.T) {
	b := newFakeBroker(t)
	r := run(t, bridged(t, b, true, func(n int, r *kgo.Record) []*kgo.Record {
		if n == 100 {
			return []*kgo.Record{r, r}
		}
		return []*kgo.Record{r}
	}))
	if !r.Verdict.Reconciled || r.Verdict.Checks[1].Doubled.Total() != 1 {
		t.Errorf("%s", r.Text())
	}
}

func TestQoS2TakenTwiceIsToldFromARepeatedDelivery(t *testing.T) {
	f := func(second string, fault bool) {
		t.Helper()
		b := newFakeBroker(t)
		done := false
		cfg := bridged(t, b, true, func(_ int, r *kgo.Record) []*kgo.Record {
			m, err := parsePayload(r.Value, string(r.Value[8:14]))
			if err != nil || done || (Mix{1, 6, 3}).QoS(m.device, m.seq) != 2 {
				return []*kgo.Record{r}
			}
			done = true
			again := *r
			r.Headers = []kgo.RecordHeader{{Key: "id", Value: []byte("gw/0/17")}}
			again.Headers = []kgo.RecordHeader{{Key: "id", Value: []byte(second)}}
			return []*kgo.Record{r, &again}
		})
		cfg.IDHeader = "id"
		r := run(t, cfg)
		if fault {
			wantFault(t, r, "1 messages of QoS 2 were taken twice by the broker: kafka", "taken twice")
		} else if !r.Verdict.Reconciled {
			t.Errorf("%s", r.Text())
		}
	}
	f("gw/0/17", false)
	f("gw/0/99", true)
}

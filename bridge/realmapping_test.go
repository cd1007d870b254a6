package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/kafkatest"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// Mapped routes and topics that they make, on a real Apache Kafka.
func TestKafkaMappedRoutes(t *testing.T) {
	c := kafkatest.Start(t, kafkatest.Options{})

	const n = 3000
	publish := func(r *realRig) {
		for i := range n {
			payload := fmt.Sprintf(`{"seq":%d,"line":"l%d","temp":%d}`, i, i%3, i%40)
			r.log.add("default", i%2, spool.Record{Topic: "plant/7/temp", ClientID: fmt.Sprintf("dev%d", i%10), Payload: []byte(payload)})
		}
	}
	type telemetry struct {
		Seq  int
		Line string
		Temp int
	}
	// check finds each record that the condition lets pass once, where choose sends it, and those of a device in a topic in order.
	check := func(t *testing.T, records []*kgo.Record, prefix string, telemetryOf func(*kgo.Record) telemetry) {
		t.Helper()
		seen, last := make(map[int]bool), make(map[string]int)
		for _, rec := range records {
			v := telemetryOf(rec)
			want := prefix + "." + v.Line
			if v.Temp > 35 {
				want = prefix + ".alarms"
			}
			if rec.Topic != want || v.Temp < 10 || seen[v.Seq] || string(rec.Key) != fmt.Sprintf("dev%d", v.Seq%10) {
				t.Fatalf("%+v with the key %s in %s, want %s; seen before: %v", v, rec.Key, rec.Topic, want, seen[v.Seq])
			}
			seen[v.Seq] = true
			of := rec.Topic + " " + string(rec.Key)
			if before, ok := last[of]; ok && v.Seq < before {
				t.Fatalf("%s: record %d behind %d", of, v.Seq, before)
			}
			last[of] = v.Seq
		}
		if want := n * 30 / 40; len(seen) != want {
			t.Errorf("%d records, want %d", len(seen), want)
		}
	}
	route := func(prefix, format string) RouteConfig {
		return RouteConfig{
			Topic: prefix + ".${json.line}", CreateTopics: &kafka.Create{Partitions: 4}, Condition: "json.temp >= 10.0",
			Choose: []mapping.Choice{{When: "json.temp > 35.0", Topic: prefix + ".alarms"}}, Value: mapping.Value{Format: format},
		}
	}
	topics := func(prefix string) []string {
		return []string{prefix + ".alarms", prefix + ".l0", prefix + ".l1", prefix + ".l2"}
	}

	t.Run("envelope", func(t *testing.T) {
		r := newRealRig(t, c, route("env", mapping.Envelope))
		publish(r)
		r.drained(time.Minute)
		check(t, r.read(topics("env")...), "env", func(rec *kgo.Record) telemetry {
			var e struct {
				Topic   string
				Payload telemetry
			}
			if err := json.Unmarshal(rec.Value, &e); err != nil || e.Topic != "plant/7/temp" {
				t.Fatalf("%s: %v", rec.Value, err)
			}
			return e.Payload
		})
	})

	t.Run("CloudEvents", func(t *testing.T) {
		r := newRealRig(t, c, route("ce", mapping.CloudEventsStructured))
		publish(r)
		r.drained(time.Minute)
		check(t, r.read(topics("ce")...), "ce", func(rec *kgo.Record) telemetry {
			var e struct {
				SpecVersion, Type, Source, Subject, DataContentType string
				Data                                                telemetry
			}
			if err := json.Unmarshal(rec.Value, &e); err != nil || e.SpecVersion != "1.0" || e.Source != "/gw1/"+string(rec.Key) || e.Subject != "plant/7/temp" {
				t.Fatalf("%s: %v", rec.Value, err)
			}
			return e.Data
		})
	})

	t.Run("topics are made as the route says", func(t *testing.T) {
		r := newRealRig(t, c, RouteConfig{
			Topic: "made.${topic[1]}", CreateTopics: &kafka.Create{Partitions: 5, Replication: 1, Configs: []string{"retention.ms=3600000", "cleanup.policy=compact,delete"}},
		})
		r.publish(levels(1), 5, 5)
		r.drained(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		details, err := r.admin.ListTopics(ctx, "made.l0")
		if err != nil {
			t.Fatal(err)
		}
		if d := details["made.l0"]; len(d.Partitions) != 5 || len(d.Partitions[0].Replicas) != 1 {
			t.Errorf("made %+v", d)
		}
		configs, err := r.admin.DescribeTopicConfigs(ctx, "made.l0")
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]string)
		for _, kv := range configs[0].Configs {
			got[kv.Key] = kv.MaybeValue()
		}
		if got["retention.ms"] != "3600000" || got["cleanup.policy"] != "compact,delete" {
			t.Errorf("retention.ms %s, cleanup.policy %s", got["retention.ms"], got["cleanup.policy"])
		}
	})

	t.Run("a topic that cannot be made holds with the command", func(t *testing.T) {
		r := newRealRig(t, c, RouteConfig{Topic: "cannot", CreateTopics: &kafka.Create{Partitions: 2, Replication: 3, Configs: []string{"retention.ms=1"}}})
		r.publish(oneTopic("a"), 5, 5)
		r.until("held", 30*time.Second, func() bool { h := r.b.Health()[0]; return h.State == Stuck && h.Reason == "topic_create" })
		h := r.b.Health()[0]
		if want := "--create --topic cannot --partitions 2 --replication-factor 3 --config 'retention.ms=1'"; !strings.Contains(h.Hint, want) {
			t.Errorf("hint %q, want %q in it", h.Hint, want)
		}
		r.create("cannot", 2, nil)
		r.drained(30 * time.Second)
	})
}

func TestKafkaCompression(t *testing.T) {
	c := kafkatest.Start(t, kafkatest.Options{})
	for i, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} { // as Kafka numbers them
		t.Run(codec, func(t *testing.T) {
			r := newRealRigOf(t, kafka.Config{Name: "main", Brokers: c.Brokers(), Compression: codec}, RouteConfig{Topic: "c." + codec, CreateTopics: &kafka.Create{Partitions: 1}})
			for j := range 100 {
				r.log.add("default", 0, spool.Record{Topic: "a", ClientID: "c", Payload: fmt.Appendf(nil, `{"seq":%d,"text":%q}`, j, strings.Repeat("telemetry ", 20))})
			}
			r.drained(time.Minute)
			records := r.read("c." + codec)
			if len(records) != 100 {
				t.Fatalf("%d records, want 100", len(records))
			}
			for _, rec := range records {
				if got := int(rec.Attrs.CompressionType()); got != i {
					t.Fatalf("codec %d, want %d", got, i)
				}
			}
		})
	}
}

package bridge

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// A route with everything of a mapping, from the spool into Kafka and back.
func TestMappingReachesKafka(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1, "deadletter": 1}), kfake.SeedTopics(8, "alarms"))
		defer r.end()
		const n = 600
		sent := time.Now()
		for i := range n {
			payload := fmt.Sprintf(`{"seq":%d,"line":%d,"temp":%d.0,"ts":%d}`, i, i%3, i%40, sent.UnixMilli()-5000)
			switch {
			case i%50 == 7:
				payload = "no json"
			case i%50 == 8:
				payload = `{"seq":1}` // no temp
			}
			r.log.add("default", 0, spool.Record{Topic: "plant/7/temp", ClientID: fmt.Sprintf("dev%d", i%5), Payload: []byte(payload)})
		}
		r.start(withDeadLetters(RouteConfig{
			Topic: "telemetry.${json.line}", Key: "${client_id}.${json.line}", CreateTopics: &kafka.Create{Partitions: 4},
			Headers: []string{"site=${topic[1]}"}, Timestamp: mapping.Timestamp{From: "${json.ts}"}, Value: mapping.Value{Format: mapping.Envelope},
			Condition: "json.temp >= 10.0", Choose: []mapping.Choice{{When: "json.temp > 35.0", Topic: "alarms"}},
			OnFault: mapping.Policy{InvalidJSON: mapping.Skip},
		}))
		r.drained(time.Minute)
		alarms, others := 0, 0
		seqs := make(map[string]int) // by key and topic: order holds
		for _, rec := range r.consume("alarms", "telemetry.0", "telemetry.1", "telemetry.2") {
			if rec.Topic == "alarms" {
				alarms++
			} else {
				others++
			}
			var seq, line, temp, ts int
			_, after, _ := strings.Cut(string(rec.Value), `"payload":`)
			if _, err := fmt.Sscanf(after, `{"seq":%d,"line":%d,"temp":%d.0,"ts":%d}`, &seq, &line, &temp, &ts); err != nil {
				t.Fatalf("value %s: %v", rec.Value, err)
			}
			switch {
			case rec.Topic != "alarms" && (temp > 35 || rec.Topic != fmt.Sprint("telemetry.", line)), rec.Topic == "alarms" && temp <= 35, temp < 10:
				t.Errorf("record %d of line %d with temp %d in %s", seq, line, temp, rec.Topic)
			case string(rec.Key) != fmt.Sprintf("dev%d.%d", seq%5, line):
				t.Errorf("record %d has the key %s", seq, rec.Key)
			case rec.Timestamp.UnixMilli() != int64(ts):
				t.Errorf("record %d has the time %v", seq, rec.Timestamp)
			case headerOf(rec, "site") != "7" || headerOf(rec, "content-type") != "application/json":
				t.Errorf("record %d has the headers %v", seq, rec.Headers)
			}
			of := rec.Topic + string(rec.Key)
			if last, ok := seqs[of]; ok && seq <= last {
				t.Errorf("record %d of %s behind %d", seq, of, last)
			}
			seqs[of] = seq
		}
		var wantAlarms, wantOthers, cold, noJSON, missing int
		for i := range n {
			switch {
			case i%50 == 7:
				noJSON++
			case i%50 == 8:
				missing++
			case i%40 > 35:
				wantAlarms++
			case i%40 >= 10:
				wantOthers++
			default:
				cold++
			}
		}
		if alarms != wantAlarms || others != wantOthers {
			t.Errorf("%d alarms and %d others, want %d and %d", alarms, others, wantAlarms, wantOthers)
		}
		s := r.b.Stats()[0]
		if s.LeftOut["condition"] != uint64(cold) || s.LeftOut["invalid_json"] != uint64(noJSON) || s.DeadLettered != uint64(missing) || s.Lag != 0 {
			t.Errorf("left out %v, dead letters %d, lag %d; want %d by the condition, %d invalid, %d dead letters", s.LeftOut, s.DeadLettered, s.Lag, cold, noJSON, missing)
		}
		if sum := s.Sent + s.DeadLettered + s.LeftOut["condition"] + s.LeftOut["invalid_json"] + s.Skipped + s.Expired; sum != n {
			t.Errorf("%d records have a fate, want %d", sum, n)
		}
		page, err := r.b.DeadLetters().List(t.Context(), DeadLetterQuery{})
		if err != nil || len(page.Letters) != missing {
			t.Fatalf("%d dead letters, %v, want %d", len(page.Letters), err, missing)
		}
		if l := page.Letters[0]; l.Reason != "condition_error" || !strings.Contains(l.Error, "no such key: temp") || l.Hint == "" || l.Topic != "plant/7/temp" || l.Attempts != 0 {
			t.Errorf("dead letter %+v", l)
		}
		w, err := r.b.DeadLetters().Redrive(t.Context(), DeadLetterQuery{Limit: 1}, false)
		if err != nil || len(w.Failed) != 1 || !strings.Contains(w.Failed[0].Error, "condition_error") {
			t.Errorf("redrive of what the mapping still cannot use: %+v, %v", w, err)
		}
	})
}

func withDeadLetters(rc RouteConfig) Config {
	cfg := oneRoute(rc)
	cfg.DeadLetterStream = "deadletter"
	return cfg
}

func headerOf(rec *kgo.Record, key string) string {
	for _, h := range rec.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return "(none)"
}

// What the catch-up sends of a detached lane is what the tail would have sent.
func TestMappingOfDetachedLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1, "deadletter": 1}), kfake.SeedTopics(1, "m.b"))
		defer r.end()
		for i := range 3000 {
			r.log.add("default", 0, spool.Record{Topic: "x", ClientID: "dev", Payload: fmt.Appendf(nil, `{"to":%q,"seq":%d}`, []string{"a", "b"}[i%2], i)})
		}
		cfg := withDeadLetters(RouteConfig{Topic: "m.${json.to}", Sample: mapping.Sample{Rate: 0.5}, Condition: "json.seq < 2000.0"})
		r.start(cfg)
		time.Sleep(20 * time.Second) // m.a is not there: its lane is detached, m.b goes on
		half := len(r.consume("m.b"))
		if half < 400 || half > 600 {
			t.Errorf("%d of 1000 records of the topic that is there", half)
		}
		req := kmsg.NewPtrCreateTopicsRequest()
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "m.a", 4, 1
		req.Topics = append(req.Topics, topic)
		r.request(req)
		r.drained(2 * time.Minute)
		seen := make(map[string]bool)
		for _, rec := range r.consume("m.a") {
			if seen[string(rec.Value)] {
				t.Errorf("%s came twice", rec.Value)
			}
			seen[string(rec.Value)] = true
		}
		s := r.b.Stats()[0]
		if len(seen) < 400 || len(seen) > 600 || int(s.Sent) != half+len(seen) || int(s.Sent+s.LeftOut["sample"]+s.LeftOut["condition"]) != 3000 {
			t.Errorf("%d and %d records, stats %+v", half, len(seen), s)
		}
	})
}

func TestTopicsBeyondTheLimitOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}))
		defer r.end()
		for i := range 50 {
			r.log.add("default", 0, spool.Record{Topic: fmt.Sprintf("l%d", i%5), ClientID: "dev", Payload: []byte("v")})
		}
		r.start(oneRoute(RouteConfig{Topic: "t.${topic[0]}", MaxTopics: 2, CreateTopics: &kafka.Create{Partitions: 1}}))
		r.drained(time.Minute)
		for topic, want := range map[string]int{"t.l0": 10, "t.l1": 10, "t.overflow": 30} {
			if got := len(r.consume(topic)); got != want {
				t.Errorf("%d records in %s, want %d", got, topic, want)
			}
		}
		if h := r.b.Health()[0]; !strings.Contains(h.Warning, "raise max_topics") {
			t.Errorf("health %+v says nothing of the overflow", h)
		}
	})
}

// A dead letter that cannot be stored holds the cursor, health says so, and nothing is lost when there is room again.
func TestMappingFaultsWaitForTheDeadLetterStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1, "deadletter": 1}), kfake.SeedTopics(1, "t"))
		defer r.end()
		for i := range 1000 {
			r.log.add("default", 0, spool.Record{Topic: "a", ClientID: "dev", Payload: fmt.Appendf(nil, "%d", i)})
		}
		r.start(withDeadLetters(RouteConfig{Topic: "t", Key: "${json.k}"}))
		r.drained(time.Minute)
		if n := r.b.DeadLetters().Waiting(); n != 1000 {
			t.Errorf("%d dead letters, want 1000", n)
		}
		r.log.mu.Lock()
		r.log.full = spool.ErrFull
		r.log.mu.Unlock()
		for range 3 {
			r.log.add("default", 0, spool.Record{Topic: "a", ClientID: "dev", Payload: []byte("{}")})
		}
		time.Sleep(time.Minute)
		if h := r.b.Health()[0]; h.State != Stuck || h.Reason != "dead_letter" {
			t.Errorf("health %+v, want stuck", h)
		}
		r.log.mu.Lock()
		r.log.full = nil
		r.log.mu.Unlock()
		r.drained(time.Minute)
		if n := r.b.DeadLetters().Waiting(); n != 1003 {
			t.Errorf("%d dead letters, want 1003", n)
		}
	})
}

func TestMappingFaultsOfTheConfigurationNameTheKey(t *testing.T) {
	f := func(rc RouteConfig, want string) {
		t.Helper()
		rc.Name, rc.Upstream = "r", "main"
		if rc.Topic == "" {
			rc.Topic = "t"
		}
		cfg := DefaultConfig()
		cfg.Upstreams = []kafka.Config{{Name: "main", Brokers: []string{"k:1"}}}
		cfg.Routes = []RouteConfig{rc}
		if rc.Name != "" && strings.Contains(want, "dead_letter_stream") {
			cfg.DeadLetterStream = NoDeadLetters
		}
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	f(RouteConfig{Topic: "${x}"}, "routes[0].topic: position 1: unknown field")
	f(RouteConfig{Condition: "qos =="}, "routes[0].condition: line 1, column 7: ")
	f(RouteConfig{Choose: []mapping.Choice{{When: "true", Topic: "/"}}}, "routes[0].choose[0].topic: position 1: ")
	f(RouteConfig{Headers: []string{"x"}}, "routes[0].headers[0]: ")
	f(RouteConfig{Value: mapping.Value{Format: "x"}}, "routes[0].value.format: ")
	f(RouteConfig{Key: "${json.a}"}, "routes[0].on_fault: records without a field that is needed become dead letters, and there is no dead_letter_stream")
}

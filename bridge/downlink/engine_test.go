package downlink

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/spool"
)

func TestRecordsBecomePublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "commands"))
		defer r.end()
		cfg := commands()
		cfg.Topic, cfg.QoS, cfg.Retain, cfg.Expiry = "site/${json.site}/${key}", "${header.qos|1}", "${header.keep|false}", "${header.ttl|0}"
		now := time.Now()
		header := func(k, v string) kgo.RecordHeader { return kgo.RecordHeader{Key: k, Value: []byte(v)} }
		r.write(
			&kgo.Record{
				Topic: "commands", Key: []byte("pump-7"), Value: []byte(`{"site":"north"}`), Timestamp: now,
				Headers: []kgo.RecordHeader{
					header("qos", "2"), header("keep", "true"), header("ttl", "60"), header("content-type", "application/json"),
					header("mqtt.response_topic", "re/7"), header("mqtt.correlation_data", "\x00\x01"), header("mqtt.payload_format", "1"),
					header("forebay.id", "other/default/0/1"), header("a", "1"), header("a", "2"), header("binary", "\xff"),
				},
			},
			&kgo.Record{Topic: "commands", Key: []byte("late"), Value: []byte(`{"site":"n"}`), Timestamp: now.Add(-time.Hour), Headers: []kgo.RecordHeader{header("ttl", "60")}},
			&kgo.Record{Topic: "commands", Key: []byte("mine"), Value: []byte(`{"site":"n"}`), Timestamp: now, Headers: []kgo.RecordHeader{header("forebay.id", "gw1/default/0/1")}},
			&kgo.Record{Topic: "commands", Key: []byte("gone"), Timestamp: now},
			&kgo.Record{Topic: "commands", Key: []byte("last"), Value: []byte(`{"site":4.20}`), Timestamp: now},
		)
		r.start(cfg)
		r.untilRecords(2)
		got := r.log.all()
		want := spool.Record{
			Topic: "site/north/pump-7", ClientID: "$forebay/downlink/down/commands/0", Payload: []byte(`{"site":"north"}`), QoS: 2, Retain: true,
			ExpiresAt: now.Truncate(time.Millisecond).Add(time.Minute).UnixNano(), ReceivedAt: got[0].ReceivedAt,
			Properties: &spool.Properties{
				HasPayloadFormat: true, PayloadFormat: 1, ContentType: "application/json", ResponseTopic: "re/7", CorrelationData: []byte{0, 1},
				User: []spool.UserProperty{{Name: "qos", Value: "2"}, {Name: "keep", Value: "true"}, {Name: "ttl", Value: "60"}, {Name: "a", Value: "1"}, {Name: "a", Value: "2"}},
			},
		}
		if !reflect.DeepEqual(got[0], want) {
			t.Errorf("record\n%+v %+v, want\n%+v %+v", got[0], got[0].Properties, want, want.Properties)
		}
		if got[1].Topic != "site/4.20/last" || got[1].QoS != 1 || got[1].Retain || got[1].ExpiresAt != 0 || got[1].Properties != nil {
			t.Errorf("record %+v, want one with what the defaults say", got[1])
		}
		i := r.info("down")
		if i.LeftOut["own"] != 1 || i.LeftOut["expired"] != 1 || i.LeftOut["null_value"] != 1 || i.HeadersLeftOut != 1 {
			t.Errorf("left out %v, headers %d, want one of each", i.LeftOut, i.HeadersLeftOut)
		}
		r.until("no lag", func() bool {
			i := r.info("down")
			return i.Lag != nil && *i.Lag == 0 && i.PartitionList[0].Position == 5
		})
	})
}

func TestNullAndOwnRecordsByPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "commands"))
		defer r.end()
		own := []kgo.RecordHeader{{Key: "forebay.id", Value: []byte("gw1/default/0/1")}}
		r.write(
			&kgo.Record{Topic: "commands", Key: []byte("null")},
			&kgo.Record{Topic: "commands", Key: []byte("own"), Value: []byte("x"), Headers: own},
		)
		clear, empty := commands(), commands()
		clear.NullValue, clear.OwnRecords = NullClear, OwnPass
		empty.Name, empty.Topic, empty.NullValue = "empty", "empty/${key}", NullEmpty
		r.start(clear, empty)
		r.untilRecords(3)
		got := make(map[string]spool.Record)
		for _, rec := range r.log.all() {
			got[rec.Topic] = rec
		}
		if c, ok := got["cmd/commands/null"]; !ok || !c.Retain || len(c.Payload) > 0 {
			t.Errorf("clear made %+v, want a retained publish without payload", c)
		}
		if c, ok := got["empty/null"]; !ok || c.Retain || len(c.Payload) > 0 {
			t.Errorf("empty made %+v, want a publish without payload that is not retained", c)
		}
		if _, ok := got["cmd/commands/own"]; !ok {
			t.Error("own_records: pass published nothing")
		}
	})
}

// A crash at any moment: the next run goes on behind the last record that is in the log.
func TestCrashNeitherLosesNorDoubles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(3, "commands"))
		n := 0
		for round := range 8 {
			r.start(commands())
			for p := range int32(3) {
				r.produce("commands", p, n, 200)
			}
			n += 200
			r.untilRecords(3*(n-200) + round*60)
			after := r.log.clone() // what is on the disk at this moment
			r.stop()
			r.log = after
		}
		r.start(commands())
		r.untilRecords(3 * n)
		time.Sleep(time.Minute)
		r.inOrder(3 * n)
		r.end()
	})
}

func TestWhereANewDownlinkBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "commands"))
		defer r.end()
		r.produce("commands", 0, 0, 5)
		time.Sleep(time.Hour)
		at := time.Now()
		r.produce("commands", 0, 5, 5)
		var cfgs []Config
		for name, from := range map[string]string{"all": FromBeginning, "end": "", "time": at.UTC().Format(time.RFC3339)} {
			cfg := commands()
			cfg.Name, cfg.Topic, cfg.From = name, name, from
			cfgs = append(cfgs, cfg)
		}
		r.start(cfgs...)
		r.until("three begin", func() bool { return r.info("all").Partitions+r.info("end").Partitions+r.info("time").Partitions == 3 })
		r.produce("commands", 0, 10, 1)
		r.untilRecords(11 + 6 + 1)
		time.Sleep(time.Minute)
		first, count := make(map[string]string), make(map[string]int)
		for _, rec := range r.log.all() {
			if count[rec.Topic]++; count[rec.Topic] == 1 {
				first[rec.Topic] = string(rec.Payload)
			}
		}
		if fmt.Sprint(first, count) != "map[all:0 end:10 time:5] map[all:11 end:1 time:6]" {
			t.Errorf("first %v of %v", first, count)
		}
	})
}

func TestPoisonHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "commands"))
		defer r.end()
		r.log.refuse = func(e spool.Entry) error {
			if e.Record.Topic == "cmd/deep" {
				return fmt.Errorf("%w: too deep", ErrRefused)
			}
			return nil
		}
		cfg := commands()
		cfg.Topic, cfg.MaxPayload = "cmd/${key}", 2<<10
		for _, key := range []string{"good", "a/b", "+", "#", "a\x00b", "\xff", "", "deep", "good"} {
			r.write(&kgo.Record{Topic: "commands", Key: []byte(key), Value: []byte("x")})
		}
		r.write(&kgo.Record{Topic: "commands", Value: []byte("no key")}, &kgo.Record{Topic: "commands", Key: []byte("large"), Value: make([]byte, 3<<10)},
			&kgo.Record{Topic: "commands", Key: []byte("good"), Value: []byte("x")})
		r.start(cfg)
		r.untilRecords(3)
		r.until("all dead letters", func() bool { return len(r.log.dead()) == 9 })
		for _, rec := range r.log.all() {
			if rec.Topic != "cmd/good" {
				t.Errorf("published to %q", rec.Topic)
			}
		}
		got := fmt.Sprint(r.info("down").Poison)
		if want := "map[bad_expiry:0 bad_qos:0 bad_response_topic:0 bad_retain:0 bad_topic:6 invalid_json:0 json_too_large:0 missing_field:1 refused:1 too_large:1]"; got != want {
			t.Errorf("poison %s, want %s", got, want)
		}
		r.until("the position behind it", func() bool { return r.info("down").PartitionList[0].Position == 12 })
	})
}

// A topic whose MQTT stream is full waits and is paused; another one goes on; in the end all has come.
func TestFullSpoolPausesOnlyWhatItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(2, "commands"))
		defer r.end()
		cfg := commands()
		cfg.MaxBuffered = 64 << 10
		r.log.setFull("cmd/commands/p0", true)
		r.start(cfg)
		const n = 3000 // more than max_buffered has room for
		r.produce("commands", 0, 0, n)
		r.produce("commands", 1, 0, n)
		r.untilRecords(n)
		r.until("a paused partition", func() bool { return r.info("down").Stopped == 1 })
		if b := r.info("down").Buffered; b > hardLimit*64<<10 {
			t.Errorf("%d bytes in memory, want at most %d", b, hardLimit*64<<10)
		}
		r.until("stuck", func() bool { i := r.info("down"); return i.State == Stuck && i.Reason == "spool_full" })
		r.log.setFull("cmd/commands/p0", false)
		r.untilRecords(2 * n)
		time.Sleep(time.Minute)
		r.inOrder(2 * n)
		if i := r.info("down"); i.Stopped != 0 || i.State != Idle || i.Buffered != 0 {
			t.Errorf("info %+v, want nothing paused", i)
		}
	})
}

func TestPauseAndResumeLastOverRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "commands"))
		defer r.end()
		ctx := context.Background()
		r.start(commands())
		r.produce("commands", 0, 0, 10)
		r.untilRecords(10)
		for range 2 {
			if err := r.e.Pause(ctx, "down"); err != nil {
				t.Fatal(err)
			}
		}
		r.produce("commands", 0, 10, 10)
		r.stop()
		r.start(commands())
		time.Sleep(time.Minute)
		if n := len(r.log.all()); n != 10 || r.info("down").State != Paused {
			t.Errorf("%d records in state %v, want 10 and a pause", n, r.info("down").State)
		}
		if err := r.e.Resume(ctx, "down"); err != nil {
			t.Fatal(err)
		}
		r.untilRecords(20)
		r.inOrder(20)
		if err := r.e.Pause(ctx, "other"); err == nil {
			t.Error("an unknown downlink was paused")
		}
	})
}

func TestApplyAddsChangesAndRemoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "commands", "more"))
		defer r.end()
		r.start(commands())
		r.produce("commands", 0, 0, 10)
		r.untilRecords(10)
		second := commands()
		second.Name, second.Topics = "more", []string{"more"}
		changed := commands()
		changed.QoS = "2"
		if err := r.e.Apply(t.Context(), defaults([]Config{second, changed})); err != nil {
			t.Fatal(err)
		}
		r.produce("commands", 0, 10, 10)
		r.produce("more", 0, 0, 10)
		r.untilRecords(30)
		if err := r.e.Apply(t.Context(), defaults([]Config{second})); err != nil {
			t.Fatal(err)
		}
		r.produce("commands", 0, 20, 10)
		r.produce("more", 0, 10, 10)
		r.untilRecords(40)
		time.Sleep(time.Minute)
		if err := r.e.Apply(t.Context(), defaults([]Config{second, changed})); err != nil { // it goes on where it was
			t.Fatal(err)
		}
		r.untilRecords(50)
		r.inOrder(50)
		for i, rec := range r.log.all() {
			if rec.Topic == "cmd/commands/p0" && i >= 10 && rec.QoS != 2 {
				t.Fatalf("record %d has QoS %d after the change", i, rec.QoS)
			}
		}
	})
}

// lateLog makes what it accepts durable only when it is told to: an entry that is accepted is not in the state yet.
type lateLog struct {
	*memLog
	late    atomic.Bool
	mu      sync.Mutex
	entries []spool.Entry
}

func (l *lateLog) Append(ctx context.Context, e spool.Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.late.Load() {
		l.entries = append(l.entries, e)
		return nil
	}
	return l.memLog.Append(ctx, e)
}

func (l *lateLog) Publish(ctx context.Context, e spool.Entry) error { return l.Append(ctx, e) }

// settle makes everything durable, in order.
func (l *lateLog) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late.Store(false)
	for _, e := range l.entries {
		_ = l.memLog.Append(context.Background(), e)
	}
	l.entries = nil
}

// A changed downlink goes on behind what the one before it has given to the log, durable or not.
func TestApplyWaitsForWhatIsOnItsWayToTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, kfake.SeedTopics(1, "commands"))
		defer r.end()
		late := &lateLog{memLog: r.log}
		r.startOn(late, late, commands())
		r.produce("commands", 0, 0, 10)
		r.untilRecords(10)
		late.late.Store(true)
		r.produce("commands", 0, 10, 10)
		time.Sleep(time.Minute)
		changed := commands()
		changed.QoS = "2"
		applied := make(chan error, 1)
		go func() { applied <- r.e.Apply(t.Context(), defaults([]Config{changed})) }()
		time.Sleep(time.Minute)
		late.settle()
		if err := <-applied; err != nil {
			t.Fatal(err)
		}
		r.produce("commands", 0, 20, 10)
		r.untilRecords(30)
		time.Sleep(time.Minute)
		r.inOrder(30)
		// One that cannot be made leaves everything as it was.
		bad := commands()
		bad.Name, bad.From = "bad", "soon"
		if err := r.e.Apply(t.Context(), defaults([]Config{bad})); err == nil {
			t.Error("applied a fault")
		}
		r.produce("commands", 0, 30, 10)
		r.untilRecords(40)
		r.inOrder(40)
	})
}

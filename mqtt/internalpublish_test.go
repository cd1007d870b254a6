package mqtt

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// landedRecord receives what became of an entry.
type landedRecord chan error

func (l landedRecord) Durable(_ *spool.Record, err error) { l <- err }

// own is a publish of the gateway itself.
func own(topic, payload string) *spool.Record {
	return &spool.Record{Topic: topic, Payload: []byte(payload), ClientID: "$forebay/downlink/d/t/0", QoS: 1, ReceivedAt: time.Now().UnixNano()}
}

func TestServerPublishesWithItsChangesInOneGroup(t *testing.T) {
	srv, log := faulty(t, nil)
	sub := join(t, srv, mqtttest.Connect{ID: "sub"})
	sub.Subscribe("cmd/#", 1)
	done := make(landedRecord, 10)
	publish := func(rec *spool.Record, position string) {
		t.Helper()
		e := spool.Entry{Record: rec, Done: done, Changes: []spool.Change{{Space: "position", Key: "p", Value: []byte(position)}}}
		if err := srv.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	log.set(func() { log.hold = true })
	publish(own("cmd/1", "on"), "1")
	sub.ExpectNothing(1) // nobody gets what is not durable
	log.set(func() { log.hold = false })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	sub.ExpectPublish(mqtttest.Publish{Topic: "cmd/1", Payload: "on", QoS: 1})
	log.set(func() {
		if got := log.state["position"]["p"]; !bytes.Equal(got, []byte("1")) {
			t.Errorf("position %q in the log, want 1", got)
		}
	})
	kept := own("cmd/kept", "state")
	kept.Retain = true
	publish(kept, "2")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	sub.ExpectPublish(mqtttest.Publish{Topic: "cmd/kept", Payload: "state", QoS: 1})
	late := join(t, srv, mqtttest.Connect{ID: "late"})
	late.Subscribe("cmd/kept", 1)
	late.ExpectPublish(mqtttest.Publish{Topic: "cmd/kept", Payload: "state", QoS: 1, Retain: true})
	cleared := own("cmd/kept", "")
	cleared.Retain = true
	publish(cleared, "3")
	if err := <-done; err != nil || srv.retained.len() != 0 {
		t.Errorf("%d retained after it was cleared, %v", srv.retained.len(), err)
	}
	failed := errors.New("disk")
	log.set(func() { log.fail = failed })
	publish(own("cmd/2", "off"), "4")
	if err := <-done; !errors.Is(err, failed) {
		t.Errorf("told %v, want %v", err, failed)
	}
}

func TestServerPublishesNothingThatAClientCouldNot(t *testing.T) {
	srv, log := faulty(t, func(c *Config, _ *Options) {
		c.MaxTopicLevels, c.MaxTopicLength, c.MaxUserProperties, c.MaxRetained = 4, 100, 2, 1
	})
	f := func(rec *spool.Record, refused bool) {
		t.Helper()
		done := make(landedRecord, 1)
		err := srv.Publish(t.Context(), spool.Entry{Record: rec, Done: done})
		if errors.Is(err, ErrUnpublishable) != refused {
			t.Errorf("topic %.40q: %v, want refused: %t", rec.Topic, err, refused)
		}
		if err == nil {
			<-done
		}
	}
	for _, topic := range []string{"", "a/+", "#", "a\x00", "a\xff", "$SYS/a", "$share/g/a", "a/b/c/d/e", strings.Repeat("x", 101)} {
		f(own(topic, "x"), true)
	}
	f(own("a/b/c/d", "x"), false)
	props := own("a", "x")
	props.Properties = &spool.Properties{User: make([]spool.UserProperty, 3)}
	f(props, true)
	for i, refused := range []bool{false, true} {
		rec := own("kept/"+strconv.Itoa(i), "x")
		rec.Retain = true
		f(rec, refused)
	}
	// What there is no room for is about the log and not about the record, and reserves nothing.
	log.set(func() { log.refuse = refuseRecords(spool.ErrFull) })
	again := own("kept/0", "y")
	again.Retain = true
	if err := srv.Publish(t.Context(), spool.Entry{Record: again}); !errors.Is(err, spool.ErrFull) || errors.Is(err, ErrUnpublishable) {
		t.Errorf("full: %v", err)
	}
	log.set(func() { log.refuse = nil })
	srv.retained.mu.Lock()
	if srv.retained.reserved != (reservation{}) {
		t.Errorf("reserved %+v", srv.retained.reserved)
	}
	srv.retained.mu.Unlock()
	// It waits as an append does.
	block := make(chan struct{})
	log.set(func() { log.block = block })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := srv.Publish(ctx, spool.Entry{Record: own("a", "x")}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no room for a while: %v", err)
	}
	log.set(func() { log.block = nil })
}

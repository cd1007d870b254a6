package kafkatest_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/bridge/kafkatest"
)

// One node serves, keeps what was acknowledged through a kill, and stops.
func TestNodeKeepsRecordsThroughKill(t *testing.T) {
	c := kafkatest.Start(t, kafkatest.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Brokers()...), kgo.DefaultProduceTopic("t"), kgo.ConsumeTopics("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, 1, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(ctx, kgo.StringRecord("kept")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	c.Node(0).Kill()
	if err := c.Node(0).Start(); err != nil {
		t.Fatal(err)
	}
	fetched := cl.PollFetches(ctx)
	if err := fetched.Err(); err != nil {
		t.Fatal(err)
	}
	if rs := fetched.Records(); len(rs) != 1 || string(rs[0].Value) != "kept" {
		t.Errorf("fetched %v, want the one record that was acknowledged before the kill", rs)
	}
}

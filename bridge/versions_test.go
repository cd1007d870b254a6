package bridge

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

// Brokers that offer no more than the requests of an old release: topics are made, their limits read, and every record comes once
// and in order.
func TestOldBrokersAreSpokenToInTheirVersions(t *testing.T) {
	f := func(name string, v *kversion.Versions, replication int16) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, newMemLog(map[string]int{"default": 2}), kfake.MaxVersions(v))
				defer r.end()
				r.publish(levels(2), 10, 20)
				r.start(Config{Routes: []RouteConfig{{Name: "all", Topic: "t.${topic[1]}", CreateTopics: &kafka.Create{Partitions: 3, Replication: replication}}}})
				r.drained(time.Minute)
				r.complete("t.l0", "t.l1")
			})
		})
	}
	f("2.0", kversion.V2_0_0(), 1)
	f("2.1", kversion.V2_1_0(), 1)
	f("2.4", kversion.V2_4_0(), 0)
	f("2.8", kversion.V2_8_0(), 0)
	f("3.0", kversion.V3_0_0(), 0)
	f("3.9", kversion.V3_9_0(), 0)
	f("4.0", kversion.V4_0_0(), 0)
}

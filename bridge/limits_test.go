package bridge

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (r *rig) setMaxMessage(topic, bytes string) {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value = "max.message.bytes", &bytes
	res.Configs = append(res.Configs, c)
	req.Resources = append(req.Resources, res)
	r.request(req)
}

// A producer that is told to forget a topic begins again with sequence number 0 under the same producer ID, and the broker
// takes what it sends for a repetition: acknowledged and not written. Nothing may make ours forget a topic that still is.
func TestChangedLimitLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemLog(map[string]int{"default": 1}), kfake.SeedTopics(1, "telemetry"))
		defer r.end()
		r.start(oneRoute(RouteConfig{Topic: "telemetry"}))
		for _, limit := range []string{"100000", "200000", "50000", "2000000", "1000"} {
			r.publish(oneTopic("a"), 1, 1)
			r.drained(time.Minute)
			r.setMaxMessage("telemetry", limit)
			time.Sleep(2 * time.Minute)
		}
		r.publish(oneTopic("a"), 1, 100)
		r.drained(time.Minute)
		r.complete("telemetry")
	})
}

package proof

import (
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// BenchmarkPublishToKafka publishes 5,000 messages a second of 200 B at QoS 1 for 20 s, with the gateway's default sizes and
// a broker that ten seconds of the same have warmed up, and reports how long they took to their acknowledgement and to a
// consumer of a real Apache Kafka on the same machine.
//
//	go test -run '^$' -bench PublishToKafka -benchtime 1x -count 5 ./loadtest/proof
func BenchmarkPublishToKafka(b *testing.B) {
	k := newApacheKafka(b)
	g := newGatewayOf(b, k.addr, "")
	g.start()
	g.awaitReady()
	load := fleet.Config{
		Broker: g.mqtt, TopicPrefix: "latency", Devices: 50, Rate: 5000, Mix: fleet.Mix{0, 100, 0}, Payload: 200,
		Kafka: []string{k.addr}, KafkaTopic: []string{"telemetry"}, Duration: 20 * time.Second,
	}
	warm := load
	warm.Duration = 10 * time.Second // a broker that has just started compiles its code
	<-startLoad(b, warm).done
	for b.Loop() {
		l := startLoad(b, load)
		<-l.done
		if l.err != nil || !l.r.Verdict.Reconciled {
			b.Fatalf("%v\n%s", l.err, l.text())
		}
		for _, to := range []struct{ name, unit string }{{"acknowledged", "ack"}, {"kafka", "kafka"}} {
			b.ReportMetric(l.r.Latency[to.name].P50, to.unit+"-p50-ms")
			b.ReportMetric(l.r.Latency[to.name].P99, to.unit+"-p99-ms")
		}
		b.ReportMetric(float64(l.r.Rates["acknowledged"]), "acked/s")
	}
}

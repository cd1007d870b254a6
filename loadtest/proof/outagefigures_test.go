package proof

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// BenchmarkOutage takes a real Apache Kafka away for a minute (FOREBAY_CRASH=long: ten) while 50 devices publish 2,000 messages of JSON
// telemetry a second, kills the gateway in the middle of it, and reports what that costs. Everything has to be in Kafka in the end, in
// order, and what was published with QoS 2 once: a device repeats a QoS 1 publish that the kill left without an answer. Targets: memory within 64 MiB,
// 90 B a message on the disk, a drain 20 times as fast as the ingest.
//
// Memory is compared with that of a process that has run for a while: a new one grows until spool.tail_size is full, whether Kafka is there
// or not. So 400,000 messages go through first; what the outage adds is what the first process, or the one after the kill, has
// more than that at any time.
func BenchmarkOutage(b *testing.B) {
	const rate = 2000
	away := time.Minute
	if long() {
		away = 10 * time.Minute
	}
	k := newApacheKafka(b)
	g := newGatewayOf(b, k.addr, "")
	g.start()
	g.awaitReady()
	load := fleet.Config{
		Broker: g.mqtt, TopicPrefix: "warm", Devices: 50, Count: 400_000, Mix: fleet.Mix{0, 50, 50}, Payload: 200, Window: 100,
		Kafka: []string{k.addr}, KafkaTopic: []string{"telemetry"}, IDHeader: "forebay.id", Drain: time.Minute,
	}
	warm := startLoad(b, load)
	<-warm.done
	if warm.err != nil || !warm.r.Verdict.Reconciled {
		b.Fatalf("%v\n%s", warm.err, warm.text())
	}
	load.TopicPrefix, load.Count, load.Rate = "outage", 0, rate
	l := startLoad(b, load)
	l.await("records in Kafka", func(s fleet.Snapshot) bool { return s.Bridged > 20*rate })
	disk, acked := g.metric("forebay_spool_disk_bytes"), l.Snapshot().Acknowledged
	began := time.Now()
	anonymous, mapped := g.memory("RssAnon"), g.memory("RssFile")
	b.Logf("before: %d MiB of its own, %d MiB of mapped files", anonymous>>20, mapped>>20)
	most := int64(0)
	wait := func(d time.Duration) {
		own, files := sample(func() int64 { return g.memory("RssAnon") }), sample(func() int64 { return g.memory("RssFile") })
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(min(30*time.Second, time.Until(end))) {
			b.Logf("%v: %d MiB of its own, %d MiB of mapped files", time.Since(began).Round(time.Second), g.memory("RssAnon")>>20, g.memory("RssFile")>>20)
		}
		a, f := own.stop(), files.stop()
		b.Logf("at most %d MiB of its own, %d MiB of mapped files", a>>20, f>>20)
		most = max(most, a)
	}
	k.stop()
	wait(away / 2)
	g.kill()
	g.start()
	start := g.awaitReady()
	l.await("progress without the upstream", func(s fleet.Snapshot) bool { return s.InFlight < 1000 })
	wait(away / 2)
	during := l.Snapshot()
	filled := g.metric("forebay_spool_disk_bytes") - disk
	k.start()
	l.await("the first record after the return", func(s fleet.Snapshot) bool { return s.Bridged > during.Bridged+100 })
	back, from := time.Now(), l.Snapshot()
	l.await("an empty backlog", func(s fleet.Snapshot) bool { return s.ToBridge < rate/10 })
	drain := float64(l.Snapshot().Bridged-from.Bridged) / time.Since(back).Seconds()
	time.Sleep(15 * time.Second)
	left := g.metric("forebay_spool_disk_bytes") - disk
	r := l.finish()
	b.Logf("%s", r.Text())
	b.ReportMetric(float64(most-anonymous)/(1<<20), "grown-MiB")
	b.ReportMetric(filled/float64(during.Acknowledged-acked), "disk-B/msg")
	b.ReportMetric(drain/rate, "drain-x")
	b.ReportMetric(left/(1<<20), "disk-left-MiB")
	b.ReportMetric(float64(start.Milliseconds()), "ready-ms")
	b.ReportMetric(float64(r.Verdict.Acknowledged.Total()), "msgs")
	b.ReportMetric(0, "ns/op")
}

// metric is the sum of a metric's series, as the gateway shows it.
func (g *gateway) metric(name string) (sum float64) {
	g.t.Helper()
	resp, err := http.Get("http://" + g.admin + "/metrics")
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	found := false
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		series, value, ok := strings.Cut(s.Text(), " ")
		if n, _, _ := strings.Cut(series, "{"); !ok || n != name {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			g.t.Fatal(fmt.Errorf("%s: %w", series, err))
		}
		sum, found = sum+v, true
	}
	if !found {
		g.t.Fatalf("no metric %s", name)
	}
	return sum
}

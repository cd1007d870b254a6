package bridge

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/bridge/embedded"
	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// BenchmarkDelivery compares a route, spool reads left out, with the plain producer on the same records and broker.
func BenchmarkDelivery(b *testing.B) {
	cfg := embedded.DefaultConfig()
	cfg.Enabled, cfg.Address, cfg.Dir = true, "127.0.0.1:0", b.TempDir()
	u, err := embedded.Start(cfg, embedded.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer u.Close()
	record := func(i int) spool.Record {
		return spool.Record{
			Topic: "site/line4/temp", ClientID: fmt.Sprintf("device-%04d", i%1000), QoS: 1, ReceivedAt: time.Now().UnixNano(),
			Payload: fmt.Appendf(nil, `{"ts":%d,"temperature":%d.%d,"unit":"C","state":"running","seq":%d,"location":"hall 7, line 4, press 12","firmware":"4.11.2","rssi":-%d,"battery":%d}`,
				time.Now().UnixMilli(), 20+i%10, i%100, i, 40+i%30, i%100),
		}
	}
	b.Run("plain", func(b *testing.B) {
		cl, err := kgo.NewClient(kgo.SeedBrokers(u.Addr()), kgo.AllowAutoTopicCreation(), kgo.DefaultProduceTopic("plain"),
			kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.MaxBufferedRecords(100_000))
		if err != nil {
			b.Fatal(err)
		}
		defer cl.Close()
		records := make([]spool.Record, b.N)
		for i := range records {
			records[i] = record(i)
		}
		r, err := newRoute(RouteConfig{Name: "all", Topic: "plain", Stream: "default"}, "gw", nil)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		b.ResetTimer()
		var wait sync.WaitGroup
		wait.Add(b.N)
		for i := range records {
			rec := &records[i]
			kr := &kgo.Record{Key: []byte(rec.ClientID), Value: rec.Payload, Timestamp: time.Unix(0, rec.ReceivedAt), Headers: []kgo.RecordHeader{
				{Key: mapping.HeaderTopic, Value: []byte(rec.Topic)},
				{Key: mapping.HeaderClientID, Value: []byte(rec.ClientID)},
				{Key: mapping.HeaderQoS, Value: []byte("1")},
				{Key: mapping.HeaderRetain, Value: []byte("false")},
				{Key: headerID, Value: []byte(r.id(rec))},
			}}
			cl.Produce(context.Background(), kr, func(_ *kgo.Record, err error) {
				if err != nil {
					b.Error(err)
				}
				wait.Done()
			})
		}
		wait.Wait()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rec/s")
	})
	b.Run("route", func(b *testing.B) {
		l := newMemLog(map[string]int{"default": 4})
		for i := range b.N {
			l.add("default", i%4, record(i))
		}
		br, err := New(b.Context(), Config{
			Upstreams: []kafka.Config{{Name: "main", Brokers: []string{u.Addr()}}},
			Routes:    []RouteConfig{{Name: "all", Topic: "route", CreateTopics: &kafka.Create{Partitions: 6}}},
		}, Options{Log: l, GatewayID: "gw"})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		b.ResetTimer()
		ran := make(chan struct{})
		go func() { br.Run(context.Background()); close(ran) }()
		for br.Stats()[0].Sent < uint64(b.N) {
			time.Sleep(time.Millisecond)
		}
		b.StopTimer()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rec/s")
		if err := br.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		<-ran
	})
}

package spool

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

type counter struct {
	slots chan struct{}
}

func (c counter) Durable(*Record, error) { <-c.slots }

// BenchmarkAppend measures acknowledged appends of 256 B telemetry: producers that wait for each, and one that has many
// outstanding.
func BenchmarkAppend(b *testing.B) {
	for _, producers := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("producers=%d", producers), func(b *testing.B) {
			s := benchSpool(b)
			var n atomic.Int64
			n.Store(int64(b.N))
			var wg sync.WaitGroup
			for p := range producers {
				wg.Go(func() {
					w := newWaiter()
					for n.Add(-1) >= 0 {
						if err := s.Append(context.Background(), Entry{Record: benchRecord(p), Done: w}); err != nil {
							b.Error(err)
							return
						}
						<-w
					}
				})
			}
			wg.Wait()
		})
	}
	for _, outstanding := range []int{1024, 8192} {
		b.Run(fmt.Sprintf("outstanding=%d", outstanding), func(b *testing.B) {
			s := benchSpool(b)
			c := counter{make(chan struct{}, outstanding)}
			for i := range b.N {
				c.slots <- struct{}{}
				if err := s.Append(context.Background(), Entry{Record: benchRecord(i), Done: c}); err != nil {
					b.Fatal(err)
				}
			}
			for range outstanding {
				c.slots <- struct{}{}
			}
		})
	}
}

func benchSpool(b *testing.B) *Spool {
	cfg := DefaultConfig()
	cfg.Dir = b.TempDir()
	s := mustOpen(b, cfg, Options{})
	b.ReportAllocs()
	b.ResetTimer()
	return s
}

var benchPayload = fmt.Appendf(nil, `{"device":"pump-17","site":"north","seq":%d,"temperature":21.%d,"pressure":%d.25,"vibration":[0.12,0.15,0.11,0.19],"state":"running","firmware":"4.12.7","battery":0.93,"rssi":-67,"uptime":123456,"errors":[],"note":"nominal operation"}`, 123456, 7, 1013)

func benchRecord(i int) *Record {
	return &Record{Topic: "plant/north/line/4/pump/17/telemetry", ClientID: benchClients[i%64], Payload: benchPayload, QoS: 1, ReceivedAt: 1}
}

var benchClients = func() (c [64]string) {
	for i := range c {
		c[i] = fmt.Sprintf("device-%d", i)
	}
	return c
}()

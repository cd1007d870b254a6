package mqtt_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// again stops the server and starts it with another registry for its spool: what was in memory is gone, and everything is in
// the segments.
func (s *server) again(t *testing.T, reg *prometheus.Registry) *mqtt.Server {
	t.Helper()
	s.stop(t)
	log, err := spool.Open(s.spool, spool.Options{Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := mqtt.New(t.Context(), s.cfg, mqtt.Options{Log: mqtt.SpoolLog(log)})
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Listen(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Run(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := srv.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	return srv
}

// Sessions that return together, all with the same to read, share what is read from the segments.
func TestReturningSessionsShareTheScan(t *testing.T) {
	const sessions, messages = 200, 200
	s := newServer(filepath.Join(t.TempDir(), "spool"))
	s.run(t)
	id := func(i int) mqtttest.Connect {
		return mqtttest.Connect{ID: "sub" + strconv.Itoa(i), Resume: true, Properties: `11 00000e10`}
	}
	for i := range sessions {
		c := s.connect(t, id(i))
		c.Subscribe("t", 1)
		c.Disconnect()
	}
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	payload := strings.Repeat("x", 4<<10)
	for range messages {
		pub.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: payload})
	}
	for range messages {
		pub.Expect(packets.Puback)
	}
	reg := prometheus.NewRegistry()
	srv := s.again(t, reg)
	var clients sync.WaitGroup
	for i := range sessions {
		c := mqtttest.Dial(t, srv.Addr("tcp"))
		c.Connect(id(i))
		clients.Go(func() {
			for range messages {
				pk, err := c.TryNext(30 * time.Second)
				if err != nil || pk.FixedHeader.Type != packets.Publish {
					t.Errorf("%v, %v", pk.FixedHeader, err)
					return
				}
				c.SendAck(packets.Puback, pk.PacketID)
			}
		})
	}
	clients.Wait()
	reads := -1.0
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "forebay_spool_segment_reads_total" {
			reads = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Logf("%v reads of segments for %d sessions", reads, sessions)
	// One session alone needs four or more of 256 KiB each.
	if reads < 2 || reads > 40 {
		t.Errorf("%v reads of segments", reads)
	}
}

// Sessions that return together take turns: none is through long before another, and all of the time of a turn is a small part
// of what each has to get. One with very much to get is not in the way of the others.
func TestReturningSessionsAreServedFairly(t *testing.T) {
	sessions, messages := 100, 500
	if os.Getenv("FOREBAY_CRASH") == "long" { // 2,000 sessions, for the figure
		sessions, messages = 2000, 100
	}
	s := newServer(filepath.Join(t.TempDir(), "spool"))
	s.run(t)
	id := func(i int) mqtttest.Connect {
		return mqtttest.Connect{ID: "sub" + strconv.Itoa(i), Resume: true, Properties: `11 00000e10 21 0020`} // 32 in flight
	}
	for i := range sessions {
		c := s.connect(t, id(i))
		c.Subscribe("t/"+strconv.Itoa(i%2), 1)
		if i == 0 {
			c.Subscribe("much", 1)
		}
		c.Disconnect()
	}
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	publish := func(topic string, n int) {
		for range n {
			pub.SendPublish(mqtttest.Publish{Topic: topic, QoS: 1, Payload: "0123456789"})
		}
		for range n {
			pub.Expect(packets.Puback)
		}
	}
	publish("much", 1000)
	for range messages / 100 {
		for range 100 {
			publish("t/0", 1)
			publish("t/1", 1)
		}
	}
	srv := s.again(t, prometheus.NewRegistry())

	got := make([]atomic.Int32, sessions)
	var total atomic.Int32
	half := make(chan []int32, 1)
	start := make(chan struct{})
	var clients sync.WaitGroup
	began := time.Now()
	for i := range sessions {
		c := mqtttest.Dial(t, srv.Addr("tcp"))
		c.Connect(id(i))
		clients.Go(func() {
			<-start // until then each has its 32 messages in flight and no more
			for got[i].Load() < int32(messages) {
				pk, err := c.TryNext(30 * time.Second)
				if err != nil || pk.FixedHeader.Type != packets.Publish {
					t.Errorf("session %d: %v, %v", i, pk.FixedHeader, err)
					return
				}
				c.SendAck(packets.Puback, pk.PacketID)
				if pk.TopicName == "much" {
					continue
				}
				got[i].Add(1)
				if total.Add(1) == int32(sessions*messages/2) {
					var now []int32
					for j := range got {
						now = append(now, got[j].Load())
					}
					half <- now
				}
			}
		})
	}
	connected := time.Since(began)
	began = time.Now()
	close(start)
	clients.Wait()
	took := time.Since(began)
	if t.Failed() {
		return
	}
	at := (<-half)[1:]
	slices.Sort(at)
	t.Logf("%d sessions with %d messages each: connected in %v, then served in %v; when half was delivered, they had %d, %d, %d (least, median, most)",
		sessions, messages, connected.Round(time.Millisecond), took.Round(time.Millisecond), at[0], at[len(at)/2], at[len(at)-1])
	if least := at[len(at)/20]; sessions == 100 && int(least) < messages/10 {
		t.Errorf("when half was delivered, a twentieth of the sessions had %d messages or fewer of %d", least, messages)
	}
}

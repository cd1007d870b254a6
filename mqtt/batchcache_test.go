package mqtt_test

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

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
	s.stop(t) // the memory of the spool is gone: everything is in the segments

	reg := prometheus.NewRegistry()
	log, err := spool.Open(s.spool, spool.Options{Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := mqtt.New(s.cfg, mqtt.Options{Log: mqtt.SpoolLog(log)})
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Listen(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Run(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
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
	var clients sync.WaitGroup
	for i := range sessions {
		c := mqtttest.Dial(t, srv.Addr("tcp"))
		c.Connect(id(i))
		clients.Go(func() {
			for range messages {
				pk, err := c.TryNext(10 * time.Second)
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

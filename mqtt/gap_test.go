package mqtt_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// A session that retention has passed gets what is left, in order, and what is gone is counted, to the record.
func TestSessionThatRetentionHasPassedGetsACountedGap(t *testing.T) {
	s := newServer(filepath.Join(t.TempDir(), "spool"))
	s.cfg.ProtectSessions = 0 // retention does not wait for who is away
	s.spool.Segment.MaxSize = 1 << 20
	s.spool.Streams[0].MaxSize = 3 << 20
	s.run(t)
	sub := s.connect(t, keep("sub"))
	sub.Subscribe("t", 1)
	sub.Disconnect()
	pub := s.connect(t, mqtttest.Connect{ID: "pub"})
	const n = 1000
	for i := range n {
		pub.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: strconv.Itoa(i) + " " + noise(16<<10)})
	}
	for range n {
		pub.Expect(packets.Puback)
	}
	srv := s.again(t, prometheus.NewRegistry())
	c := mqtttest.Dial(t, srv.Addr("tcp"))
	if !c.Connect(keep("sub")).SessionPresent {
		t.Fatal("the session is gone")
	}
	got, last := 0, -1
	for last != n-1 {
		pk := c.Expect(packets.Publish)
		text, _, _ := strings.Cut(string(pk.Payload), " ")
		i, err := strconv.Atoi(text)
		if err != nil || i <= last {
			t.Fatalf("%q after %d", text, last)
		}
		got, last = got+1, i
		c.SendAck(packets.Puback, pk.PacketID)
	}
	for end := time.Now().Add(30 * time.Second); srv.Stats().Gaps != uint64(n-got) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if gaps := srv.Stats().Gaps; got == n || gaps != uint64(n-got) {
		t.Errorf("%d of %d arrived, %d are counted as gone", got, n, gaps)
	}
}

// noise does not become smaller in a segment.
func noise(n int) string {
	b := make([]byte, n)
	x := uint32(time.Now().UnixNano()) | 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return string(b)
}

package mqtt_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// device is a client that keeps its session's state as the standard wants it, over as many connections as it takes.
type device struct {
	t    *testing.T
	addr func() net.Addr
	id   string
	c    *mqtttest.Client
	rnd  *rand.Rand

	connected bool // at least once
	lost      atomic.Int32
}

// connect connects until it works. The server must still have the session.
func (d *device) connect() {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("tcp", d.addr().String())
		if err != nil {
			continue
		}
		c := mqtttest.NewClient(d.t, conn)
		c.SendConnect(keep(d.id, `21 0014`))
		pk, err := c.TryNext(20 * time.Second)
		if err != nil || pk.FixedHeader.Type != packets.Connack || pk.ReasonCode != 0 {
			c.Close()
			continue
		}
		if d.connected && !pk.SessionPresent {
			d.t.Errorf("%s: the session is gone", d.id)
		}
		d.c, d.connected = c, true
		return
	}
	d.t.Errorf("%s: cannot connect", d.id)
	panic("stress: no connection")
}

// whim now and then breaks the connection, from this side or by a take-over.
func (d *device) whim() {
	switch d.rnd.IntN(150) {
	case 0:
		d.c.Close()
		d.connect()
	case 1:
		d.connect() // the old connection is still there
	default:
		return
	}
	d.lost.Add(1)
}

// sending is a message on its way to the server.
type sending struct {
	n        int
	id       uint16
	released bool // PUBREC came, PUBREL was sent
}

// publish sends n numbered messages, at most window at once, and returns when all are acknowledged to the end.
func (d *device) publish(topic string, qos byte, n, window int) {
	d.connect()
	var open []sending
	send := func(s sending, dup bool) {
		if s.released {
			d.c.SendAck(packets.Pubrel, s.id)
			return
		}
		d.c.SendPublish(mqtttest.Publish{Topic: topic, QoS: qos, ID: s.id, Dup: dup, Payload: fmt.Sprint(s.n)})
	}
	seen := d.lost.Load()
	for next := 0; next < n || len(open) > 0; {
		if l := d.lost.Load(); l != seen { // MQTT 5, 4.4.0-1: everything again, in the original order
			seen = l
			for _, s := range open {
				send(s, true)
			}
		}
		for next < n && len(open) < window {
			s := sending{n: next, id: uint16(1 + next%60000)}
			open = append(open, s)
			send(s, false)
			next++
		}
		pk, err := d.c.TryNext(20 * time.Second)
		if err != nil {
			d.c.Close()
			d.connect()
			d.lost.Add(1)
			continue
		}
		i := slices.IndexFunc(open, func(s sending) bool { return s.id == pk.PacketID })
		switch {
		case i < 0: // of a connection before
		case pk.FixedHeader.Type == packets.Puback && pk.ReasonCode < 0x80:
			open = slices.Delete(open, i, i+1)
		case pk.FixedHeader.Type == packets.Pubrec && pk.ReasonCode < 0x80:
			open[i].released = true
			send(open[i], false)
		case pk.FixedHeader.Type == packets.Pubcomp: // 0x92: it was completed before the connection broke
			open = slices.Delete(open, i, i+1)
		case pk.FixedHeader.Type == packets.Disconnect:
		default:
			d.t.Errorf("%s: got %+v", d.id, pk)
		}
		d.whim()
	}
}

// receive subscribes and returns what came for each topic until enough says so.
func (d *device) receive(filter string, ready chan<- struct{}, enough func(got map[string][]int) bool) map[string][]int {
	d.connect()
	d.c.Subscribe(filter, 2)
	close(ready)
	got := make(map[string][]int)
	held := make(map[uint16]bool) // QoS 2 identifiers between PUBLISH and PUBREL
	for !enough(got) {
		pk, err := d.c.TryNext(20 * time.Second)
		if err != nil {
			d.c.Close()
			d.connect()
			continue
		}
		switch pk.FixedHeader.Type {
		case packets.Publish:
			n := -1
			_, _ = fmt.Sscan(string(pk.Payload), &n)
			switch pk.FixedHeader.Qos {
			case 1:
				got[pk.TopicName] = append(got[pk.TopicName], n)
				d.c.SendAck(packets.Puback, pk.PacketID)
			case 2:
				if !held[pk.PacketID] {
					held[pk.PacketID] = true
					got[pk.TopicName] = append(got[pk.TopicName], n)
				} else if !pk.FixedHeader.Dup {
					d.t.Errorf("identifier %d is used again before PUBREL", pk.PacketID)
				}
				d.c.SendAck(packets.Pubrec, pk.PacketID)
			}
		case packets.Pubrel:
			delete(held, pk.PacketID)
			d.c.SendAck(packets.Pubcomp, pk.PacketID)
		}
		d.whim()
	}
	return got
}

// stress runs publishers and a subscriber that break their connections all the time, while chaos runs, and checks that
// nothing is lost, nothing of QoS 2 is doubled, and order is kept.
func stress(t *testing.T, addr func() net.Addr, n int, chaos func(stop <-chan struct{})) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const publishers = 4
	newDevice := func(id string, i uint64) *device {
		return &device{t: t, addr: addr, id: id, rnd: rand.New(rand.NewPCG(seed, i))}
	}
	topic := func(i int) string { return fmt.Sprintf("stress/%d/q%d", i, 1+i%2) }
	enough := func(got map[string][]int) bool {
		for i := range publishers {
			if l := got[topic(i)]; len(l) == 0 || l[len(l)-1] != n-1 {
				return false
			}
		}
		return true
	}

	stop, ready := make(chan struct{}), make(chan struct{})
	var got map[string][]int
	var wg, trouble sync.WaitGroup
	wg.Go(func() { got = newDevice("subscriber", 99).receive("stress/#", ready, enough) })
	<-ready
	for i := range publishers {
		wg.Go(func() { newDevice(fmt.Sprint("publisher", i), uint64(i)).publish(topic(i), byte(1+i%2), n, 20) })
	}
	trouble.Go(func() { chaos(stop) })
	wg.Wait()
	close(stop)
	trouble.Wait()
	for i := range publishers {
		check(t, topic(i), got[topic(i)], n, i%2 == 1)
	}
}

// check compares what came with 0..n-1. At QoS 1 a message may come again, together with those that followed it.
func check(t *testing.T, topic string, got []int, n int, once bool) {
	t.Helper()
	next, repeated := 0, 0
	for i, v := range got {
		switch {
		case v == next:
			next++
		case v > next:
			t.Errorf("%s: %d came after %d: lost or out of order", topic, v, next-1)
			return
		case once:
			t.Errorf("%s: %d came twice (after %v)", topic, v, got[max(0, i-5):i])
			return
		default:
			repeated++
		}
	}
	if next != n {
		t.Errorf("%s: %d of %d came", topic, next, n)
	}
	t.Logf("%s: %d repeated", topic, repeated)
}

func TestStressWithTakeOvers(t *testing.T) {
	s := newServer(filepath.Join(t.TempDir(), "spool"))
	s.spool.Streams[0].Partitions = 4
	s.run(t)
	t.Cleanup(func() { s.stop(t) })
	stress(t, func() net.Addr { return s.tcp }, 1000, func(<-chan struct{}) {})
}

func TestStressWithKills(t *testing.T) {
	v := startVictim(t)
	var addr atomic.Pointer[net.Addr]
	first := v.tcp
	addr.Store(&first)
	n := 1500
	if os.Getenv("FOREBAY_CRASH") == "long" {
		n = 30000
	}
	stress(t, func() net.Addr { return *addr.Load() }, n, func(stop <-chan struct{}) {
		for kills := 0; ; kills++ {
			select {
			case <-stop:
				t.Logf("%d kills", kills)
				return
			case <-time.After(200 * time.Millisecond):
			}
			v.crash(t)
			tcp := v.tcp
			addr.Store(&tcp)
		}
	})
}

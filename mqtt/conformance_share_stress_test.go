package mqtt_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
)

// member takes messages of a shared subscription, and now and then goes without acknowledging what it has. It calls in once it has
// subscribed.
func (d *device) member(filter string, qos byte, in func(), stop <-chan struct{}, took func(topic string, n int, again bool)) {
	d.connect()
	d.c.Subscribe(filter, qos)
	in()
	held := make(map[uint16]bool)
	for {
		select {
		case <-stop:
			return
		default:
		}
		pk, err := d.c.TryNext(50 * time.Millisecond)
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			continue
		}
		if err != nil {
			d.c.Close()
			d.connect()
			continue
		}
		switch pk.FixedHeader.Type {
		case packets.Publish:
			n := -1
			_, _ = fmt.Sscan(string(pk.Payload), &n)
			if d.rnd.IntN(40) == 0 { // dies with the message in its hands
				d.c.Close()
				d.connect()
				continue
			}
			if pk.FixedHeader.Qos == 1 {
				took(pk.TopicName, n, pk.FixedHeader.Dup)
				d.c.SendAck(packets.Puback, pk.PacketID)
				continue
			}
			if !held[pk.PacketID] {
				held[pk.PacketID] = true
				took(pk.TopicName, n, false)
			}
			d.c.SendAck(packets.Pubrec, pk.PacketID)
		case packets.Pubrel:
			delete(held, pk.PacketID)
			d.c.SendAck(packets.Pubcomp, pk.PacketID)
		}
	}
}

// sharedStress lets members of a shared subscription die while messages come, and checks that together they get each
// message, and with once those of QoS 2 just once.
func sharedStress(t *testing.T, addr func() net.Addr, n int, once bool, chaos func(stop <-chan struct{})) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	newDevice := func(id string, i uint64) *device {
		return &device{t: t, addr: addr, id: id, rnd: rand.New(rand.NewPCG(seed, i))}
	}
	const publishers = 2
	topic := func(i int) string { return fmt.Sprintf("shared/q%d", 1+i) }

	var mu sync.Mutex
	seen := map[string]map[int]int{topic(0): {}, topic(1): {}}
	took := func(topic string, n int, _ bool) {
		mu.Lock()
		defer mu.Unlock()
		seen[topic][n]++
	}
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen[topic(0)]) == n && len(seen[topic(1)]) == n
	}
	stop := make(chan struct{})
	var members, pubs sync.WaitGroup
	var group sync.WaitGroup // a group begins with its first member
	for i := range 3 {
		group.Add(1)
		members.Go(func() {
			in := sync.OnceFunc(group.Done)
			defer in()
			newDevice(fmt.Sprint("member", i), uint64(i)).member("$share/g/shared/#", 2, in, stop, took)
		})
	}
	group.Wait()
	for i := range publishers {
		pubs.Go(func() { newDevice(fmt.Sprint("publisher", i), uint64(10+i)).publish(topic(i), byte(1+i), n, 20) })
	}
	members.Go(func() { chaos(stop) })
	pubs.Wait()
	for end := time.Now().Add(60 * time.Second); !all() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	close(stop)
	members.Wait()
	for i := range publishers {
		missing, doubled := 0, 0
		for v := range n {
			switch seen[topic(i)][v] {
			case 0:
				missing++
				if missing < 5 {
					t.Errorf("%s: %d never came", topic(i), v)
				}
			case 1:
			default:
				doubled++
			}
		}
		if i == 1 && once && doubled > 0 {
			t.Errorf("%s: %d messages of QoS 2 came twice", topic(i), doubled)
		}
		t.Logf("%s: %d missing, %d more than once", topic(i), missing, doubled)
	}
}

func TestStressSharedSubscription(t *testing.T) {
	s := newServer(filepath.Join(t.TempDir(), "spool"))
	s.spool.Streams[0].Partitions = 4
	s.run(t)
	t.Cleanup(func() { s.stop(t) })
	sharedStress(t, func() net.Addr { return s.tcp }, 800, true, func(<-chan struct{}) {})
}

func TestStressSharedSubscriptionWithKills(t *testing.T) {
	const once = true
	v := startVictim(t)
	var addr atomic.Pointer[net.Addr]
	first := v.tcp
	addr.Store(&first)
	sharedStress(t, func() net.Addr { return *addr.Load() }, 3000, once, func(stop <-chan struct{}) {
		for {
			select {
			case <-stop:
				return
			case <-time.After(300 * time.Millisecond):
			}
			v.crash(t)
			tcp := v.tcp
			addr.Store(&tcp)
		}
	})
}

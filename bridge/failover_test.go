package bridge

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// pair is a bridge with two clusters, plant and cloud, whose lines can be cut.
type pair struct {
	*rig
	plant, cloud *site
}

// site is one cluster and the line to it.
type site struct {
	name    string
	cluster *kfake.Cluster
	brokers []string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func (s *site) dial(ctx context.Context, to *kfake.VirtualNetwork, network, addr string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		return nil, errors.New("no route to host")
	}
	c, err := to.DialContext(ctx, network, addr)
	if err == nil {
		s.conns[c] = true
	}
	return c, err
}

// down cuts the line, up mends it.
func (s *site) down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = true
	for c := range s.conns {
		_ = c.Close()
	}
	clear(s.conns)
}

func (s *site) up() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = false
}

func newPair(t *testing.T, partitions [2]int32, topics ...string) *pair {
	p := &pair{rig: &rig{t: t, log: newMemLog(map[string]int{"default": 2, "dead": 1}), net: new(kfake.VirtualNetwork), next: make(map[string]int)}}
	sites := make([]*site, 2)
	for i, name := range []string{"plant", "cloud"} {
		c, err := kfake.NewCluster(kfake.Ports(9001+100*i), kfake.ListenFn(p.net.Listen), kfake.NumBrokers(1), kfake.SeedTopics(partitions[i], topics...))
		if err != nil {
			t.Fatal(err)
		}
		sites[i] = &site{name: name, cluster: c, brokers: c.ListenAddrs(), conns: make(map[net.Conn]bool)}
	}
	p.plant, p.cloud = sites[0], sites[1]
	p.rig.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		for _, s := range sites {
			if addr == s.brokers[0] {
				return s.dial(ctx, p.net, network, addr)
			}
		}
		return nil, fmt.Errorf("%s is of no site", addr)
	}
	return p
}

func (p *pair) end() {
	p.stop()
	p.plant.cluster.Close()
	p.cloud.cluster.Close()
}

const (
	testAfter     = 10 * time.Second
	testBackAfter = time.Minute
)

func (p *pair) config(route RouteConfig) Config {
	cfg := oneRoute(route)
	cfg.DeadLetterStream = "dead"
	for _, s := range []*site{p.plant, p.cloud} {
		cfg.Upstreams = append(cfg.Upstreams, kafka.Config{Name: s.name, Brokers: s.brokers, Compression: "snappy"})
	}
	r := &cfg.Routes[0]
	r.Upstream, r.Failover.To = "plant", []string{"cloud"}
	r.Failover.After, r.Failover.FailBackAfter = unit.Duration(testAfter), unit.Duration(testBackAfter)
	return cfg
}

func (p *pair) on() string { return p.b.Health()[0].Upstream }

func (p *pair) moves() uint64 { return p.b.routes[0].counts.moves.Load() }

// arrives waits until the route is on an upstream.
func (p *pair) arrives(on string, limit time.Duration) {
	p.t.Helper()
	p.until("the route is on "+on, limit, func() bool { return p.on() == on })
}

// flow publishes a round of records every 100 ms for d.
func (p *pair) flow(topic func(int) string, clients int, d time.Duration) {
	for until := time.Now().Add(d); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		p.publish(topic, clients, 1)
	}
}

// trickle publishes a little every minute for d.
func (p *pair) trickle(d time.Duration) {
	for range d / time.Minute {
		p.flow(oneTopic("a"), 8, time.Second)
		time.Sleep(59 * time.Second)
	}
}

// got is what came of the records: in each cluster alone, and over both.
type got struct {
	lost    int // in neither
	both    int // in both
	in      [2]int
	doubled [2]int // within a cluster
	turned  [2]int // out of order within a cluster
}

func (p *pair) count(committed bool, topics ...string) (g got) {
	p.t.Helper()
	seen := make(map[string][2]int)
	for i, s := range []*site{p.plant, p.cloud} {
		p.cluster, p.brokers = s.cluster, s.brokers
		read := p.consume
		if committed {
			read = p.consumeCommitted
		}
		records := byTime(read(topics...))
		g.add(i, records, seen)
	}
	g.sum(seen, p.next)
	return g
}

func (g *got) add(i int, records []*kgo.Record, seen map[string][2]int) {
	g.in[i] = len(records)
	highest := make(map[string]uint64)
	for _, rec := range records {
		client, n := string(rec.Key), binary.BigEndian.Uint64(rec.Value)
		id := fmt.Sprint(client, "/", n)
		at := seen[id]
		if at[i]++; at[i] > 1 {
			g.doubled[i]++
		} else if n < highest[client] {
			g.turned[i]++
		}
		seen[id] = at
		highest[client] = max(highest[client], n)
	}
}

func (g *got) sum(seen map[string][2]int, next map[string]int) {
	for _, at := range seen {
		if at[0] > 0 && at[1] > 0 {
			g.both++
		}
	}
	for client, n := range next {
		for i := range n {
			if _, ok := seen[fmt.Sprint(client, "/", i)]; !ok {
				g.lost++
			}
		}
	}
}

// whole fails the test unless nothing is lost, each cluster has each record at most once and in order, and at most so many are in both.
func (g got) whole(t *testing.T, both int) {
	t.Helper()
	t.Logf("%+v", g)
	if g.lost != 0 || g.doubled != [2]int{} || g.turned != [2]int{} || g.both > both {
		t.Errorf("%+v, want none lost, none doubled or out of order in a cluster, at most %d in both", g, both)
	}
}

// The way there and back, with a restart on the standby.
func TestFailoverGoesToTheStandbyAndBack(t *testing.T) {
	for _, delivery := range []string{AtLeastOnce, ExactlyOnce} {
		t.Run(delivery, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topics := []string{"t.l0", "t.l1", "t.l2"}
				p := newPair(t, [2]int32{2, 2}, topics...)
				defer p.end()
				cfg := p.config(RouteConfig{Topic: "t.${topic[1]}", Delivery: delivery})
				p.start(cfg)
				p.flow(levels(3), 12, 5*time.Second)
				if h := p.b.Health()[0]; h.Upstream != "plant" || h.Failover.Standby || len(h.Failover.Upstreams) != 2 {
					t.Errorf("health %+v %+v", h, h.Failover)
				}
				p.plant.down()
				began := time.Now()
				for p.on() == "plant" {
					p.flow(levels(3), 12, time.Second)
					if time.Since(began) > 2*time.Minute {
						t.Fatalf("still on plant: %+v", p.b.Health())
					}
				}
				if took := time.Since(began); took < testAfter {
					t.Errorf("moved after %v, want %v at least", took, testAfter)
				}
				p.flow(levels(3), 12, 10*time.Second)
				p.drained(time.Minute)
				h := p.b.Health()[0]
				if h.State != Degraded || !h.Failover.Standby || h.Failover.By != byItself || h.Failover.Since.IsZero() || h.Failover.Reason == "" || !strings.Contains(h.Hint, "--to plant") {
					t.Errorf("health %+v %+v, want degraded", h, h.Failover)
				}
				p.stop()
				p.start(cfg)
				if p.on() != "cloud" {
					t.Errorf("on %s after a restart", p.on())
				}
				p.flow(levels(3), 12, 2*testBackAfter)
				if p.on() != "cloud" {
					t.Errorf("on %s while plant is away", p.on())
				}
				p.plant.up()
				p.flow(levels(3), 12, testBackAfter-5*time.Second)
				if p.on() != "cloud" {
					t.Error("back before the time")
				}
				p.arrives("plant", testBackAfter)
				p.flow(levels(3), 12, 10*time.Second)
				p.drained(time.Minute)
				if h := p.b.Health()[0]; h.State != Idle || h.Failover.Standby {
					t.Errorf("health %+v %+v, want idle", h, h.Failover)
				}
				if n := p.log.stored(activeSpace); n != 0 {
					t.Errorf("%d entries left", n)
				}
				// In the air when the line was cut: a round or two.
				p.count(delivery == ExactlyOnce, topics...).whole(t, 24)
			})
		})
	}
}

// Nobody is there: the route stays, and goes to whoever is there first.
func TestFailoverStaysWhereItIsWhileNobodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "t")
		defer p.end()
		p.start(p.config(RouteConfig{Topic: "t"}))
		p.flow(oneTopic("a"), 8, 2*time.Second)
		p.plant.down()
		p.cloud.down()
		p.trickle(20 * time.Minute)
		if p.on() != "plant" || p.moves() != 0 {
			t.Errorf("on %s after %d moves", p.on(), p.moves())
		}
		if h := p.b.Health()[0]; h.State != Stuck {
			t.Errorf("health %+v, want stuck", h)
		}
		p.cloud.up()
		p.arrives("cloud", time.Minute)
		p.drained(time.Minute)
		p.plant.up()
		p.arrives("plant", 2*testBackAfter)
		p.drained(time.Minute)
		p.count(false, "t").whole(t, 8)
	})
}

// A first upstream that comes and goes is no reason to come and go with it.
func TestFailoverDoesNotFollowAFlappingUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "t")
		defer p.end()
		p.start(p.config(RouteConfig{Topic: "t"}))
		p.plant.down()
		p.flow(oneTopic("a"), 8, time.Minute)
		p.arrives("cloud", time.Minute)
		for range 10 {
			p.plant.up()
			p.flow(oneTopic("a"), 8, testBackAfter/2)
			p.plant.down()
			p.flow(oneTopic("a"), 8, testBackAfter/4)
		}
		if p.on() != "cloud" || p.moves() != 1 {
			t.Errorf("on %s after %d moves, want one", p.on(), p.moves())
		}
		p.plant.up()
		p.arrives("plant", 2*testBackAfter)
		p.drained(time.Minute)
		p.count(false, "t").whole(t, 8)
	})
}

// Connected is not healthy: the first answers everything but acknowledges nothing. The returns to it get rarer.
func TestFailoverFromAnUpstreamThatAnswersAndAcknowledgesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "t")
		defer p.end()
		fault := p.plant.cluster.Fault(produceFault("t", kerr.NotEnoughReplicas, -1))
		p.start(p.config(RouteConfig{Topic: "t"}))
		p.flow(oneTopic("a"), 8, time.Minute)
		p.arrives("cloud", time.Minute)
		p.trickle(time.Hour)
		if n := p.moves(); n < 3 || n > 15 {
			t.Errorf("%d moves in an hour, want the first return and few more", n)
		}
		fault.Remove()
		p.arrives("plant", 40*testBackAfter)
		p.flow(oneTopic("a"), 8, testAfter*3)
		p.drained(time.Minute)
		if p.on() != "plant" {
			t.Errorf("on %s", p.on())
		}
		p.count(false, "t").whole(t, 0)
	})
}

// What the dead cluster acknowledges after the route has gone moves nothing: neither the cursor nor a lane's position, and nobody who
// waits is told.
func TestFailoverTakesNoLateAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "t", "u")
		defer p.end()
		cfg := p.config(RouteConfig{Topic: "t", Filters: []string{"a"}})
		// Another route keeps something in the air there too, so that the producer is not built anew.
		other := cfg.Routes[0]
		other.Name, other.Topic, other.Failover, other.Filters = "other", "u", Failover{}, []string{"none"}
		cfg.Routes = append(cfg.Routes, other)
		p.await = map[string]Await{"default": {Routes: []string{"all"}, Timeout: time.Hour}}
		p.start(cfg)
		p.flow(oneTopic("a"), 8, 2*time.Second)
		p.drained(time.Minute)
		hold := make(chan struct{})
		p.plant.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			p.plant.cluster.KeepControl()
			p.plant.cluster.SleepControl(func() { <-hold })
			return nil, nil, false
		})
		p.publish(oneTopic("a"), 8, 5)
		w := &waiter{patient: true}
		_, end := p.log.Bounds("default", 0)
		p.b.Await("default", 0, end-1, w)
		p.log.add("default", 0, spool.Record{Topic: "none", ClientID: "c0", Payload: binary.BigEndian.AppendUint64(nil, 1<<40)})
		p.cloud.down() // it can go there, and deliver nothing
		time.Sleep(testAfter / 2)
		p.cloud.up()
		blocked := p.cloud.cluster.Fault(produceFault("t", kerr.NotEnoughReplicas, -1))
		p.arrives("cloud", time.Minute)
		time.Sleep(time.Second)
		before := []spool.Offset{p.log.cursors["route/all/keep"].Position(0), p.log.cursors["route/all/keep"].Position(1)}
		close(hold)
		p.silent(w, 5*time.Second)
		for i, at := range before {
			if now := p.log.cursors["route/all/keep"].Position(i); now != at {
				t.Errorf("partition %d: what is kept went from %d to %d by an acknowledgement of plant", i, at, now)
			}
		}
		blocked.Remove()
		p.told(w, "", time.Minute)
		p.until("everything is delivered", time.Minute, func() bool { return p.b.Stats()[0].Lag == 0 })
		g := p.count(false, "t")
		t.Logf("%+v", g)
		if g.lost != 0 || g.both == 0 || g.both > 40 || g.turned != [2]int{} || g.doubled != [2]int{} {
			t.Errorf("%+v, want some of the 40 in both, and no more", g)
		}
	})
}

// The standby has fewer partitions: positions of single lanes do not fit, and what is behind the slowest one comes again.
func TestFailoverToAnotherNumberOfPartitions(t *testing.T) {
	for _, n := range [][2]int32{{6, 2}, {2, 6}} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, n, "t")
				defer p.end()
				p.start(p.config(RouteConfig{Topic: "t"}))
				p.flow(oneTopic("a"), 24, 5*time.Second)
				p.plant.down()
				p.flow(oneTopic("a"), 24, time.Minute)
				p.arrives("cloud", time.Minute)
				p.flow(oneTopic("a"), 24, 10*time.Second)
				p.plant.up()
				p.flow(oneTopic("a"), 24, time.Second)
				p.arrives("plant", 3*testBackAfter)
				p.flow(oneTopic("a"), 24, time.Second)
				p.drained(time.Minute)
				p.count(false, "t").whole(t, 24*2)
			})
		})
	}
}

// An operator's word stands until the next one.
func TestFailoverByAnOperatorStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "t")
		defer p.end()
		cfg := p.config(RouteConfig{Topic: "t"})
		p.start(cfg)
		p.flow(oneTopic("a"), 8, time.Second)
		for _, bad := range []struct {
			route, to string
			want      error
		}{{"none", "cloud", ErrUnknownRoute}, {"all", "moon", spool.ErrInvalid}} {
			if err := p.b.Failover(t.Context(), bad.route, bad.to); !errors.Is(err, bad.want) {
				t.Errorf("%s to %s: %v, want %v", bad.route, bad.to, err, bad.want)
			}
		}
		for range 2 {
			if err := p.b.Failover(t.Context(), "all", "cloud"); err != nil {
				t.Fatal(err)
			}
			p.flow(oneTopic("a"), 8, 3*testBackAfter)
			p.stop()
			p.start(cfg)
			p.flow(oneTopic("a"), 8, 3*testBackAfter)
			if h := p.b.Health()[0]; h.Upstream != "cloud" || h.State != Degraded || h.Failover.By != byOperator {
				t.Errorf("health %+v %+v, want on cloud by an operator", h, h.Failover)
			}
		}
		if err := p.b.Failover(t.Context(), "all", "plant"); err != nil {
			t.Fatal(err)
		}
		p.flow(oneTopic("a"), 8, 10*time.Second)
		p.drained(time.Minute)
		g := p.count(false, "t")
		if g.whole(t, 0); g.in[0] == 0 || g.in[1] == 0 {
			t.Errorf("%+v, want some in each", g)
		}
	})
}

func TestFailBackNeverStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "t")
		defer p.end()
		cfg := p.config(RouteConfig{Topic: "t"})
		cfg.Routes[0].Failover.FailBack = FailBackNever
		p.start(cfg)
		p.plant.down()
		p.flow(oneTopic("a"), 8, time.Minute)
		p.arrives("cloud", time.Minute)
		p.plant.up()
		p.trickle(20 * testBackAfter)
		if p.on() != "cloud" {
			t.Errorf("on %s", p.on())
		}
		p.cloud.down() // never does not mean that it waits here for ever
		p.flow(oneTopic("a"), 8, time.Minute)
		p.arrives("plant", time.Minute)
		p.drained(time.Minute)
		p.count(false, "t").whole(t, 16)
	})
}

// The upstream that the route is on is taken out of the configuration.
func TestFailoverUpstreamTakenOutOfTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, [2]int32{2, 2}, "t")
		defer p.end()
		cfg := p.config(RouteConfig{Topic: "t"})
		p.start(cfg)
		p.flow(oneTopic("a"), 8, time.Second)
		p.plant.down()
		p.flow(oneTopic("a"), 8, time.Minute)
		p.arrives("cloud", time.Minute)
		p.flow(oneTopic("a"), 8, time.Second)
		p.stop()
		p.plant.up()
		cfg.Routes[0].Failover = Failover{}
		p.start(cfg)
		p.flow(oneTopic("a"), 8, 10*time.Second)
		p.drained(time.Minute)
		if p.on() != "plant" || p.log.stored(activeSpace) != 0 {
			t.Errorf("on %s, %d entries", p.on(), p.log.stored(activeSpace))
		}
		p.count(false, "t").whole(t, 16)
	})
}

// Crashes at every stage: what is found after them is read back from the cluster that the route is on.
func TestFailoverCrashesLoseNothing(t *testing.T) {
	for _, delivery := range []string{AtLeastOnce, ExactlyOnce} {
		t.Run(delivery, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, [2]int32{2, 2}, "t")
				defer p.end()
				cfg := p.config(RouteConfig{Topic: "t", Delivery: delivery})
				p.start(cfg)
				crash := func() {
					before := p.log.clone()
					p.publish(oneTopic("a"), 8, 5)
					time.Sleep(300 * time.Millisecond) // in kafka, and in no position
					p.crash(before)
					p.start(cfg)
				}
				for range 2 {
					p.flow(oneTopic("a"), 8, 5*time.Second)
					crash()
					p.plant.down()
					p.flow(oneTopic("a"), 8, time.Minute)
					p.arrives("cloud", time.Minute)
					p.flow(oneTopic("a"), 8, time.Second)
					crash()
					p.flow(oneTopic("a"), 8, time.Second)
					p.plant.up()
					p.flow(oneTopic("a"), 8, testBackAfter/2)
					crash()
					p.flow(oneTopic("a"), 8, 2*testBackAfter)
					p.arrives("plant", testBackAfter)
					crash()
				}
				p.drained(time.Minute)
				p.count(delivery == ExactlyOnce, "t").whole(t, 2*(40+16)) // and what a restart had no time to read back before the line was cut
			})
		})
	}
}

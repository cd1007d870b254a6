package bridge

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/bridge/kafkatest"
)

// Two real clusters, a real spool, devices under load. The first cluster is killed or frozen, comes back, and the gateway is killed
// with SIGKILL on both and on the way. Over both clusters nothing is lost; in each of them every record is there at most once and each
// device's in order; in both are those of which nobody knew whether the first cluster had them.
func TestKafkaFailoverBetweenTwoClusters(t *testing.T) {
	plant, cloud := kafkatest.Start(t, kafkatest.Options{}), kafkatest.Start(t, kafkatest.Options{})
	for _, delivery := range []string{AtLeastOnce, ExactlyOnce} {
		t.Run(delivery, func(t *testing.T) {
			if delivery == ExactlyOnce && killRounds(0, 1) == 0 {
				t.Skip("in the long form (FOREBAY_CRASH=long)")
			}
			k := killing{t: t, brokers: plant.Brokers(), after: ReadBack, once: delivery, topic: "fo-" + strings.ReplaceAll(delivery, "_", "-")}
			standby := childStandby + "=" + cloud.Brokers()[0]
			dir := t.TempDir()
			rounds := killRounds(1, 6)
			for round := range rounds {
				child := func() *failing { return k.failing(dir, standby) }
				c := child()
				c.sends("plant", 1000)
				c.kill()
				c = child()
				c.sends("plant", 1000)
				if round%2 == 0 {
					plant.Node(0).Kill()
				} else {
					plant.Node(0).Pause()
				}
				if round%3 == 1 {
					time.Sleep(500 * time.Millisecond)
					c.kill() // before it has gone
					c = child()
				}
				c.sends("cloud", 1000)
				c.kill()
				c = child()
				c.sends("cloud", 1000)
				if round%2 == 0 {
					if err := plant.Node(0).Start(); err != nil {
						t.Fatal(err)
					}
				} else {
					plant.Node(0).Resume()
				}
				c.sends("plant", 1000)
				c.kill()
			}
			next := k.failing(dir, standby, childDrain+"=1").drained()
			g, seen, want, total := got{}, make(map[string][2]int), make(map[string]int), 0
			for c, n := range next {
				want["c"+strconv.Itoa(c)] = n
				total += n
			}
			for i, cl := range []*kafkatest.Cluster{plant, cloud} {
				g.add(i, withoutPoison(readAll(t, cl.Brokers(), k.topic)), seen)
			}
			g.sum(seen, want)
			t.Logf("%d rounds, %d kills of the gateway, %d records", rounds, 4*rounds, total)
			// Two seconds of records for each time that a cluster was left: a flight of each lane, and what a gateway that was killed just
			// before had no time to read back.
			if g.whole(t, rounds*2*killClients*100); g.in[0] < 1000 || g.in[1] < 1000 {
				t.Errorf("%v records in the clusters: the test shows nothing", g.in)
			}
		})
	}
}

func withoutPoison(records []*kgo.Record) (out []*kgo.Record) {
	for _, r := range records {
		if string(r.Key) != "poison" {
			out = append(out, r)
		}
	}
	return out
}

const failoverWait = 3 * time.Minute // for a machine that is busy

// childStandby makes the child's route one with failover.
const childStandby = "FOREBAY_BRIDGE_STANDBY"

// failing is a child that says on which upstream its route is, and how many records it has delivered.
type failing struct {
	t     *testing.T
	kill  func()
	lines chan string
	on    string
	sent  uint64
}

func (k *killing) failing(dir string, more ...string) *failing {
	k.t.Helper()
	cmd, s := k.child(dir, more...)
	f := &failing{t: k.t, lines: make(chan string, 1<<16)}
	go read(s, f.lines)
	f.kill = func() {
		_ = cmd.Process.Kill()
		for range f.lines {
		}
		_ = cmd.Wait()
	}
	return f
}

func read(s *bufio.Scanner, to chan<- string) {
	defer close(to)
	for s.Scan() {
		to <- s.Text()
	}
}

// look takes the child's next word.
func (f *failing) look(deadline <-chan time.Time, what string) string {
	f.t.Helper()
	for {
		select {
		case line, ok := <-f.lines:
			if !ok {
				f.t.Fatalf("the child has ended, waiting for: %s", what)
			}
			if _, err := fmt.Sscanf(line, "on %s %d", &f.on, &f.sent); err == nil || !strings.HasPrefix(line, "first ") {
				return line
			}
		case <-deadline:
			f.t.Fatalf("not within %v: %s; it is on %s and has delivered %d", failoverWait, what, f.on, f.sent)
		}
	}
}

// sends waits until it has delivered some records while its route was on an upstream.
func (f *failing) sends(on string, n uint64) {
	f.t.Helper()
	what := fmt.Sprintf("%d records delivered to %s", n, on)
	before := f.sent
	for deadline, got := time.After(failoverWait), uint64(0); got < n; before = f.sent {
		f.look(deadline, what)
		if f.on == on && f.sent > before {
			got += f.sent - before
		}
	}
}

func (f *failing) drained() (next []int) {
	f.t.Helper()
	for deadline := time.After(failoverWait); ; {
		if rest, ok := strings.CutPrefix(f.look(deadline, "drained"), "drained "); ok {
			if err := json.Unmarshal([]byte(rest), &next); err != nil {
				f.t.Fatal(err)
			}
			f.kill() // it has ended
			return next
		}
	}
}

// tell has the child say where its route is.
func tell(b *Bridge) {
	for range time.Tick(50 * time.Millisecond) {
		fmt.Println("on", b.Health()[0].Upstream, b.Stats()[0].Sent)
	}
}

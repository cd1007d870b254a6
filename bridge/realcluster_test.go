package bridge

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/kafkatest"
)

// threeNodes is a real cluster that may be told to forget producers soon.
func threeNodes(t *testing.T) *kafkatest.Cluster {
	t.Helper()
	return kafkatest.Start(t, kafkatest.Options{Nodes: 3, Set: map[string]string{
		"producer.id.expiration.check.interval.ms": "1000",
	}})
}

// controller is the index of the active controller's node.
func controller(t *testing.T, brokers []string) int {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req := kmsg.NewPtrDescribeQuorumRequest()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic = "__cluster_metadata"
	topic.Partitions = append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil || len(resp.Topics) == 0 || len(resp.Topics[0].Partitions) == 0 {
		t.Fatalf("who is the controller: %v %+v", err, resp)
	}
	return int(resp.Topics[0].Partitions[0].LeaderID) - 1
}

// A gateway is killed again and again while brokers are killed, stopped and frozen, the controller among them.
func TestKafkaThreeNodesKillLoop(t *testing.T) {
	c := threeNodes(t)
	start := func(n *kafkatest.Node) {
		if err := n.Start(); err != nil {
			t.Error(err)
		}
	}
	faults := []struct {
		name string
		do   func(round int)
	}{
		{"broker killed", func(round int) {
			n := c.Node((controller(t, c.Brokers()) + 1 + round%2) % 3)
			n.Kill()
			start(n)
		}},
		{"controller killed", func(int) {
			n := c.Node(controller(t, c.Brokers()))
			n.Kill()
			start(n)
		}},
		{"broker frozen until its leaderships are gone", func(round int) {
			n := c.Node(round % 3)
			n.Pause()
			time.Sleep(5 * time.Second)
			n.Resume()
		}},
		{"rolling restart", func(int) {
			for i := range 3 {
				c.Node(i).Stop()
				start(c.Node(i))
			}
		}},
	}
	for _, delivery := range []string{AtLeastOnce, ExactlyOnce} {
		t.Run(delivery, func(t *testing.T) {
			k := killing{t: t, brokers: c.Brokers(), after: ReadBack, once: delivery, topic: "kill-" + strings.ReplaceAll(delivery, "_", "-")}
			k.rounds = killRounds(len(faults), 52)
			k.during = func(round int) {
				f := faults[round%len(faults)]
				began := time.Now()
				f.do(round)
				t.Logf("round %d: %s, %v", round, f.name, time.Since(began).Round(time.Millisecond))
			}
			k.complete()
		})
	}
	t.Run("frozen gateway is replaced", func(t *testing.T) { zombie(t, c) })
	t.Run("faults of topics and producers", func(t *testing.T) { threeNodeFaults(t, c) })
}

// A gateway is frozen under load, and another one is started on a copy of its directory. When the first one wakes, the second
// one has fenced it: it commits nothing any more.
func zombie(t *testing.T, c *kafkatest.Cluster) {
	k := killing{t: t, brokers: c.Brokers(), after: ReadBack, once: ExactlyOnce, topic: "zombie"}
	dir := t.TempDir()
	for round := range killRounds(2, 15) {
		// One that is frozen before it has opened all partitions starts when it wakes, and may rightly take over those.
		cmd, s := k.child(dir, childFenced+"=1")
		if !s.Scan() || !strings.HasPrefix(s.Text(), "first ") {
			t.Fatalf("child says %q", s.Text())
		}
		time.Sleep(time.Duration(round%3) * 400 * time.Millisecond)
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for late := time.Now().Add(30 * time.Second); !frozen(t, cmd.Process.Pid); time.Sleep(time.Millisecond) { // of a poll
			if time.Now().After(late) {
				t.Fatal("the gateway does not stand still")
			}
		}
		second := t.TempDir()
		if out, err := exec.Command("cp", "-a", "--sparse=always", dir+"/.", second).CombinedOutput(); err != nil {
			t.Fatalf("copy: %v %s", err, out)
		}
		// Before all its partitions are fenced the first one may rightly commit in the others, at offsets where the second one has other records.
		next, s2 := k.child(second, childFenced+"=1")
		if !s2.Scan() || !strings.HasPrefix(s2.Text(), "first ") {
			t.Fatalf("child says %q", s2.Text())
		}
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil { // and publishes the numbers that the second one publishes
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		for _, p := range []*os.Process{cmd.Process, next.Process} {
			_ = p.Kill()
		}
		_, _ = cmd.Wait(), next.Wait()
		dir = second
	}
	got, total := k.drain(dir)
	t.Logf("%d zombies, %d records: %+v", killRounds(2, 15), total, got)
	if got != (tally{}) {
		t.Errorf("records %+v, want every one once and in order", got)
	}
}

// frozen reports whether all threads of a process are stopped: the signal is delivered to one of them, and the others go on until that one
// has run. A copy that is made before is not of a gateway that stands still.
func frozen(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		t.Fatalf("threads of %d: %v", pid, err)
	}
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, state, ok := strings.Cut(string(stat), ") "); !ok || state[0] != 'T' {
			return false
		}
	}
	return true
}

func threeNodeFaults(t *testing.T, c *kafkatest.Cluster) {
	t.Run("min ISR lost and back", func(t *testing.T) {
		for _, delivery := range []string{AtLeastOnce, ExactlyOnce} {
			t.Run(delivery, func(t *testing.T) {
				r := newRealRig(t, c, RouteConfig{Topic: "isr-${topic}-" + delivery[:2], Delivery: delivery})
				all := "3"
				r.createReplicated("isr-all-"+delivery[:2], 2, map[string]*string{"min.insync.replicas": &all})
				r.createReplicated("isr-most-"+delivery[:2], 2, nil)
				r.publish(func(c int) string { return []string{"all", "most"}[c%2] }, 8, 50)
				r.drained(30 * time.Second)
				n := c.Node((controller(t, c.Brokers()) + 1) % 3)
				n.Kill()
				r.publish(func(c int) string { return []string{"all", "most"}[c%2] }, 8, 50)
				r.until("the topic that needs all says why it waits", 40*time.Second, func() bool {
					info, err := r.b.Route("all")
					if err != nil {
						t.Fatal(err)
					}
					for _, l := range info.LaneList {
						if l.Reason == "min_isr" {
							return info.Sent >= 2*8*50-200 // the other one is delivered
						}
					}
					return false
				})
				if err := n.Start(); err != nil {
					t.Fatal(err)
				}
				r.drained(time.Minute)
				if got := r.tally(r.read("isr-all-"+delivery[:2], "isr-most-"+delivery[:2])); got != (tally{}) {
					t.Errorf("records %+v, want every one once and in order", got)
				}
			})
		}
	})

	t.Run("producer IDs that the brokers forget", func(t *testing.T) {
		r := newRealRig(t, c, RouteConfig{Topic: "forgotten.${topic[1]}", CreateTopics: &kafka.Create{Partitions: 2}})
		r.alterBrokers("producer.id.expiration.ms", "6000")
		defer r.alterBrokers("producer.id.expiration.ms", "86400000")
		for range 2 {
			r.publish(levels(2), 10, 200)
			r.drained(30 * time.Second)
			time.Sleep(9 * time.Second) // longer than producer.id.expiration.ms
		}
		r.publish(levels(2), 10, 200)
		r.drained(30 * time.Second)
		if got := r.tally(r.read("forgotten.l0", "forgotten.l1")); got != (tally{}) {
			t.Errorf("records %+v, want every one once and in order", got)
		}
		if s := r.b.upstreams[0].Status(); s.Torn != 0 {
			t.Errorf("%d torn", s.Torn)
		}
	})

	t.Run("partitions are added under load", func(t *testing.T) {
		r := newRealRig(t, c, RouteConfig{Topic: "growing", CreateTopics: &kafka.Create{Partitions: 2}})
		stop := r.load(oneTopic("a"), 20)
		r.until("delivers", 30*time.Second, func() bool { return r.b.Stats()[0].Sent > 1000 })
		if _, err := r.admin.CreatePartitions(t.Context(), 3, "growing"); err != nil {
			t.Fatal(err)
		}
		topic := r.b.upstreams[0].Topic("growing", nil)
		r.until("records are spread over all", 30*time.Second, func() bool {
			topic.Ask() // instead of the look in every minute
			info, _ := r.b.Route("all")
			return len(info.LaneList) > 2*2
		})
		sent := r.b.Stats()[0].Sent
		r.until("delivers", 30*time.Second, func() bool { return r.b.Stats()[0].Sent > sent+1000 })
		stop()
		r.drained(30 * time.Second)
		if got := r.tally(byTime(r.read("growing"))); got != (tally{}) {
			t.Errorf("records %+v, want every one once and in order", got)
		}
	})
}

package mqtt

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// filled is an index with n subscriptions of as many sessions, as a fleet has them: each device to its own commands, and one in
// a hundred to everything of a line.
func filled(n int) *index {
	x := new(index)
	for i := range n {
		s := &session{id: fmt.Sprintf("device-%06d", i)}
		filter := fmt.Sprintf("plant/%d/line/%d/device-%06d/cmd/#", i%10, i%100, i)
		if i%100 == 0 {
			filter = fmt.Sprintf("plant/+/line/%d/+/telemetry", i%997)
		}
		x.add(&subscription{sess: s, filter: filter, topic: filter})
	}
	return x
}

// hostile are filters of one client that all match topic, with as many different ways through the index as n allows.
func hostile(topic string, n int) []string {
	names := strings.Split(topic, "/")
	var filters []string
	for bits := 0; len(filters) < n && bits < 1<<min(len(names), 30); bits++ {
		f := append([]string(nil), names...)
		for i := range f {
			if bits>>i&1 == 1 {
				f[i] = "+"
			}
		}
		filters = append(filters, strings.Join(f, "/"))
		if len(filters) < n {
			filters = append(filters, strings.Join(f[:len(f)-1], "/")+"/#")
		}
	}
	return filters
}

// A lookup visits no more nodes than filters that match have levels, whatever the wildcards: there is no filter whose cost is
// paid by other topics, and none that costs more than its own length.
func TestMatchCostIsBoundedByWhatMatches(t *testing.T) {
	for _, depth := range []int{4, 16, 64, 256} {
		topic := strings.Repeat("a/", depth-1) + "a"
		x := filled(1000)
		evil := &session{id: "evil"}
		const subs = 1000 // max_subscriptions
		for _, f := range hostile(topic, subs) {
			x.add(&subscription{sess: evil, filter: f, topic: f})
		}
		visited := 0
		cost := func(topic string) int {
			visited = 0
			steps := 0
			x.mu.RLock()
			defer x.mu.RUnlock()
			countNodes(&x.root, topic, true, &steps)
			walk(&x.root, topic, true, func(*node) { visited++ })
			return steps
		}
		if got, most := cost(topic), subs*(depth+1); got > most {
			t.Errorf("%d levels: %d nodes are visited, more than %d", depth, got, most)
		}
		if want := min(subs, 1<<(min(depth, 20)+1)); visited == 0 || visited > want {
			t.Errorf("%d levels: %d nodes match, of %d filters", depth, visited, want)
		}
		// A topic of somebody else pays only for what begins as it does.
		if got := cost("plant/7/line/7/device-000007/telemetry"); got > 200 {
			t.Errorf("%d levels: a topic that none of these filters is for visits %d nodes", depth, got)
		}
		if m := x.lookup(topic); len(m.targets) != 1 {
			t.Errorf("%d levels: %d sessions match", depth, len(m.targets))
		}
	}
}

// countNodes counts the nodes that walk goes through.
func countNodes(n *node, topic string, first bool, steps *int) {
	*steps++
	name, rest, more := strings.Cut(topic, "/")
	if !more {
		return
	}
	if c := n.children.get(name); c != nil {
		countNodes(c, rest, false, steps)
	}
	if n.plus != nil && !(first && strings.HasPrefix(topic, "$")) {
		countNodes(n.plus, rest, false, steps)
	}
}

// Match cost is near constant in the number of subscriptions: a lookup that no cache helps.
func BenchmarkMatchAmong(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			before := heapInUse()
			x := filled(n)
			each := float64(heapInUse()-before) / float64(n)
			topics := make([]string, 1024)
			for i := range topics {
				d := i * 97 % n
				topics[i] = fmt.Sprintf("plant/%d/line/%d/device-%06d/cmd/set", d%10, d%100, d)
			}
			b.ResetTimer()
			for i := range b.N {
				x.lookup(topics[i%len(topics)])
			}
			b.ReportMetric(each, "B/subscription")
			runtime.KeepAlive(x)
		})
	}
}

// What one client with as many subscriptions as it may have, all for one topic, makes a lookup of that topic cost, and of another.
func BenchmarkMatchHostile(b *testing.B) {
	const topic = "a/b/c/d/e/f/g/h/i/j/k/l"
	x := filled(100_000)
	evil := &session{id: "evil"}
	for _, f := range hostile(topic, 1000) {
		x.add(&subscription{sess: evil, filter: f, topic: f})
	}
	for name, t := range map[string]string{"own": topic, "others": "plant/7/line/7/device-000007/cmd/set"} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				x.lookup(t)
			}
		})
	}
}

// Retained messages of 100,000 topics: memory for each, and the time to find one and to begin a walk.
func BenchmarkRetained(b *testing.B) {
	const n = 100_000
	before := heapInUse()
	r := new(retainedStore)
	for i := range n {
		r.apply(&spool.Record{
			Topic: fmt.Sprintf("plant/%d/line/%d/device-%06d/state", i%10, i%100, i), ClientID: fmt.Sprintf("device-%06d", i),
			Payload: []byte(`{"state":"running","since":1796000000}`), Retain: true, QoS: 1,
		})
	}
	each := float64(heapInUse()-before) / n
	for _, filter := range []string{"plant/7/line/77/device-000077/state", "plant/+/line/77/+/state", "#"} {
		b.Run(strings.ReplaceAll(filter, "/", "."), func(b *testing.B) {
			b.ReportMetric(each, "B/message")
			for range b.N {
				r.next(filter, "", 1000)
			}
		})
	}
	runtime.KeepAlive(r)
}

func heapInUse() uint64 {
	runtime.GC()
	time.Sleep(10 * time.Millisecond) // what is swept is counted
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

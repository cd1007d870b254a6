package bridge

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/forebay-gateway/forebay/bridge/embedded"
	"github.com/forebay-gateway/forebay/spool"
)

// ends is a gateway's way from Append to the embedded broker, without MQTT: real spool, real sockets, real time.
type ends struct {
	t     *testing.T
	dir   string
	scfg  spool.Config
	bcfg  Config
	spool *spool.Spool
	b     *Bridge
	ran   chan struct{}
	next  map[string]int
}

func newEnds(t *testing.T) *ends {
	e := &ends{t: t, dir: t.TempDir(), next: make(map[string]int)}
	e.scfg = spool.DefaultConfig()
	e.scfg.Dir = e.dir + "/spool"
	e.scfg.MaxSize, e.scfg.MinFree = 1<<30, 0
	e.scfg.Journal.FileSize, e.scfg.Segment.MaxSize = 1<<20, 1<<20
	e.scfg.QueueSize, e.scfg.TailSize = 256<<10, 512<<10 // so that catch-up reads segments
	e.scfg.Streams = []spool.StreamConfig{{Name: "default", Partitions: 3}, {Name: "dead", Partitions: 1}}
	e.bcfg = Config{
		Embedded:         embedded.DefaultConfig(),
		Routes:           []RouteConfig{{Name: "all", Topic: "t.${topic[0]}"}},
		DeadLetterStream: "dead",
	}
	e.bcfg.Embedded.Enabled, e.bcfg.Embedded.Address, e.bcfg.Embedded.Dir = true, "127.0.0.1:0", e.dir+"/kafka"
	return e
}

func (e *ends) open() {
	e.t.Helper()
	var err error
	if e.spool, err = spool.Open(e.scfg, spool.Options{}); err != nil {
		e.t.Fatal(err)
	}
	if e.b, err = New(context.Background(), e.bcfg, Options{Log: FromSpool(e.spool), GatewayID: "gw"}); err != nil {
		e.t.Fatal(err)
	}
	e.ran = make(chan struct{})
	go func() { e.b.Run(context.Background()); close(e.ran) }()
}

func (e *ends) close() {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := e.b.Close(ctx); err != nil {
		e.t.Error(err)
	}
	<-e.ran
	if err := e.spool.Close(); err != nil {
		e.t.Error(err)
	}
}

type counted struct{ *sync.WaitGroup }

func (c counted) Durable(*spool.Record, error) { c.Done() }

// publish appends n numbered records of each of some clients and waits until they are durable.
func (e *ends) publish(clients, n int) {
	e.t.Helper()
	var wait sync.WaitGroup
	for range n {
		for c := range clients {
			id := "c" + strconv.Itoa(c)
			wait.Add(1)
			err := e.spool.Append(e.t.Context(), spool.Entry{Done: counted{&wait}, Record: &spool.Record{
				Topic: fmt.Sprintf("l%d/x", c%4), ClientID: id, QoS: 1, ReceivedAt: e.spool.Now().UnixNano(),
				Payload: fmt.Appendf(nil, "%d %0100d", e.next[id], e.next[id]),
			}})
			if err != nil {
				e.t.Fatal(err)
			}
			e.next[id]++
		}
	}
	wait.Wait()
}

func (e *ends) drained(limit time.Duration) {
	e.t.Helper()
	for deadline := time.Now().Add(limit); e.b.Stats()[0].Lag > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatalf("not drained in %v: %+v %+v", limit, e.b.Stats(), e.b.Health())
		}
	}
}

// complete fails the test unless every record is in Kafka once and in its client's order.
func (e *ends) complete() {
	e.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(e.b.Embedded().Addr()), kgo.ConsumeTopics("t.l0", "t.l1", "t.l2", "t.l3"))
	if err != nil {
		e.t.Fatal(err)
	}
	defer cl.Close()
	want := 0
	for _, n := range e.next {
		want += n
	}
	ctx, cancel := context.WithTimeout(e.t.Context(), time.Minute)
	defer cancel()
	got := make(map[string]int)
	for total := 0; total < want; {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			e.t.Fatalf("%d of %d: %v", total, want, err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			total++
			var n int
			if _, err := fmt.Sscan(string(r.Value), &n); err != nil || n != got[string(r.Key)] {
				e.t.Fatalf("client %s: record %d where %d is due (%v), at %s/%d/%d", r.Key, n, got[string(r.Key)], err, r.Topic, r.Partition, r.Offset)
			}
			got[string(r.Key)]++
		})
	}
}

func TestRealSpoolToEmbeddedBroker(t *testing.T) {
	e := newEnds(t)
	e.open()
	e.publish(20, 200)
	e.drained(time.Minute)

	// An outage longer than the tail's memory, and a restart in it.
	e.b.Embedded().Suspend()
	e.publish(20, 1000)
	if s := e.b.Stats()[0]; s.Lag == 0 || s.BufferedBytes > 64<<20 {
		t.Errorf("stats in the outage %+v", s)
	}
	if err := e.b.Embedded().Resume(); err != nil {
		t.Fatal(err)
	}
	e.publish(20, 200)
	e.close()

	e.open()
	e.publish(20, 200)
	e.drained(20 * time.Second)
	e.complete()
	if got := e.b.cursors[0].Position(0); got == 0 {
		t.Error("the cursor did not move")
	}
	if _, end := e.spool.Bounds("dead", 0); end != 0 {
		t.Errorf("%d dead letters", end)
	}
	e.close()
}

func TestRealSpoolKeepsADeadLetter(t *testing.T) {
	e := newEnds(t)
	e.scfg.Journal.FileSize, e.scfg.QueueSize, e.scfg.TailSize = 8<<20, 4<<20, 8<<20
	e.open()
	e.publish(4, 10)
	var wait sync.WaitGroup
	wait.Add(1)
	err := e.spool.Append(t.Context(), spool.Entry{Done: counted{&wait}, Record: &spool.Record{
		Topic: "l0/x", ClientID: "c0", Payload: []byte(noise(1200 << 10)), ReceivedAt: e.spool.Now().UnixNano(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	e.publish(4, 10)
	e.drained(time.Minute)
	e.complete()
	r, err := e.spool.NewReader("dead", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, ok, err := r.TryNext()
	if err != nil || !ok || len(b.Records) != 1 || len(b.Records[0].Payload) != 1200<<10 || b.Records[0].Topic != "$forebay/deadletter/all" {
		t.Errorf("dead letters %v %v, want the one record", ok, err)
	}
	e.close()
}

package spool

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// What a reader has got stays as it is, however long it is held: groups, sections and batches use their memory again meanwhile.
func TestBatchesThatAreHeldStayAsTheyAre(t *testing.T) {
	cfg := smallConfig(t.TempDir(), oneStream(func(sc *StreamConfig) { sc.Partitions = 3 }))
	cfg.Segment.MaxSize = 1 << 20
	s := mustOpen(t, cfg, Options{})
	stop := make(chan struct{})
	var writers, readers sync.WaitGroup
	for w := range 6 {
		writers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for i := 0; ; {
				select {
				case <-stop:
					return
				default:
				}
				var last waiter
				for range 1 + rnd.IntN(400) { // sections of all sizes, so that the tail keeps some and copies others
					body := fmt.Appendf(nil, "%d/%d:", w, i)
					r := &Record{Topic: fmt.Sprintf("t/%d", w), ClientID: fmt.Sprintf("c%d", w), QoS: 1, Payload: append(body, bytes.Repeat([]byte{byte(i)}, rnd.IntN(300))...)}
					last = newWaiter()
					if err := s.Append(t.Context(), Entry{Record: r, Done: last}); err != nil {
						t.Error(err)
						return
					}
					i++
				}
				<-last
			}
		})
	}
	type held struct {
		b   Batch
		sum string
	}
	sum := func(b Batch) string {
		var out bytes.Buffer
		for _, r := range b.Records {
			fmt.Fprintf(&out, "%d %d %s %s %x %d\n", r.Partition, r.Offset, r.Topic, r.ClientID, r.Payload, r.ReceivedAt)
		}
		return out.String()
	}
	for p := range 3 {
		for _, behind := range []bool{false, true} {
			readers.Go(func() {
				rd, err := s.NewReader(DefaultStream, p, 0)
				if err != nil {
					t.Error(err)
					return
				}
				defer rd.Close()
				var kept []held
				next := make(map[string]int)
				for {
					select {
					case <-stop:
						for _, h := range kept {
							if sum(h.b) != h.sum {
								t.Errorf("partition %d: batch %d..%d has changed while it was held", p, h.b.First, h.b.Next)
							}
						}
						return
					default:
					}
					if behind {
						time.Sleep(time.Millisecond)
					}
					b, ok, err := rd.TryNext()
					if err != nil {
						t.Error(err)
						return
					}
					if !ok {
						time.Sleep(time.Millisecond)
						continue
					}
					if b.Gap != nil {
						t.Errorf("gap %+v", b.Gap)
					}
					for _, r := range b.Records {
						want := fmt.Sprintf("%s/%d:", r.ClientID[1:], next[r.ClientID])
						if !bytes.HasPrefix(r.Payload, []byte(want)) {
							t.Errorf("%s: %.20q, want %s", r.ClientID, r.Payload, want)
							return
						}
						next[r.ClientID]++
					}
					kept = append(kept, held{b, sum(b)})
					if len(kept) > 60 {
						h := kept[0]
						kept = kept[1:]
						if sum(h.b) != h.sum {
							t.Errorf("partition %d: batch %d..%d has changed while it was held", p, h.b.First, h.b.Next)
						}
					}
				}
			})
		}
	}
	time.Sleep(4 * time.Second)
	close(stop)
	writers.Wait()
	readers.Wait()
	_, end := s.Bounds(DefaultStream, 0)
	t.Log("end of partition 0", end)
}

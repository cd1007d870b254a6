package kafka

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is a client on a fake cluster, in virtual time.
type bed struct {
	t       *testing.T
	net     kfake.VirtualNetwork
	cluster *kfake.Cluster
	c       *Client
}

func newBed(t *testing.T, opts ...kfake.Opt) *bed {
	t.Helper()
	return newBedWith(t, Options{}, opts...)
}

func newBedWith(t *testing.T, o Options, opts ...kfake.Opt) *bed {
	t.Helper()
	b := &bed{t: t}
	opts = append([]kfake.Opt{kfake.Ports(9001, 9002), kfake.ListenFn(b.net.Listen)}, opts...)
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	b.cluster = cluster
	o.GatewayID, o.Dial = "gw", b.net.DialContext
	b.c, err = New(Config{Name: "main", Brokers: cluster.ListenAddrs(), Compression: "none"}, o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bed) end() {
	b.c.Close()
	b.cluster.Close()
}

func messages(from, n int) []Message {
	var a Arena
	out := make([]Message, n)
	for i := range out {
		a.NewMessage(&out[i], uint64(from+i), []byte("k"), binary.BigEndian.AppendUint64(nil, uint64(from+i)), time.Now(), 0)
	}
	return out
}

// send ships a flight and waits for its result.
func (b *bed) send(topic string, msgs []Message, limit time.Duration) (*Flight, Result, bool) {
	b.t.Helper()
	done := make(chan Result, 1)
	f := &Flight{Topic: b.c.Topic(topic, nil), Messages: msgs, Done: func(_ *Flight, r Result) { done <- r }}
	b.c.Ship(f)
	select {
	case r := <-done:
		return f, r, true
	case <-time.After(limit):
		return f, Result{}, false
	}
}

// numbers are the values of a partition in its order.
func (b *bed) numbers(topic string) []uint64 {
	b.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.Dialer(b.net.DialContext), kgo.ConsumeTopics(topic))
	if err != nil {
		b.t.Fatal(err)
	}
	defer cl.Close()
	want := b.cluster.PartitionInfo(topic, 0).HighWatermark
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	var out []uint64
	for int64(len(out)) < want {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			b.t.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) { out = append(out, binary.BigEndian.Uint64(r.Value)) })
	}
	return out
}

// What each error of a produce response does to a flight while it lasts, and that the client delivers everything once and in
// order when it is over. waits: the producer retries it by itself, there is no result. Others come back with class and reason.
func TestEachProduceErrorHasItsVerdict(t *testing.T) {
	const waits = Class(99)
	rows := []struct {
		err    *kerr.Error
		class  Class
		reason string
	}{
		{kerr.NotLeaderForPartition, waits, "leader"},
		{kerr.LeaderNotAvailable, waits, "leader"},
		{kerr.ReplicaNotAvailable, waits, "leader"},
		{kerr.BrokerNotAvailable, waits, "leader"},
		{kerr.FencedLeaderEpoch, waits, "leader"},
		{kerr.UnknownLeaderEpoch, waits, "leader"},
		{kerr.NewLeaderElected, Retry, "leader"},
		{kerr.NotController, waits, "leader"},
		{kerr.RebootstrapRequired, Retry, "leader"},
		{kerr.ListenerNotFound, waits, "leader"},
		{kerr.NetworkException, waits, "network"},
		{kerr.CoordinatorLoadInProgress, waits, "coordinator"},
		{kerr.CoordinatorNotAvailable, waits, "coordinator"},
		{kerr.NotCoordinator, waits, "coordinator"},
		{kerr.ConcurrentTransactions, waits, "coordinator"},
		{kerr.TransactionCoordinatorFenced, Retry, "coordinator"},
		{kerr.KafkaStorageError, waits, "storage"},
		{kerr.LogDirNotFound, Retry, "storage"},
		{kerr.ThrottlingQuotaExceeded, waits, "quota"},
		{kerr.NotEnoughReplicas, waits, "min_isr"},
		{kerr.NotEnoughReplicasAfterAppend, waits, "min_isr"},
		{kerr.RequestTimedOut, waits, "timeout"},
		{kerr.OutOfOrderSequenceNumber, waits, "producer_reset"},
		{kerr.UnknownProducerID, waits, "producer_reset"},
		{kerr.InvalidProducerIDMapping, waits, "producer_reset"},
		{kerr.InvalidProducerEpoch, waits, "producer_reset"},
		{kerr.TransactionalIDNotFound, Retry, "producer_reset"},
		{kerr.InvalidTxnState, Retry, "transaction"},
		{kerr.TransactionAbortable, Retry, "transaction"},
		{kerr.MessageTooLarge, Shrink, "too_large"},
		{kerr.RecordListTooLarge, Shrink, "too_large"},
		{kerr.InvalidRecord, Poison, "invalid_record"},
		{kerr.InvalidTimestamp, Poison, "invalid_timestamp"},
		{kerr.UnsupportedForMessageFormat, Poison, "message_format"},
		{kerr.CorruptMessage, Retry, "corrupt"},
		{kerr.UnknownServerError, Retry, "server_error"},
		{kerr.UnknownTopicOrPartition, Fault, "topic_missing"},
		{kerr.UnknownTopicID, Retry, "topic_recreated"},
		{kerr.InconsistentTopicID, waits, "topic_recreated"},
		{kerr.InvalidTopicException, Fault, "topic_name"},
		{kerr.TopicAuthorizationFailed, Fault, "topic_authorization"},
		{kerr.ClusterAuthorizationFailed, Fault, "cluster_authorization"},
		{kerr.TransactionalIDAuthorizationFailed, Fault, "transaction_authorization"},
		{kerr.ProducerFenced, Dead, "fenced"},
		{kerr.PolicyViolation, Fault, "policy"},
		{kerr.UnsupportedCompressionType, Fault, "compression"},
		{kerr.InvalidRequiredAcks, Fault, "protocol"},
		{kerr.UnsupportedVersion, Fault, "protocol"},
		{kerr.InvalidConfig, Fault, "topic_config"},
		{kerr.InvalidRequest, Fault, "protocol"},
		{kerr.InvalidTransactionTimeout, Fault, "transaction_timeout"},
		{kerr.MismatchedEndpointType, Fault, "not_a_broker"},
		{kerr.UnsupportedEndpointType, Fault, "not_a_broker"},
		{kerr.UnsupportedSaslMechanism, Fault, "authentication"},
		{kerr.IllegalSaslState, Fault, "authentication"},
		{kerr.PrincipalDeserializationFailure, Fault, "authentication"},
		{kerr.SaslAuthenticationFailed, Fault, "authentication"},
	}
	tested := map[int16]bool{
		kerr.DuplicateSequenceNumber.Code: true, // an acknowledgement: the broker has the records, which a fault of the fake cluster has not
	}
	for _, row := range rows {
		tested[row.err.Code] = true
		t.Run(row.err.Message, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, kfake.SeedTopics(1, "t"))
				defer b.end()
				if _, r, ok := b.send("t", messages(0, 10), time.Minute); !ok || r.Acked != 10 {
					t.Fatalf("without a fault: %+v", r)
				}
				if v := Classify(row.err); v.Reason != row.reason || row.class != waits && v.Class != row.class {
					t.Errorf("verdict %+v, want %v %s", v, row.class, row.reason)
				}
				fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t", Err: row.err, Count: -1})
				f, r, back := b.send("t", messages(10, 10), 20*time.Second)
				if back == (row.class == waits) {
					t.Errorf("came back %v: %+v", back, r)
				}
				if back && (r.Acked != 0 || r.Verdict.Class != row.class || r.Verdict.Reason != row.reason || len(f.Rest(r)) != 10) {
					t.Errorf("result %+v, want none acknowledged, %v %s", r, row.class, row.reason)
				}
				hits := fault.Hits()
				fault.Remove()
				if !back {
					time.Sleep(30 * time.Second) // the producer's own backoff
					if b.c.Status().Outstanding != 0 {
						t.Fatal("not delivered after the fault was over")
					}
				}
				if hits > 200 {
					t.Errorf("%d requests in 20 s: a busy loop", hits)
				}
				for try := 0; back; try++ { // the same again, as a lane does
					time.Sleep(2 * time.Second)
					_, again, ok := b.send("t", f.Rest(r), 2*time.Minute)
					if ok && again.Acked == 10 {
						break
					}
					if !ok || try > 5 {
						t.Fatalf("after the fault was over: %+v %v", again, ok)
					}
				}
				if _, r, ok := b.send("t", messages(20, 10), time.Minute); !ok || r.Acked != 10 {
					t.Fatalf("after the fault was over: %+v", r)
				}
				for i, n := range b.numbers("t") {
					if n != uint64(i) {
						t.Fatalf("record %d is number %d: doubled, lost or out of order", i, n)
					}
				}
			})
		})
	}
	for code := range verdicts {
		if !tested[code] {
			t.Errorf("no row tests %v", kerr.TypedErrorForCode(code))
		}
	}
}

// Every error of the protocol is in one of the two lists: one that a newer client knows has to be looked at.
func TestEveryErrorOfTheProtocolHasAClass(t *testing.T) {
	known := make(map[int16]bool)
	for _, e := range elsewhere {
		if _, ok := verdicts[e.Code]; ok || known[e.Code] {
			t.Errorf("%s is listed twice", e.Message)
		}
		known[e.Code] = true
		if v := Classify(e); v.Class != Fault || v.Reason != "unexpected" || v.Hint == "" {
			t.Errorf("%s: %+v, want a fault that somebody is told of", e.Message, v)
		}
	}
	n := 0
	for code := int16(-1); code < 1000; code++ {
		e := kerr.TypedErrorForCode(code)
		if e == nil || e.Code != code { // no error of that code
			continue
		}
		n++
		if _, ok := verdicts[code]; !ok && !known[code] {
			t.Errorf("%s (%d) has no class", e.Message, code)
		}
	}
	if n < 130 || n != len(verdicts)+len(elsewhere) {
		t.Errorf("%d errors of the protocol, %d in the table and %d elsewhere", n, len(verdicts), len(elsewhere))
	}
	for code, v := range verdicts {
		if v.Reason == "" || v.Class > Dead || (v.Class == Fault || v.Class == Dead) && v.Hint == "" && v.Reason != "protocol" && v.Reason != "topic_missing" && v.Reason != "topic_config" {
			t.Errorf("%v: %+v has no reason, or no hint although somebody has to act", kerr.TypedErrorForCode(code), v)
		}
	}
}

func TestUnknownErrorsKeepTheRecord(t *testing.T) {
	f := func(err error, class Class, reason string) {
		t.Helper()
		if v := Classify(err); v.Class != class || v.Reason != reason || !errors.Is(v.Err, err) {
			t.Errorf("%v: %+v, want %v %s", err, v, class, reason)
		}
	}
	f(&kerr.Error{Message: "NEW", Code: 999}, Fault, "unexpected")
	f(kgo.ErrClientClosed, Retry, "outcome_unknown")
	f(errors.New("invalid record partitioning choice of 5 from 3 available"), Retry, "partitions")
	f(errors.New("something else"), Retry, "network")
	f(fmt.Errorf("unable to initialize a producer ID due to request failures: %w", kerr.UnknownServerError), Dead, "server_error")
}

func TestConnectionReasons(t *testing.T) {
	f := func(err error, want string) {
		t.Helper()
		if got, _ := ConnectionReason(fmt.Errorf("unable to dial: %w", err)); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
	f(kerr.SaslAuthenticationFailed, "authentication")
	f(x509.UnknownAuthorityError{}, "tls")
	f(&net.DNSError{Err: "no such host"}, "dns")
	f(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "refused")
	f(context.DeadlineExceeded, "timeout")
	f(io.EOF, "closed")
	f(errors.New("x"), "network")
}

func TestInitProducerIDFaultsThatStickRebuildTheProducer(t *testing.T) {
	for _, err := range []*kerr.Error{kerr.ClusterAuthorizationFailed, kerr.UnknownServerError, kerr.RequestTimedOut, kerr.InvalidProducerEpoch} {
		t.Run(err.Message, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, kfake.SeedTopics(1, "t"))
				defer b.end()
				var mu sync.Mutex
				moments := make(map[time.Time]bool)
				fault := b.cluster.Fault(kfake.Fault{
					Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: err, Count: -1,
					When: func(kmsg.Request) bool {
						mu.Lock()
						defer mu.Unlock()
						moments[time.Now()] = true
						return true
					},
				})
				msgs := messages(0, 10)
				deadline := time.Now().Add(time.Minute)
				for time.Now().Before(deadline) {
					f, r, back := b.send("t", msgs, time.Until(deadline))
					if !back {
						break
					}
					if r.Acked != 0 {
						t.Fatalf("acknowledged without a producer ID: %+v", r)
					}
					msgs = f.Rest(r)
					time.Sleep(time.Second)
				}
				// The producer itself repeats a time-out without a pause, 22 times or as often as it can until it is closed; the client
				// rests between one producer and the next.
				mu.Lock()
				if n := len(moments); n > 20 {
					t.Errorf("InitProducerID is asked for at %d moments in a minute: it does not back off", n)
				}
				mu.Unlock()
				if b.c.Status().Rebuilds == 0 {
					t.Error("the producer was not built anew")
				}
				fault.Remove()
				for try := 0; ; try++ {
					time.Sleep(5 * time.Second)
					if b.c.Status().Outstanding > 0 {
						continue
					}
					if n := b.cluster.PartitionInfo("t", 0).HighWatermark; n == 0 {
						if _, r, ok := b.send("t", msgs, time.Minute); ok && r.Acked == 10 {
							break
						}
					} else {
						break
					}
					if try > 20 {
						t.Fatal("does not recover")
					}
				}
				if got := b.numbers("t"); len(got) != 10 {
					t.Errorf("%d records, want 10", len(got))
				}
			})
		})
	}
}

// A flight that is refused in the middle is acknowledged up to there and nowhere else, also when others wait behind it.
func TestRefusedFlightIsNeverTorn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, kfake.SeedTopics(1, "t"))
		defer b.end()
		bad := binary.BigEndian.AppendUint64(nil, 666)
		b.cluster.Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: -1,
			When: func(req kmsg.Request) bool {
				return bytes.Contains(req.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records, bad)
			},
		})
		results := make(chan Result, 3)
		topic := b.c.Topic("t", nil)
		for _, from := range []int{0, 600, 1200} { // 666 is in the second
			b.c.Ship(&Flight{Topic: topic, Messages: messages(from, 100), Done: func(_ *Flight, r Result) { results <- r }})
		}
		// The producer may have cut the second in two, and the first half may have been accepted.
		acked := 0
		for i, want := range [][2]int{{100, 100}, {0, 66}, {100, 100}} {
			r := <-results
			if acked += r.Acked; r.Acked < want[0] || r.Acked > want[1] {
				t.Errorf("flight %d: %d acknowledged, want %v", i, r.Acked, want)
			}
		}
		if s := b.c.Status(); s.Torn != 0 {
			t.Errorf("%d torn", s.Torn)
		}
		if got := b.numbers("t"); len(got) != acked {
			t.Errorf("%d records, %d acknowledged", len(got), acked)
		}
	})
}

// A flight that has had no outcome for so long that brokers may have forgotten its producer ends with an unknown one, for its lane to
// look what is there.
func TestFlightIsNotRepeatedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, kfake.SeedTopics(1, "t"))
		defer b.end()
		b.c.mu.Lock()
		b.c.maxAirTime = 10 * time.Minute
		b.c.mu.Unlock()
		if _, r, ok := b.send("t", messages(0, 10), time.Minute); !ok || r.Acked != 10 {
			t.Fatalf("without a fault: %+v", r)
		}
		b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t", Err: kerr.NotEnoughReplicas, Count: -1})
		began := time.Now()
		_, r, ok := b.send("t", messages(10, 10), time.Hour)
		if took := time.Since(began); !ok || r.Acked != 0 || !r.Verdict.Unknown || took < 10*time.Minute || took > 11*time.Minute {
			t.Errorf("%v %+v after %v, want an unknown outcome after ten minutes", ok, r, took)
		}
	})
}

// A record that comes every few minutes finds its connection open.
func TestIdleConnectionsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int64
		b := newBed(t, kfake.SeedTopics(1, "t"))
		defer b.end()
		b.c.Close()
		var err error
		b.c, err = New(Config{Name: "main", Brokers: b.cluster.ListenAddrs(), Compression: "none"}, Options{
			GatewayID: "gw", Dial: func(ctx context.Context, network, host string) (net.Conn, error) {
				dials.Add(1)
				return b.net.DialContext(ctx, network, host)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		var before int64
		for i := range 5 {
			if _, r, ok := b.send("t", messages(10*i, 10), time.Minute); !ok || r.Acked != 10 {
				t.Fatalf("%+v", r)
			}
			if i == 1 {
				before = dials.Load()
			}
			time.Sleep(4 * time.Minute)
		}
		if n := dials.Load(); n != before {
			t.Errorf("%d connections were made after the first ones", n-before)
		}
	})
}

// A broker may have forgotten a producer that was idle: then it takes any sequence number, and the first message goes ahead alone.
func TestFirstMessageGoesAheadOfAnIdleProducersFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, kfake.SeedTopics(1, "t"))
		defer b.end()
		var requests []int
		count := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "t", Count: -1, Observe: true})
		for i, pause := range []time.Duration{0, time.Second, 2 * time.Minute} {
			time.Sleep(pause)
			before := count.Hits()
			if _, r, ok := b.send("t", messages(10*i, 10), time.Minute); !ok || r.Acked != 10 {
				t.Fatalf("%+v", r)
			}
			requests = append(requests, int(count.Hits()-before))
		}
		// The client may cut what comes with no pause into more than one, so that only the least number is sure.
		if requests[0] < 2 || requests[2] < 2 {
			t.Errorf("%v requests, want two when the producer is new or was idle", requests)
		}
	})
}

func TestPartitionIsThatOfKafkasClients(t *testing.T) {
	p := kgo.StickyKeyPartitioner(nil).ForTopic("")
	for i := range 2000 {
		key := fmt.Sprintf("%0*d", i%13+1, i)
		for _, n := range []int{1, 3, 12, 50} {
			if got, want := PartitionFor(key, int32(n)), p.Partition(&kgo.Record{Key: []byte(key)}, n); int(got) != want {
				t.Fatalf("key %q of %d: %d, want %d", key, n, got, want)
			}
		}
	}
}

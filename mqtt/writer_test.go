package mqtt

import (
	"errors"
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// refuseKeys is a log's refusal of changes in a space.
func refuseKeys(space, key string) func(spool.Entry) error {
	return func(e spool.Entry) error {
		for _, c := range e.Changes {
			if c.Space == space && strings.HasPrefix(c.Key, key) {
				return spool.ErrInvalid
			}
		}
		return nil
	}
}

// Entries of different clients are appended together: one that the log refuses must not take the others with it.
func TestRefusedChangeConcernsNobodyElse(t *testing.T) {
	srv, log := faulty(t, nil)
	log.set(func() { log.refuse = refuseKeys("x", "bad") })
	type result struct {
		key string
		err error
	}
	results := make(chan result, 8)
	put := func(key string) stateEntry {
		return stateEntry{
			changes: []spool.Change{{Space: "x", Key: key, Value: []byte{1}}},
			done:    func(_ *spool.Record, err error) { results <- result{key, err} },
		}
	}
	w := srv.writer
	w.mu.Lock() // all at once, so that they are joined
	for _, key := range []string{"a", "bad1", "b", "bad2", "c"} {
		w.queue = append(w.queue, put(key))
		w.pending++
	}
	w.mu.Unlock()
	w.put(put("d"))
	for range 6 {
		r := <-results
		if bad := strings.HasPrefix(r.key, "bad"); bad != errors.Is(r.err, spool.ErrInvalid) || !bad && r.err != nil {
			t.Errorf("%s: %v", r.key, r.err)
		}
	}
}

func TestDeliveryWhoseStateIsRefusedComesAgain(t *testing.T) {
	srv, log := faulty(t, nil)
	sub := join(t, srv, mqtttest.Connect{ID: "sub", Properties: hour})
	sub.Subscribe("t", 2)
	pub := join(t, srv, mqtttest.Connect{ID: "pub"})
	log.set(func() { log.refuse = refuseKeys(spaceOutbound, "sub") })
	pub.Publish(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "1"})
	sub.ExpectDisconnect(0x83)
	log.set(func() { log.refuse = nil })
	sub = join(t, srv, mqtttest.Connect{ID: "sub", Properties: hour, Resume: true})
	pk := sub.Expect(packets.Publish)
	log.set(func() { log.refuse = refuseKeys(spaceOutbound, "sub") })
	sub.SendAck(packets.Pubrec, pk.PacketID)
	sub.ExpectDisconnect(0x83)
	log.set(func() { log.refuse = nil })
	sub = join(t, srv, mqtttest.Connect{ID: "sub", Properties: hour, Resume: true})
	sub.Receive(mqtttest.Publish{Topic: "t", QoS: 2, Payload: "1", Dup: true})
	sub.Ping()
}

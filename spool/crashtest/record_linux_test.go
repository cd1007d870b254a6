package crashtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/spool"
)

// id numbers a record: the n-th of a producer. Everything else about it follows from its id and the time.
type id struct{ producer, n int }

const (
	producers    = 4
	syncInterval = 50 * time.Millisecond // in mode window

	stateSpace = "crashtest"
	stateKeys  = 16           // of each producer
	cursorName = "reader of " // and the stream: each has one, and it protects
)

func config(dir string) spool.Config {
	cfg := spool.DefaultConfig()
	cfg.Dir = dir
	cfg.MaxSize = 1 << 30 // more than any image here: the disk is the limit
	cfg.MinFree = 1 << 20
	cfg.QueueSize = 1 << 20
	cfg.TailSize = 4 << 20
	cfg.CommitInterval = unit.Duration(10 * time.Millisecond)
	cfg.Journal = spool.JournalConfig{FileSize: 2 << 20, Files: 3}
	cfg.Segment.MaxSize = 2 << 20
	cfg.Segment.Codec = "s2"
	alarms := spool.DefaultStreamConfig("alarms")
	alarms.Filters, alarms.Partitions = []string{"alarms/#"}, 2
	metrics := spool.DefaultStreamConfig("metrics")
	metrics.Filters, metrics.Partitions, metrics.PartitionBy = []string{"metrics/#"}, 4, spool.PartitionByTopic
	cfg.Streams = []spool.StreamConfig{alarms, metrics}
	return cfg
}

// record makes the record of k as it was received at the time at.
func record(k id, at int64) *spool.Record {
	rnd := rand.New(rand.NewPCG(uint64(k.producer), uint64(k.n)))
	r := &spool.Record{
		Topic:      fmt.Sprintf("%s/line/%d/pump", []string{"alarms", "metrics", "odd"}[rnd.IntN(3)], rnd.IntN(9)),
		ClientID:   fmt.Sprintf("device-%d-%d", k.producer, rnd.IntN(5)),
		ReceivedAt: at,
		QoS:        uint8(rnd.IntN(3)),
		Retain:     rnd.IntN(10) == 0,
	}
	r.Payload = fmt.Appendf(nil, "%d %d %d\n", k.producer, k.n, at)
	size := rnd.IntN(600)
	if rnd.IntN(100) == 0 {
		size = rnd.IntN(40 << 10)
	}
	for range size / 8 { // random: nothing that compresses would fill a disk
		r.Payload = append(r.Payload, byte(rnd.Uint32()), byte(rnd.Uint32()), 'x', 'y', 'z', ' ', byte(rnd.Uint32()), byte(rnd.Uint32()))
	}
	if rnd.IntN(4) == 0 {
		r.Properties = &spool.Properties{ContentType: "text/plain", User: []spool.UserProperty{{Name: "n", Value: fmt.Sprint(k.n)}}}
	}
	if rnd.IntN(8) == 0 {
		r.UserName = "someone"
	}
	if rnd.IntN(8) == 0 {
		r.ExpiresAt = at + int64(100*time.Hour)
	}
	return r
}

// identify finds out which record r is, and whether it is that record byte for byte.
func identify(r *spool.Record) (id, error) {
	var k id
	var at int64
	head, _, _ := bytes.Cut(r.Payload, []byte("\n"))
	if _, err := fmt.Sscanf(string(head), "%d %d %d", &k.producer, &k.n, &at); err != nil {
		return k, fmt.Errorf("payload begins with %.40q: %w", head, err)
	}
	want := record(k, at)
	want.Offset, want.Partition = r.Offset, r.Partition
	if !reflect.DeepEqual(want, r) {
		return k, fmt.Errorf("record %v is not what was appended: topic %q, client %q, payload of %d bytes; want %q, %q, %d",
			k, r.Topic, r.ClientID, len(r.Payload), want.Topic, want.ClientID, len(want.Payload))
	}
	return k, nil
}

// change is the state change that travels with the record of k, nil when it has none.
func change(k id) []spool.Change {
	if k.n%3 != 0 {
		return nil
	}
	c := spool.Change{Space: stateSpace, Key: stateKey(k)}
	if k.n%7 != 0 {
		c.Value = fmt.Append(nil, k.n)
	}
	return []spool.Change{c}
}

func stateKey(k id) string { return fmt.Sprintf("%d-%d", k.producer, k.n%stateKeys) }

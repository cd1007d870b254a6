package kafka

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// PositionsTopic holds the positions of lanes that deliver exactly once.
const PositionsTopic = "forebay.positions"

const (
	positionPartitions = 16 // of it: readers of one wait for open transactions in it

	// Kafka compacts no segment that is written to, and who starts reads all of it: with Kafka's own 1 GiB that takes ten seconds and more.
	positionSegment = "67108864"
)

// LaneKey names a lane among the positions: its Kafka partition, and over how many partitions keys are spread.
func LaneKey(topic string, spread, partition int32) string {
	return fmt.Sprintf("%s/%d/%d", topic, spread, partition)
}

// lane is the name of f's lane.
func (f *Flight) lane() string { return LaneKey(f.Topic.Name, f.Spread, f.Partition) }

// next is the position behind f.
func (f *Flight) next() uint64 { return f.Messages[len(f.Messages)-1].Offset + 1 }

// EnsurePositions makes the topic of positions when it is not there.
func (c *Client) EnsurePositions(ctx context.Context) error {
	c.mu.Lock()
	admin := c.admin
	c.mu.Unlock()
	if admin == nil {
		return errors.New("the producer is being built anew")
	}
	compact, unclean, segment := "compact", "false", positionSegment
	configs := map[string]*string{"cleanup.policy": &compact, "unclean.leader.election.enable": &unclean, "segment.bytes": &segment}
	_, err := admin.CreateTopic(ctx, positionPartitions, -1, configs, PositionsTopic)
	if errors.Is(err, kerr.InvalidConfig) || errors.Is(err, kerr.PolicyViolation) { // of a service that sets the size of segments itself
		delete(configs, "segment.bytes")
		_, err = admin.CreateTopic(ctx, positionPartitions, -1, configs, PositionsTopic)
	}
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("topic %s: %w", PositionsTopic, err)
	}
	return nil
}

// partition is the one of t's positions.
func (t *transactor) partition() int32 {
	h := fnv.New32a()
	h.Write([]byte(t.id))
	return int32(h.Sum32() % positionPartitions)
}

// record is one of t's: the position of a lane, or with an empty key the mark of this process.
func (t *transactor) record(key string, value []byte) *kgo.Record {
	return &kgo.Record{Topic: t.e.offset, Partition: t.partition(), Key: []byte(t.id + "\x00" + key), Value: value}
}

// take takes note of a position: the last one of this epoch, or of one before as far as that counts.
func (t *transactor) take(positions map[string]uint64, key, value string) {
	rest, ok := strings.CutPrefix(key, t.id+"\x00")
	if !ok {
		return
	}
	epoch, lane, ok := strings.Cut(rest, "\x00")
	n, err := strconv.ParseUint(value, 10, 64)
	if !ok || err != nil {
		return
	}
	if epoch == t.e.epoch {
		positions[lane] = n
		return
	}
	for _, b := range t.e.before {
		if epoch == b.Name {
			positions[lane] = max(positions[lane], min(n, b.Until))
		}
	}
}

// read reads the positions up to a record that this producer writes first: what comes behind it is its own. It reads from where it has
// been before: a lane with many records that Kafka refuses makes a new producer for each.
func (t *transactor) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	mark := t.mark(time.Now())
	if err := t.producer.BeginTransaction(); err != nil {
		return err
	}
	// The producer does not give up a record of which nobody knows whether the broker has it, whatever its context: closing it does.
	written := make(chan error, 1)
	own := t.record("", []byte(mark))
	t.producer.Produce(ctx, own, func(_ *kgo.Record, err error) { written <- err })
	select {
	case err := <-written:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := t.producer.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	positions := make(map[string]uint64)
	if own.Offset < t.seen { // the topic was made anew
		t.seen, t.born = 0, 0
	}
	if t.born == 0 {
		t.born = own.Offset + 1
	}
	if t.seen > 0 {
		positions = maps.Clone(t.positions)
	}
	reader, err := t.reader()
	if err != nil {
		return err
	}
	defer reader.Close()
	for {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		end, taken := false, false
		fetches.EachRecord(func(r *kgo.Record) {
			key, value := string(r.Key), string(r.Value)
			taken = taken || !end && t.younger(r)
			t.take(positions, key, value)
			end = end || key == t.id+"\x00" && value == mark
		})
		if taken { // between the look before fencing and the fencing
			return t.giveUp()
		}
		if end {
			t.positions, t.seen, t.opened = positions, own.Offset+1, true
			return nil
		}
	}
}

// reader reads what is committed in the partition of t's positions, from where t has seen it; from its start, when that is gone.
func (t *transactor) reader(more ...kgo.Opt) (*kgo.Client, error) {
	c, from := t.e.c, kgo.NewOffset().AtStart()
	if t.seen > 0 {
		from = kgo.NewOffset().At(t.seen)
	}
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.cfg.BrokerList()...),
		kgo.ClientID(c.cfg.ClientID),
		kgo.Dialer(c.dial),
		kgo.DisableClientMetrics(),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{t.e.offset: {t.partition(): from}}),
	}, slices.Concat(c.identity, more)...)...)
}

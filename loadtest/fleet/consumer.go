package fleet

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// consumer reads the Kafka topics from where they end when the run begins. It belongs to no group and commits nothing.
type consumer struct {
	fleet *Fleet
	check *checker
	times *latency
	cl    *kgo.Client
	next  map[kafkaPartition]int64 // so that a consumer that starts over after a broker's fault does not invent doubles
	again atomic.Int64             // records that it read twice
}

type kafkaPartition struct {
	topic string
	id    int32
}

// kafkaPlace says where a record stands.
type kafkaPlace struct{ *kgo.Record }

func (p kafkaPlace) String() string {
	return fmt.Sprintf("%s/%d at offset %d", p.Topic, p.Partition, p.Offset)
}

// A consumer that finds a new topic or the new leader of a partition within a second hides no latency of its own.
const (
	metadataMinAge = 250 * time.Millisecond
	metadataMaxAge = 5 * time.Second
	fetchMaxWait   = 500 * time.Millisecond
)

func newConsumer(f *Fleet) *consumer {
	exactly := uint8(3)
	if f.cfg.StrictKafka {
		exactly = 0
	}
	return &consumer{
		fleet: f, times: newLatency(), next: make(map[kafkaPartition]int64),
		check: f.ledger.addChecker(&checker{name: "kafka", qos: 2, oneOrder: true, exactly: exactly, run: f.run}),
	}
}

// start finds the ends of the topics. A topic that does not exist yet is read from its beginning once it does.
func (c *consumer) start(ctx context.Context) error {
	seed, err := kgo.NewClient(kgo.SeedBrokers(c.fleet.cfg.Kafka...), kgo.DisableClientMetrics())
	if err != nil {
		return err
	}
	defer seed.Close()
	at, err := topicEnds(ctx, seed, c.fleet.cfg.KafkaTopic)
	if err != nil {
		return fmt.Errorf("kafka %v: %w", c.fleet.cfg.Kafka, err)
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.fleet.cfg.Kafka...), kgo.DisableClientMetrics(), kgo.ClientID("loadtest-" + c.fleet.run),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), // what a transaction left behind that was aborted is not there
		kgo.MetadataMinAge(metadataMinAge), kgo.MetadataMaxAge(metadataMaxAge), kgo.FetchMaxWait(fetchMaxWait),
	}
	var late []string
	for _, t := range c.fleet.cfg.KafkaTopic {
		if len(at[t]) == 0 {
			late = append(late, t)
			delete(at, t)
		}
	}
	opts = append(opts, kgo.ConsumePartitions(at), kgo.ConsumeTopics(late...))
	c.cl, err = kgo.NewClient(opts...)
	return err
}

// topicEnds lists the end offset of every partition of topics; a topic that does not exist has none.
func topicEnds(ctx context.Context, cl *kgo.Client, topics []string) (map[string]map[int32]kgo.Offset, error) {
	meta := kmsg.NewPtrMetadataRequest()
	for _, t := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(t)
		meta.Topics = append(meta.Topics, rt)
	}
	resp, err := meta.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	list := kmsg.NewPtrListOffsetsRequest()
	for _, t := range resp.Topics {
		if t.ErrorCode != 0 {
			if err := kerr.ErrorForCode(t.ErrorCode); err != kerr.UnknownTopicOrPartition {
				return nil, fmt.Errorf("topic %s: %w", *t.Topic, err)
			}
			continue
		}
		lt := kmsg.NewListOffsetsRequestTopic()
		lt.Topic = *t.Topic
		for _, p := range t.Partitions {
			lp := kmsg.NewListOffsetsRequestTopicPartition()
			lp.Partition, lp.Timestamp = p.Partition, -1 // the end
			lt.Partitions = append(lt.Partitions, lp)
		}
		list.Topics = append(list.Topics, lt)
	}
	ends := make(map[string]map[int32]kgo.Offset)
	for _, shard := range cl.RequestSharded(ctx, list) { // partitions have their leaders on different brokers
		if shard.Err != nil {
			return nil, shard.Err
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, fmt.Errorf("topic %s partition %d: %w", t.Topic, p.Partition, err)
				}
				if ends[t.Topic] == nil {
					ends[t.Topic] = make(map[int32]kgo.Offset)
				}
				ends[t.Topic][p.Partition] = kgo.NewOffset().At(p.Offset)
			}
		}
	}
	return ends, nil
}

// run reads until ctx ends. Faults of the cluster are waited out: an outage is part of what a run tests.
func (c *consumer) run(ctx context.Context) {
	defer c.cl.Close()
	for ctx.Err() == nil {
		fetches := c.cl.PollFetches(ctx)
		fetches.EachError(func(t string, p int32, err error) {
			if ctx.Err() == nil {
				c.fleet.log.Debug("consume", "topic", t, "partition", p, "err", err)
			}
		})
		now := c.fleet.since()
		fetches.EachRecord(func(r *kgo.Record) {
			k := kafkaPartition{r.Topic, r.Partition}
			if r.Offset < c.next[k] {
				c.again.Add(1)
				return
			}
			c.next[k] = r.Offset + 1
			m, fresh := c.check.Arrived(r.Value, kafkaPlace{r})
			if fresh {
				c.times.Record(now - m.at)
			}
			for _, h := range r.Headers {
				if h.Key == c.fleet.cfg.IDHeader {
					c.check.Identified(m, h.Value, kafkaPlace{r})
				}
			}
		})
	}
}

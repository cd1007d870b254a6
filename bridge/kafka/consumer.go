package kafka

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Consumer reads partitions that are named to it, from offsets that are given to it. It is in no consumer group, and Kafka keeps no
// position for it: who uses it does. One goroutine polls; Pause and Resume may be called by others at the same time.
type Consumer struct {
	c     *Client
	cl    *kgo.Client
	admin *kadm.Client
}

// ConsumerOptions say how a Consumer reads.
type ConsumerOptions struct {
	Uncommitted bool  // also what is in transactions that are open or aborted
	MaxBytes    int32 // of the answer of one broker, before decompression
}

// Partition is one partition of a topic.
type Partition struct {
	Topic string
	N     int32
}

// String is the partition as logs and commands name it.
func (p Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.N) }

// Incoming is a record that was read. It owns its bytes together with others of its fetch.
type Incoming struct {
	Topic     string
	Partition int32
	Offset    int64
	Epoch     int32 // of the leader that wrote it, -1 when it is not known
	Timestamp time.Time
	Key       []byte // nil when it has none
	Value     []byte // nil when it is null
	Headers   []Header
	Control   bool // the end of a transaction: it has a place and nothing else
}

// Header is one header of a record.
type Header struct {
	Name  string
	Value []byte
}

// Size is what the record takes in memory, about.
func (r *Incoming) Size() int {
	n := 128 + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += 48 + len(r.Headers[i].Name) + len(r.Headers[i].Value)
	}
	return n
}

// Fetched is what came of one partition: records, an error, or both.
type Fetched struct {
	Partition
	Records []Incoming
	High    int64 // the partition's end as the broker sees it, -1 when it is not known
	Err     error // a *ReadError
}

// ReadError is why a partition cannot be read, or that it is not what it was.
type ReadError struct {
	Verdict
	Range   bool  // the position is not in the log; nothing comes until the partition is assigned anew
	Gone    bool  // the topic is not there, or is another one of the same name
	Cut     bool  // the log was cut off below the position by an unclean election; reading goes on at ResetTo
	ResetTo int64 // of Cut
}

func (e *ReadError) Error() string { return e.Err.Error() }
func (e *ReadError) Unwrap() error { return e.Err }

// Times of a consumer.
const (
	fetchWait    = 500 * time.Millisecond // a partition that is resumed waits no longer for the fetch that is on its way
	lookTimeout  = 5 * time.Second
	fetchPartMax = 1 << 20
)

// NewConsumer makes a consumer of nothing. It does not wait for the cluster.
func (c *Client) NewConsumer(o ConsumerOptions) (*Consumer, error) {
	level := kgo.ReadCommitted()
	if o.Uncommitted {
		level = kgo.ReadUncommitted()
	}
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.cfg.BrokerList()...),
		kgo.ClientID(c.cfg.ClientID),
		kgo.SoftwareNameAndVersion("forebay", "1"),
		kgo.WithHooks(txnHooks{hooks{c}}),
		kgo.Dialer(c.dial),
		kgo.DisableClientMetrics(),
		kgo.ConnIdleTimeout(idleTimeout),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.MetadataMaxAge(time.Minute),
		kgo.FetchIsolationLevel(level),
		kgo.FetchMaxBytes(o.MaxBytes),
		kgo.FetchMaxPartitionBytes(min(o.MaxBytes, fetchPartMax)),
		kgo.FetchMaxWait(fetchWait),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // where it goes on is decided by who keeps the position
		kgo.KeepControlRecords(),                    // they have offsets: a position has to pass them
		kgo.KeepRetryableFetchErrors(),
	}, c.identity...)...)
	if err != nil {
		return nil, fmt.Errorf("upstream %s: %w", c.cfg.Name, err)
	}
	return &Consumer{c: c, cl: cl, admin: kadm.NewClient(cl)}, nil
}

// Close ends the consumer.
func (s *Consumer) Close() { s.cl.Close() }

// Found is a topic as the cluster has it.
type Found struct {
	Name       string
	ID         [16]byte // zero where the cluster does not know IDs
	Partitions int32
	Err        *Verdict // why it cannot be used; nil
}

// Look asks for topics: those of the names, or all whose whole name matches the pattern, but for the gateways' own. A topic of names that does not exist is not
// among them.
func (s *Consumer) Look(ctx context.Context, names []string, pattern *regexp.Regexp) ([]Found, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	topics, err := s.admin.ListTopics(ctx, names...)
	if err != nil {
		return nil, err
	}
	var out []Found
	for _, t := range topics.Sorted() {
		f := Found{Name: t.Topic, ID: t.ID}
		switch {
		case pattern != nil && (!pattern.MatchString(t.Topic) || t.Topic == PositionsTopic), errors.Is(t.Err, kerr.UnknownTopicOrPartition):
			continue
		case t.Err != nil:
			v := readVerdict(t.Err)
			f.Err = &v
		}
		for p := range t.Partitions {
			f.Partitions = max(f.Partitions, p+1)
		}
		out = append(out, f)
	}
	return out, nil
}

// Bounds are the ends of a partition.
type Bounds struct {
	Start, End int64
	Err        error
}

// Bounds asks for the first offset of each partition of some topics, and the one behind the last that may be read.
func (s *Consumer) Bounds(ctx context.Context, uncommitted bool, topics ...string) (map[Partition]Bounds, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	list := s.admin.ListCommittedOffsets
	if uncommitted {
		list = s.admin.ListEndOffsets
	}
	ends, err := list(ctx, topics...)
	if err != nil {
		return nil, err
	}
	starts, err := s.admin.ListStartOffsets(ctx, topics...)
	if err != nil {
		return nil, err
	}
	out := make(map[Partition]Bounds)
	ends.Each(func(o kadm.ListedOffset) {
		start, ok := starts.Lookup(o.Topic, o.Partition)
		if ok {
			out[Partition{o.Topic, o.Partition}] = Bounds{start.Offset, o.Offset, errors.Join(o.Err, start.Err)}
		}
	})
	return out, nil
}

// After asks for the first offset of each partition of a topic whose record is not older than t, the end where there is none. A partition
// that cannot be asked is not among them.
func (s *Consumer) After(ctx context.Context, t time.Time, topic string) (map[int32]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	offsets, err := s.admin.ListOffsetsAfterMilli(ctx, t.UnixMilli(), topic)
	if err != nil {
		return nil, err
	}
	out := make(map[int32]int64) // without those that cannot be asked now
	offsets.Each(func(o kadm.ListedOffset) {
		if o.Err == nil {
			out[o.Partition] = o.Offset
		}
	})
	return out, nil
}

// Position is where the reading of a partition begins.
type Position struct {
	Offset int64
	Epoch  int32 // of the leader of the record before, -1 when it is not known: with it a log that was cut off is noticed
}

// Assign adds partitions.
func (s *Consumer) Assign(at map[Partition]Position) {
	m := make(map[string]map[int32]kgo.Offset)
	for p, o := range at {
		if m[p.Topic] == nil {
			m[p.Topic] = make(map[int32]kgo.Offset)
		}
		off := kgo.NewOffset().At(o.Offset)
		if o.Epoch >= 0 {
			off = off.WithEpoch(o.Epoch)
		}
		m[p.Topic][p.N] = off
	}
	s.cl.AddConsumePartitions(m)
}

// Drop takes a partition away: nothing more of it comes. Its topic is known on.
func (s *Consumer) Drop(p Partition) {
	s.cl.RemoveConsumePartitions(map[string][]int32{p.Topic: {p.N}})
}

// Forget takes a topic away, its ID included: only so can another one of the same name be read.
func (s *Consumer) Forget(topic string) { s.cl.PurgeTopicsFromConsuming(topic) }

// Pause has nothing more fetched of a partition until Resume.
func (s *Consumer) Pause(p Partition) {
	s.cl.PauseFetchPartitions(map[string][]int32{p.Topic: {p.N}})
}

// Resume ends a Pause.
func (s *Consumer) Resume(p Partition) {
	s.cl.ResumeFetchPartitions(map[string][]int32{p.Topic: {p.N}})
}

// Poll waits for records or errors until ctx ends, and gives at most n records. Errors of the wait itself are none.
func (s *Consumer) Poll(ctx context.Context, n int) []Fetched {
	fetches := s.cl.PollRecords(ctx, n)
	var out []Fetched
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if p.Topic == "" {
			return // the end of ctx, or of the client
		}
		f := Fetched{Partition: Partition{p.Topic, p.Partition}, High: p.HighWatermark}
		if p.Err != nil {
			f.High = -1
			f.Err = readError(p.Err)
		}
		f.Records = make([]Incoming, len(p.Records))
		for i, r := range p.Records {
			in := Incoming{
				Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Epoch: r.LeaderEpoch, Timestamp: r.Timestamp, Key: r.Key, Value: r.Value,
				Control: r.Attrs.IsControl(),
			}
			if len(r.Headers) > 0 {
				in.Headers = make([]Header, len(r.Headers))
				for j, h := range r.Headers {
					in.Headers[j] = Header{h.Key, h.Value}
				}
			}
			f.Records[i] = in
		}
		out = append(out, f)
	})
	return out
}

// readError is what an error of a fetch means.
func readError(err error) *ReadError {
	if loss, ok := errors.AsType[*kgo.ErrDataLoss](err); ok {
		return &ReadError{Verdict: Verdict{Class: Retry, Reason: "truncated", Err: err}, Cut: true, ResetTo: loss.ResetTo}
	}
	e := &ReadError{Verdict: readVerdict(err)}
	e.Range = errors.Is(err, kerr.OffsetOutOfRange)
	e.Gone = errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.InconsistentTopicID)
	return e
}

// readVerdict is Classify for who reads: the hints are others.
func readVerdict(err error) Verdict {
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return Verdict{Class: Fault, Reason: "topic_authorization", Hint: "allow this client to read the topic (ACL READ and DESCRIBE)", Err: err}
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return Verdict{Class: Fault, Reason: "topic_missing", Hint: "the topic is not there: make it, or correct topics", Err: err}
	case errors.Is(err, kerr.OffsetOutOfRange):
		return Verdict{Class: Retry, Reason: "out_of_range", Err: err}
	}
	return Classify(err)
}

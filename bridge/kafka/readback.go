package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Scan asks which records of a lane a partition has already. After a crash, or when the producer was replaced, nobody knows
// the outcome of what was in the air.
type Scan struct {
	Topic     *Topic
	Partition int32
	From      int64                      // Kafka offset that the records are not below; negative when it is not known
	Since     time.Time                  // time that the records are not older than
	Header    string                     // that carries a record's identity:
	Prefix    string                     // this, and the record's offset in the spool,
	Suffix    func(offset uint64) string // and this; nil is nothing
	Except    []string                   // headers of records that do not count

	// Done is called once, with the offsets in the spool, ascending, and the Kafka offset up to which the partition was read;
	// or with ErrNoRead. It must not block. It is not called when the client is closed before.
	Done func(found []uint64, next int64, err error)

	found    []uint64
	at, end  int64
	finished bool
}

// ErrNoRead means that the cluster does not let this client read the topic.
var ErrNoRead = errors.New("reading the topic is not allowed")

const (
	// settleTime is how long after the end of a producer its last requests may still be on their way through a broker: its
	// connections are closed, but a request that a broker has read is carried out. What is not replicated after that is not
	// seen, and comes twice.
	settleTime = 750 * time.Millisecond

	readTimeout   = 30 * time.Second // without a record
	readPause     = time.Second
	maxReadBytes  = 8 << 20     // of a fetch
	maxReadAtOnce = 64          // partitions
	timeSlack     = time.Minute // topics may have the brokers' time, and clocks differ
)

// ReadBack looks for the records of s. It goes on for as long as the cluster cannot be asked.
func (c *Client) ReadBack(s *Scan) {
	c.mu.Lock()
	c.scans = append(c.scans, s)
	c.mu.Unlock()
	signal(c.scanC)
}

// readBack answers scans until ctx ends.
func (c *Client) readBack(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.scanC:
		}
		for {
			c.mu.Lock()
			n := min(len(c.scans), maxReadAtOnce)
			scans := slices.Clone(c.scans[:n])
			c.scans = c.scans[n:]
			settled := c.builtAt.Add(settleTime)
			if up := c.upAt.Add(settleTime); up.After(settled) { // a broker that starts learns only then what is replicated
				settled = up
			}
			building := c.producer == nil || !c.up.Load() // the old one may still be ending
			c.mu.Unlock()
			if len(scans) == 0 {
				break
			}
			if building {
				if !sleep(ctx, settleTime) {
					return
				}
				c.mu.Lock()
				c.scans = append(scans, c.scans...)
				c.mu.Unlock()
				continue
			}
			for told := false; ; told = true {
				began := time.Now()
				err := c.scan(ctx, scans, settled)
				if err == nil {
					c.log.Info("partitions were read back", "partitions", len(scans), "took", time.Since(began))
					break
				}
				if !told && ctx.Err() == nil {
					c.log.Warn("partitions cannot be read back; their records wait in the spool", "partitions", len(scans), "err", err)
				}
				scans = slices.DeleteFunc(scans, func(s *Scan) bool { return s.finished })
				if !sleep(ctx, readPause) {
					return
				}
			}
		}
	}
}

func (s *Scan) finish(err error) {
	s.finished = true
	slices.Sort(s.found)
	s.Done(slices.Compact(s.found), s.at, err)
}

// scan answers scans, or returns why those that are not finished have to wait. It reads what is there at once, and where the partitions
// end only when they are settled.
func (c *Client) scan(ctx context.Context, scans []*Scan, settled time.Time) error {
	lookCtx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	reader, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.cfg.BrokerList()...),
		kgo.ClientID(c.cfg.ClientID),
		kgo.SoftwareNameAndVersion("forebay", "1"),
		kgo.Dialer(c.dial),
		kgo.DisableClientMetrics(),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.FetchMaxBytes(maxReadBytes),
		kgo.FetchMaxPartitionBytes(1 << 20),
		kgo.FetchMaxWait(250 * time.Millisecond),
		kgo.KeepControlRecords(), // the last offset may be one
		kgo.KeepRetryableFetchErrors(),
	}, c.identity...)...)
	if err != nil {
		return err
	}
	defer reader.Close()
	admin := kadm.NewClient(reader)
	if scans, err = place(lookCtx, admin, scans); err != nil {
		return err
	}
	if len(scans) == 0 {
		return nil
	}
	open := make(map[string]map[int32][]*Scan)
	from := make(map[string]map[int32]kgo.Offset)
	for _, s := range scans {
		s.found = nil
		name := s.Topic.Name
		if open[name] == nil {
			open[name], from[name] = make(map[int32][]*Scan), make(map[int32]kgo.Offset)
		}
		open[name][s.Partition] = append(open[name][s.Partition], s)
		at := s.at
		for _, other := range open[name][s.Partition] {
			at = min(at, other.at)
		}
		from[name][s.Partition] = kgo.NewOffset().At(at)
	}
	reader.AddConsumePartitions(from)
	if !sleep(ctx, time.Until(settled)) {
		return ctx.Err()
	}
	if err := findEnds(lookCtx, admin, open); err != nil {
		return err
	}
	left := 0
	for _, s := range scans {
		if s.at >= s.end {
			s.finish(nil)
			continue
		}
		left++
	}
	for left > 0 {
		pollCtx, cancel := context.WithTimeout(ctx, readTimeout)
		fetches := reader.PollFetches(pollCtx)
		cancel()
		if err := fetches.Err0(); errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed) {
			return err
		}
		var failed error
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			for _, s := range open[p.Topic][p.Partition] {
				if s.finished {
					continue
				}
				switch {
				case errors.Is(p.Err, kerr.TopicAuthorizationFailed):
					s.finish(fmt.Errorf("%w: %w", ErrNoRead, p.Err))
					left--
					continue
				case p.Err != nil:
					failed = p.Err
					continue
				}
				for _, r := range p.Records {
					s.look(r)
				}
				if s.at >= s.end {
					s.finish(nil)
					left--
				}
			}
		})
		if failed != nil {
			return failed
		}
	}
	return nil
}

// look takes note of a record.
func (s *Scan) look(r *kgo.Record) {
	s.at = max(s.at, r.Offset+1)
	if r.Attrs.IsControl() || r.Attrs.IsTransactional() { // of a run that delivered exactly once: it may be aborted
		return
	}
	id := []byte(nil)
	for _, h := range r.Headers {
		switch {
		case h.Key == s.Header:
			id = h.Value
		case slices.Contains(s.Except, h.Key):
			return
		}
	}
	if rest, ok := bytes.CutPrefix(id, []byte(s.Prefix)); ok {
		digits, _, _ := bytes.Cut(rest, []byte("~"))
		if n, err := strconv.ParseUint(string(digits), 10, 64); err == nil && string(rest[len(digits):]) == s.suffix(n) {
			s.found = append(s.found, n)
		}
	}
}

func (s *Scan) suffix(offset uint64) string {
	if s.Suffix == nil {
		return ""
	}
	return s.Suffix(offset)
}

// place finds out where each scan begins. It finishes those that cannot be read, and returns the others.
func place(ctx context.Context, admin *kadm.Client, scans []*Scan) (rest []*Scan, err error) {
	byTopic := make(map[string][]*Scan)
	for _, s := range scans {
		byTopic[s.Topic.Name] = append(byTopic[s.Topic.Name], s)
	}
	for name, of := range byTopic { // one by one: a topic without rights fails the question about all
		err := placeIn(ctx, admin, name, of)
		switch {
		case err == nil:
			rest = append(rest, of...)
		case errors.Is(err, kerr.TopicAuthorizationFailed):
			for _, s := range of {
				s.finish(fmt.Errorf("%w: %w", ErrNoRead, err))
			}
		case errors.Is(err, kerr.UnknownTopicOrPartition): // what was there is gone with it
			for _, s := range of {
				s.at = -1
				s.finish(nil)
			}
		default:
			return scans, err
		}
	}
	return rest, nil
}

func placeIn(ctx context.Context, admin *kadm.Client, topic string, scans []*Scan) error {
	// By time, exactly: records of another spool that had the same ID are older, and must not be taken for ours. Where an
	// offset is known too there is no such danger, and the time only shortens the way; then clocks may differ.
	oldest := scans[0].Since
	for _, s := range scans {
		if s.Since.Before(oldest) {
			oldest = s.Since
		}
	}
	var starts, ends, since, loose kadm.ListedOffsets
	list := func(to *kadm.ListedOffsets, ask func() (kadm.ListedOffsets, error)) func() error {
		return func() (err error) { *to, err = ask(); return err }
	}
	if err := together(
		list(&starts, func() (kadm.ListedOffsets, error) { return admin.ListStartOffsets(ctx, topic) }),
		list(&ends, func() (kadm.ListedOffsets, error) { return admin.ListEndOffsets(ctx, topic) }),
		list(&since, func() (kadm.ListedOffsets, error) { return admin.ListOffsetsAfterMilli(ctx, oldest.UnixMilli(), topic) }),
		list(&loose, func() (kadm.ListedOffsets, error) {
			return admin.ListOffsetsAfterMilli(ctx, oldest.Add(-timeSlack).UnixMilli(), topic)
		}),
	); err != nil {
		return err
	}
	for _, s := range scans {
		start, ok1 := starts.Lookup(topic, s.Partition)
		end, ok2 := ends.Lookup(topic, s.Partition)
		after, ok3 := since.Lookup(topic, s.Partition)
		before, ok4 := loose.Lookup(topic, s.Partition)
		if err := errors.Join(start.Err, end.Err, after.Err, before.Err); err != nil {
			return err
		}
		if !ok1 || !ok2 || !ok3 || !ok4 {
			return fmt.Errorf("topic %s partition %d has no offsets", topic, s.Partition)
		}
		if s.From >= 0 && s.From <= end.Offset { // a topic that was made anew counts from 0 again
			s.at = max(start.Offset, before.Offset, s.From)
		} else {
			s.at = max(start.Offset, after.Offset)
		}
	}
	return nil
}

// findEnds finds out where scans end.
func findEnds(ctx context.Context, admin *kadm.Client, open map[string]map[int32][]*Scan) error {
	var steps []func() error
	for topic, partitions := range open {
		steps = append(steps, func() error {
			ends, err := admin.ListEndOffsets(ctx, topic)
			if err != nil {
				return err
			}
			for partition, scans := range partitions {
				end, ok := ends.Lookup(topic, partition)
				if end.Err != nil {
					return end.Err
				}
				if !ok {
					return fmt.Errorf("topic %s partition %d has no end", topic, partition)
				}
				for _, s := range scans {
					s.end = end.Offset
				}
			}
			return nil
		})
	}
	return together(steps...)
}

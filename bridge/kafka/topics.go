package kafka

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Topic is a Kafka topic that lanes send to.
type Topic struct {
	Name   string
	create *Create

	// Guarded by Client.mu.
	c          *Client
	refs       int   // outlets that have it
	partitions int32 // 0 until it is known
	limits     limits
	replicas   []replicas // by partition
	fault      *Verdict
	faultSince time.Time
	stale      bool // look it up
	tries      int
	madeAt     time.Time // when this client made it: brokers learn of it one after the other
	notBefore  time.Time
	lookedAt   time.Time
	slots      map[int32]*slot
	flying     int
	purging    bool // wait until nothing is in the air, purge, go on
}

// TopicStatus is what is known about a topic.
type TopicStatus struct {
	Partitions int32    // 0 while it is not known
	Fault      *Verdict // why it cannot be used now
	Since      time.Time
}

const (
	defaultMaxMessage = 1048588     // Kafka's own default of max.message.bytes
	topicsEvery       = time.Minute // look for new partitions and changed limits
	maxTopicBackoff   = 15 * time.Second
	warmTimeout       = 5 * time.Second
	spreadTime        = 5 * time.Second // until all brokers know a topic that was made
)

// ValidTopic reports whether Kafka takes name for a topic.
func ValidTopic(name string) bool {
	if name == "" || len(name) > 249 || name == "." || name == ".." {
		return false
	}
	for i := range len(name) {
		if !TopicChar(name[i]) {
			return false
		}
	}
	return true
}

// TopicChar reports whether a topic's name may hold b.
func TopicChar(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == '_' || b == '-'
}

// Topic is the topic of that name, looked up in the background; create may be nil. Watchers are told when it is known.
func (c *Client) Topic(name string, create *Create) *Topic {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.topics[name]
	if !ok {
		t = &Topic{Name: name, c: c, limits: limits{maxBytes: defaultMaxMessage}, stale: true, slots: make(map[int32]*slot)}
		c.topics[name] = t
		c.named++
		signal(c.topicC)
	}
	t.refs++
	if t.create == nil {
		t.create = create
	}
	return t
}

// Release gives a topic back. What nobody has any more is forgotten; nothing of it may be in the air.
func (c *Client) Release(t *Topic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.refs--; t.refs > 0 {
		return
	}
	delete(c.topics, t.Name) // the producer keeps it: see purgeTopic
}

// Topics is the number of topics that the client keeps up.
func (c *Client) Topics() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.topics)
}

// Status takes a snapshot.
func (t *Topic) Status() TopicStatus {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return TopicStatus{Partitions: t.partitions, Fault: t.fault, Since: t.faultSince}
}

func (t *Topic) slotLocked(partition int32) *slot {
	s, ok := t.slots[partition]
	if !ok {
		s = new(slot)
		t.slots[partition] = s
	}
	return s
}

// topicVerdictLocked does for the topic what the outcome of a flight asks for.
func (c *Client) topicVerdictLocked(t *Topic, err error, do topicAction) {
	if err == nil {
		t.fault = nil
	}
	switch do {
	case purgeTopic:
		t.purging = true
		t.stale = true
	case refreshTopic:
		t.stale = true
	}
	if t.stale || t.purging && t.flying == 0 {
		signal(c.topicC)
	}
}

// releaseLocked starts what waited for the purge.
func (c *Client) releaseLocked(t *Topic) {
	if c.closed {
		return
	}
	for _, s := range t.slots {
		if !s.busy && len(s.waiting) > 0 {
			next := s.waiting[0]
			s.waiting = s.waiting[1:]
			c.startLocked(s, next)
		}
	}
	signal(c.shipC)
}

// lookUp keeps the topics known: at first, when a flight says that something is wrong, and every now and then.
func (c *Client) lookUp(ctx context.Context) {
	wait := topicsEvery
	for {
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		case <-c.topicC:
			t.Stop()
		}
		wait = c.lookUpOnce(ctx)
	}
}

// lookUpOnce returns how long it is to the next time.
func (c *Client) lookUpOnce(ctx context.Context) time.Duration {
	now := time.Now()
	c.mu.Lock()
	admin, producer := c.admin, c.producer
	var names, purge []string
	for name, t := range c.topics {
		if t.purging && t.flying == 0 {
			purge = append(purge, name)
		}
		if t.partitions > 0 && now.Sub(t.lookedAt) >= topicsEvery {
			t.stale = true
		}
		if t.stale && !now.Before(t.notBefore) {
			names = append(names, name)
		}
	}
	c.mu.Unlock()
	if producer == nil {
		return topicsEvery // the new one signals
	}
	if len(purge) > 0 {
		producer.PurgeTopicsFromClient(purge...)
		c.mu.Lock()
		for _, name := range purge {
			t, ok := c.topics[name]
			if !ok {
				continue
			}
			t.purging = false
			for _, s := range t.slots {
				s.known = nil // a topic made anew has never heard of the producer
			}
			c.releaseLocked(t)
		}
		c.mu.Unlock()
		c.log.Info("topics are taken up anew", "topics", purge)
	}
	if len(names) > 0 {
		slices.Sort(names)
		c.resolve(ctx, admin, names)
		c.notify()
	}
	return c.nextLookUp(time.Now())
}

func (c *Client) nextLookUp(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait := topicsEvery
	for _, t := range c.topics {
		if t.stale {
			wait = min(wait, max(t.notBefore.Sub(now), 0))
		}
	}
	return wait
}

// resolve asks the cluster about topics, makes those that may be made, and reads their limits.
func (c *Client) resolve(ctx context.Context, admin *kadm.Client, names []string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	details, err := admin.ListTopics(ctx, names...)
	if err != nil {
		for _, name := range names {
			c.unresolved(name, Classify(err))
		}
		return
	}
	var known []string
	for _, name := range names {
		d := details[name]
		switch {
		case d.Err == nil && len(d.Partitions) > 0:
			known = append(known, name)
		case errors.Is(d.Err, kerr.UnknownTopicOrPartition):
			c.missing(ctx, admin, name)
		case d.Err == nil: // an authorizer hides the partitions
			c.unresolved(name, Verdict{
				Class: Fault, Reason: "topic_authorization", Err: errors.New("the topic shows no partitions"),
				Hint: verdicts[kerr.TopicAuthorizationFailed.Code].Hint,
			})
		default:
			c.unresolved(name, Classify(d.Err))
		}
	}
	c.readConfigs(ctx, admin, known) // first: what the topic refuses has to be known when lanes begin to send
	for _, name := range known {
		c.resolved(name, details[name].Partitions)
	}
}

func (c *Client) resolved(name string, details kadm.PartitionDetails) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.topics[name]
	if !ok {
		return
	}
	partitions := int32(len(details))
	t.replicas = make([]replicas, partitions)
	for p, d := range details {
		if p < partitions {
			t.replicas[p] = replicas{leader: d.Leader >= 0, inSync: len(d.ISR)}
		}
	}
	if t.partitions == 0 && c.producer != nil && !c.closed {
		p := c.producer
		c.running.Go(func() { warm(p, name, details) })
	}
	if t.partitions != 0 && t.partitions != partitions {
		c.log.Info("topic has another number of partitions", "topic", name, "partitions", partitions, "before", t.partitions)
		if c.producer != nil {
			go c.producer.ForceMetadataRefresh() // it may wait for a refresh that runs
		}
	}
	t.partitions, t.stale, t.tries, t.fault, t.notBefore = partitions, false, 0, nil, time.Time{}
	t.lookedAt = time.Now()
}

// warm has the producer take up a topic before the first message of it comes, which would wait for metadata, a producer ID and
// connections, half a second together.
func warm(p *kgo.Client, topic string, details kadm.PartitionDetails) {
	// A partition that cannot be: the producer learns what the topic has, to say so, and sends nothing.
	p.Produce(context.Background(), &kgo.Record{Topic: topic, Partition: math.MaxInt32}, func(*kgo.Record, error) {})
	var leaders []int32
	for _, d := range details {
		if d.Leader >= 0 && !slices.Contains(leaders, d.Leader) {
			leaders = append(leaders, d.Leader)
		}
	}
	if len(leaders) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), warmTimeout)
	defer cancel()
	// What does not work now is met again by the first message, and told of then.
	_ = p.EnsureProduceConnectionIsOpen(ctx, leaders...)
	_, _, _ = p.ProducerID(ctx)
}

func (c *Client) unresolved(name string, v Verdict) {
	c.mu.Lock()
	t, ok := c.topics[name]
	if !ok {
		c.mu.Unlock()
		return
	}
	t.tries++
	longest := maxTopicBackoff
	if v.Class == Retry {
		longest = time.Second // nobody has to do anything: go on as soon as the cluster is there
	}
	t.notBefore = time.Now().Add(min(250*time.Millisecond<<min(t.tries, 10), longest))
	t.stale = true
	told := t.fault != nil && t.fault.Reason == v.Reason
	if t.fault == nil {
		t.faultSince = time.Now()
	}
	t.fault = &v
	c.mu.Unlock()
	if !told && v.Class != Retry {
		c.log.Warn("topic cannot be used; its records wait in the spool", "topic", name, "reason", v.Reason, "err", v.Err, "hint", v.Hint)
	}
}

// readConfigs reads the limits of topics. Without the right to do so Kafka's defaults stand.
func (c *Client) readConfigs(ctx context.Context, admin *kadm.Client, names []string) {
	if len(names) == 0 {
		return
	}
	all, err := admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		c.log.Debug("limits of topics are not known", "err", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rc := range all {
		t, ok := c.topics[rc.Name]
		if !ok || rc.Err != nil {
			continue
		}
		t.limits = limitsOf(rc.Configs)
	}
}

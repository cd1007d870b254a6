package kafka

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The largest flight. One flight a partition is in the air: this much for each round trip.
const (
	MaxFlightRecords = 3000
	MaxFlightBytes   = 1 << 20 // before compression: about one batch of the producer and of the broker's default limit
)

// Flight is some consecutive messages of one lane for one Kafka partition.
type Flight struct {
	Topic     *Topic
	Partition int32
	Spread    int32     // partitions that keys are spread over
	Messages  []Message // not empty; belongs to the client until Done is called
	Block     *Block    // their memory, when it is nobody else's; it is the sender's

	// Done is called once, when the outcome of every message is known. It must not block. It may Ship the next flight.
	Done func(*Flight, Result)

	client  *Client
	shipped time.Time
	to      int   // messages before it were given to the producer
	left    int   // of those, messages without an outcome
	cursor  int   // index of the message whose outcome is expected next
	err     error // of the first message that was not acknowledged
	errAt   int
}

// Result is the outcome of a flight.
type Result struct {
	Acked   int     // leading messages that all in-sync replicas have
	Next    int64   // Kafka offset behind the last of them; 0 when it is not known
	Verdict Verdict // what hinders the next one; of no meaning when all are acknowledged
}

// OK reports whether all messages of f are acknowledged.
func (r Result) OK(f *Flight) bool { return r.Acked == len(f.Messages) }

// Rest are the messages that still have to be sent, for a flight that is done.
func (f *Flight) Rest(r Result) []Message {
	rest := f.Messages[r.Acked:]
	for i := range rest {
		if rest[i].acked { // torn: a later message overtook; send only what is missing
			var missing []Message
			for _, m := range rest {
				if !m.acked {
					missing = append(missing, m)
				}
			}
			return missing
		}
	}
	return rest
}

// slot is one Kafka partition: at most one flight of it is in the air, whoever it belongs to. Guarded by Client.mu.
type slot struct {
	busy    bool
	waiting []*Flight // of other lanes, first come first served

	// known is the producer that the broker knows here: it has acknowledged something of it. A broker that knows nothing of a
	// producer takes any sequence number for its first: with two requests of a flight under way it could refuse the first
	// and take the second. So a flight of a producer that is not known sends its first message ahead, alone. Brokers forget
	// producers that send nothing (producer.id.expiration.ms, a day by default).
	known   *kgo.Client
	knownAt time.Time

	flight *Flight // in the air
}

const (
	// rememberFor is how long a producer that sends nothing to a partition is taken for known: long before a broker forgets it.
	rememberFor = time.Minute

	// maxAirTime is how long a flight may be without an outcome. The producer repeats it with the same sequence numbers, by which the
	// broker knows what it has written and not acknowledged, until the broker forgets the producer, after a day: then it would
	// write it a second time. Before that the producer is built anew, and the partition is read back.
	maxAirTime = 12 * time.Hour
)

// tooLongInAirLocked reports whether there is a flight that has had no outcome for longer than that.
func (c *Client) tooLongInAirLocked(now time.Time) bool {
	if c.producer == nil {
		return false
	}
	for _, t := range c.topics {
		for _, s := range t.slots {
			if s.flight != nil && !s.flight.shipped.IsZero() && now.Sub(s.flight.shipped) > c.maxAirTime {
				return true
			}
		}
	}
	return false
}

// Ship sends f as soon as its partition is free. f.Done tells the outcome; there is none before the cluster has given it
// or the client is closed.
func (c *Client) Ship(f *Flight) {
	if len(f.Messages) == 0 {
		panic("BUG: kafka: a flight without messages")
	}
	f.client, f.to, f.cursor, f.err, f.errAt, f.shipped = c, 0, 0, nil, len(f.Messages), time.Time{}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		go f.Done(f, Result{Verdict: Classify(kgo.ErrClientClosed)}) // the caller may hold what Done takes
		return
	}
	c.air.Add(1)
	c.outstanding += len(f.Messages)
	s := f.Topic.slotLocked(f.Partition)
	if s.busy || f.Topic.purging {
		s.waiting = append(s.waiting, f)
	} else {
		c.startLocked(s, f)
	}
	c.mu.Unlock()
	signal(c.shipC)
}

func (c *Client) startLocked(s *slot, f *Flight) {
	s.busy, s.flight = true, f
	f.Topic.flying++
	c.flying++
	c.ready = append(c.ready, f)
}

// How flights leave.
const (
	// linger is how long the producer waits for more of a partition before it makes a request of what it has, unless it is told that this
	// is all: else it would make one of the first records of a flight, and up to five in all, while the rest is still being appended.
	linger = 2 * time.Millisecond

	// maxFlushed is up to how many topics it is told. Telling looks at each partition of all that the producer has ever had.
	maxFlushed = 64

	// shipPause is the shortest time between two rounds of small flights: feeders wake up one after the other when records have become
	// durable, and what they send in that time leaves in one request to each broker.
	shipPause  = time.Millisecond
	largeRound = MaxFlightRecords // in messages: worth a round at once
)

// ship appends flights to the producer, each as a whole behind the closed gate.
func (c *Client) ship(ctx context.Context) {
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.shipC:
		}
		if rest := shipPause - time.Since(last); rest > 0 && c.readyMessages() < largeRound && !sleep(ctx, rest) {
			return
		}
		if c.shipReady() {
			last = time.Now()
		}
	}
}

func (c *Client) readyMessages() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.ready {
		n += len(f.Messages) - f.to
	}
	return n
}

// shipReady reports whether there was something to ship.
func (c *Client) shipReady() bool {
	now := time.Now()
	c.mu.Lock()
	flights, producer, topics := c.ready, c.producer, c.named
	if producer == nil || len(flights) == 0 { // one that is being built anew signals again
		c.mu.Unlock()
		return false
	}
	c.ready = nil
	from := make([]int, len(flights))
	for i, f := range flights {
		from[i] = f.to
		if s := f.Topic.slotLocked(f.Partition); s.known == producer && now.Sub(s.knownAt) < rememberFor {
			f.to = len(f.Messages)
		} else {
			f.to = from[i] + 1
		}
		f.left = f.to - from[i]
		f.shipped = now
	}
	c.mu.Unlock()
	for n, f := range flights {
		promise := f.outcome // one for all
		c.gate.close()
		for i := from[n]; i < f.to; i++ {
			m := &f.Messages[i]
			m.acked = false
			m.attempts++
			m.rec.Topic, m.rec.Partition = f.Topic.Name, f.Partition
			// Its context is never cancelled: a record's outcome is either known or waited for.
			producer.Produce(context.Background(), &m.rec, promise)
		}
		c.gate.open()
	}
	if topics <= maxFlushed {
		leave(producer)
	}
	return true
}

// leave has the producer send what it has, and does not wait for it: that is what Flush does first.
func leave(p *kgo.Client) { _ = p.Flush(over) }

// over is a context that has ended.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// outcome is the promise of each message of f. The producer calls promises one after the other, and those of a partition
// in order, except for what it refuses before it is buffered.
func (f *Flight) outcome(r *kgo.Record, err error) {
	i := f.cursor
	for n := 0; &f.Messages[i].rec != r; n++ {
		if n == len(f.Messages) {
			panic("BUG: kafka: an outcome for a record that is not of this flight")
		}
		i = (i + 1) % len(f.Messages)
	}
	f.cursor = (i + 1) % len(f.Messages)
	if err == nil {
		f.Messages[i].acked = true
	} else if i < f.errAt {
		f.err, f.errAt = err, i
	}
	if f.left--; f.left == 0 && !f.client.goesOn(f) {
		f.client.landed(f)
	}
}

// goesOn sends the rest of f behind its first message.
func (c *Client) goesOn(f *Flight) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.err != nil {
		return false
	}
	if c.producer != nil {
		s := f.Topic.slotLocked(f.Partition)
		s.known, s.knownAt = c.producer, time.Now()
	}
	if f.to == len(f.Messages) || c.closed {
		return false
	}
	c.ready = append(c.ready, f)
	signal(c.shipC)
	return true
}

// landed frees f's partition for the next flight and reports f's outcome.
func (c *Client) landed(f *Flight) {
	res := Result{Acked: min(f.errAt, f.to)}
	switch {
	case f.err != nil:
		res.Verdict = Classify(f.err)
	case !res.OK(f): // closed before the rest was sent
		res.Verdict = Classify(kgo.ErrClientClosed)
	}
	if res.Acked > 0 {
		if at := f.Messages[res.Acked-1].rec.Offset; at >= 0 { // a broker that took it for a repetition may not say where it is
			res.Next = at + 1
		}
	}
	torn := 0
	for i := f.errAt; i < len(f.Messages); i++ {
		if f.Messages[i].acked {
			torn++
		}
	}
	now := time.Now()

	c.mu.Lock()
	c.outstanding -= len(f.Messages)
	c.flying--
	f.Topic.flying--
	c.torn += uint64(torn)
	if f.errAt > 0 {
		c.aliveLocked(now)
	}
	if f.err == nil {
		took := now.Sub(f.shipped)
		c.flightTime += (took - c.flightTime) / 8
	}
	if res.Verdict.Class == Dead && f.err != nil {
		c.condemnLocked(res.Verdict)
	}
	c.topicVerdictLocked(f.Topic, f.err, res.Verdict.topic)
	s := f.Topic.slotLocked(f.Partition)
	s.busy, s.flight = false, nil
	if len(s.waiting) > 0 && !f.Topic.purging && !c.closed {
		next := s.waiting[0]
		s.waiting = s.waiting[1:]
		c.startLocked(s, next)
		signal(c.shipC)
	}
	c.mu.Unlock()

	if torn > 0 {
		c.log.Error("later messages of a flight were acknowledged before earlier ones; only the missing are sent again",
			"topic", f.Topic.Name, "partition", f.Partition, "messages", torn, "err", f.err)
	}
	f.Done(f, res)
	c.air.Done()
}

// signal wakes the goroutine that waits on ch, or the next one that will.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

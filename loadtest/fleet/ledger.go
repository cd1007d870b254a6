package fleet

import (
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
)

// ledger knows of every message whether it was sent, and what became of it. It holds bits, not messages.
//
// A device's account has its own lock, so that devices and checkers meet only over the messages of one device.
type ledger struct {
	mix      Mix
	accounts []account
	checkers []*checker

	sent, acked, refused [3]atomic.Int64 // by QoS
}

// account is what is known about the messages of one device.
type account struct {
	mu      sync.Mutex
	sent    int    // messages 0..sent-1 were handed to a connection at least once
	acked   bitmap // the broker took over: PUBACK or PUBREC with success
	refused bitmap // the broker said no for ever: PUBACK or PUBREC with an error
	marks   []mark // by checker
}

// mark is what one checker saw of one device.
type mark struct {
	seen bitmap
	high [3]int         // highest message seen, plus one; by QoS, or all in the first
	ids  map[int]uint64 // hash of the record's ID of each QoS 2 message; only for a checker that is told IDs
}

// newLedger returns the ledger of n devices. Checkers are added before the first message.
func newLedger(n int, mix Mix) *ledger {
	return &ledger{mix: mix, accounts: make([]account, n)}
}

// addChecker adds a witness to which messages of at least QoS 1 are promised; see checker for the rest.
func (l *ledger) addChecker(c *checker) *checker {
	c.ledger, c.index = l, len(l.checkers)
	l.checkers = append(l.checkers, c)
	for i := range l.accounts {
		l.accounts[i].marks = append(l.accounts[i].marks, mark{})
	}
	return c
}

// Sent notes that message seq is about to be handed to a connection. It comes first: a message may arrive at once.
func (l *ledger) Sent(device, seq int) {
	a := &l.accounts[device]
	a.mu.Lock()
	if seq >= a.sent {
		a.sent = seq + 1
		l.sent[l.mix.QoS(device, seq)].Add(1)
	}
	a.mu.Unlock()
}

// Acknowledged notes that the broker took message seq over. It reports whether that is news.
func (l *ledger) Acknowledged(device, seq int) bool {
	a := &l.accounts[device]
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.acked.set(seq) {
		return false
	}
	q := l.mix.QoS(device, seq)
	l.acked[q].Add(1)
	for _, c := range l.checkers {
		if c.promised(q) && !a.marks[c.index].seen.has(seq) {
			c.pending.Add(1)
		}
	}
	return true
}

// Refused notes that the broker will never take message seq.
func (l *ledger) Refused(device, seq int) {
	a := &l.accounts[device]
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refused.set(seq) {
		l.refused[l.mix.QoS(device, seq)].Add(1)
	}
}

// Unsettled is how many messages of QoS 1 and 2 were sent and neither acknowledged nor refused.
func (l *ledger) Unsettled() int64 {
	var n int64
	for q := 1; q <= 2; q++ {
		n += l.sent[q].Load() - l.acked[q].Load() - l.refused[q].Load()
	}
	return n
}

// checker is a witness of what arrives: a subscriber, or the Kafka side.
type checker struct {
	name     string
	qos      uint8 // the highest QoS that reaches it: what was published with more is lowered to this
	oneOrder bool  // one order across all QoS, not one for each
	exactly  uint8 // from this QoS on a double is a fault: 2 for a subscriber, 0 or 3 (never) for Kafka
	run      string

	ledger *ledger
	index  int

	pending atomic.Int64 // promised, acknowledged and not seen yet
	arrived atomic.Int64 // everything of this run, doubles too
	foreign atomic.Int64 // messages of others, skipped
	unique  [3]atomic.Int64
	doubled [3]atomic.Int64
	reorder atomic.Int64
	corrupt atomic.Int64
	unsent  atomic.Int64
	twice   atomic.Int64 // QoS 2 messages that the broker took twice: under two IDs

	mu        sync.Mutex
	offenders []Offender
}

// maxOffenders of each checker are told in the report; more would not help to find the cause.
const maxOffenders = 10

// Offender is one message that did not fare as promised.
type Offender struct {
	Checker string `json:"checker"`
	Fault   string `json:"fault"` // missing, doubled, taken twice, reordered, invented
	Device  int    `json:"device"`
	Seq     int    `json:"seq"`
	QoS     uint8  `json:"qos"`
	Detail  string `json:"detail,omitempty"`
}

// String is the line that a person reads.
func (o Offender) String() string {
	s := fmt.Sprintf("%s: device %d message %d (QoS %d) %s", o.Checker, o.Device, o.Seq, o.QoS, o.Fault)
	if o.Detail != "" {
		s += ": " + o.Detail
	}
	return s
}

// promised reports whether a message of QoS q must arrive here once it is acknowledged.
func (c *checker) promised(q uint8) bool { return min(q, c.qos) > 0 }

// exact reports whether a message of QoS q may arrive here only once.
func (c *checker) exact(q uint8) bool { return min(q, c.qos) >= c.exactly }

// Arrived takes a payload that came in, and where it was found. It returns the message, and false when it is
// not of this run or already known: then its time says nothing about latency.
func (c *checker) Arrived(payload []byte, where fmt.Stringer) (message, bool) {
	m, err := parsePayload(payload, c.run)
	switch {
	case err == errForeign:
		c.foreign.Add(1)
		return m, false
	case err != nil:
		c.corrupt.Add(1)
		c.accuse("invented", m, err.Error()+", "+where.String())
		return m, false
	}
	c.arrived.Add(1)
	if m.device >= len(c.ledger.accounts) {
		c.unsent.Add(1)
		c.accuse("invented", m, "no such device, "+where.String())
		return m, false
	}
	return m, c.mark(m, where)
}

// Identified notes under which ID message m of QoS 2 stands in the broker's log. A second ID says that the broker took it
// twice; the same ID again is only a repeated delivery.
func (c *checker) Identified(m message, id []byte, where fmt.Stringer) {
	if m.device >= len(c.ledger.accounts) || c.ledger.mix.QoS(m.device, m.seq) != 2 {
		return
	}
	h := fnv.New64a()
	h.Write(id)
	a := &c.ledger.accounts[m.device]
	a.mu.Lock()
	defer a.mu.Unlock()
	k := &a.marks[c.index]
	if k.ids == nil {
		k.ids = make(map[int]uint64)
	}
	if before, known := k.ids[m.seq]; !known {
		k.ids[m.seq] = h.Sum64()
	} else if before != h.Sum64() {
		c.twice.Add(1)
		c.accuse("taken twice", m, where.String())
	}
}

// mark writes m into the ledger and reports whether it was seen for the first time.
func (c *checker) mark(m message, where fmt.Stringer) bool {
	a := &c.ledger.accounts[m.device]
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.seq >= a.sent {
		c.unsent.Add(1)
		c.accuse("invented", m, "never sent, "+where.String())
		return false
	}
	q := c.ledger.mix.QoS(m.device, m.seq)
	k := &a.marks[c.index]
	if !k.seen.set(m.seq) {
		c.doubled[q].Add(1)
		if c.exact(q) {
			c.accuse("doubled", m, where.String())
		}
		return false
	}
	c.unique[q].Add(1)
	if c.promised(q) && a.acked.has(m.seq) {
		c.pending.Add(-1)
	}
	lane := 0
	if !c.oneOrder {
		lane = int(q)
	}
	if m.seq < k.high[lane] {
		c.reorder.Add(1)
		c.accuse("reordered", m, fmt.Sprintf("after message %d, %s", k.high[lane]-1, where))
	} else {
		k.high[lane] = m.seq + 1
	}
	return true
}

// accuse keeps the first offenders.
func (c *checker) accuse(fault string, m message, detail string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.offenders) >= maxOffenders {
		return
	}
	c.offenders = append(c.offenders, Offender{c.name, fault, m.device, m.seq, c.ledger.mix.QoS(m.device, m.seq), detail})
}

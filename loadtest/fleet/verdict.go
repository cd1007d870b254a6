package fleet

import "fmt"

// Verdict is what the ledger says when a run is over.
type Verdict struct {
	Reconciled bool     `json:"reconciled"`
	Faults     []string `json:"faults"` // one sentence each, empty when reconciled

	Sent         ByQoS `json:"sent"`
	Acknowledged ByQoS `json:"acknowledged"`
	Refused      ByQoS `json:"refused"`
	Unsettled    int64 `json:"unsettled"`

	Checks    []Check    `json:"checks"`
	Offenders []Offender `json:"offenders,omitempty"`
}

// ByQoS is a count for each QoS.
type ByQoS [3]int64

// Total is the sum over all QoS.
func (b ByQoS) Total() int64 { return b[0] + b[1] + b[2] }

// Check is what one checker found.
type Check struct {
	Name       string `json:"name"`
	Arrived    int64  `json:"arrived"` // doubles too
	Unique     ByQoS  `json:"unique"`
	Missing    ByQoS  `json:"missing"`     // acknowledged and promised, never seen
	Doubled    ByQoS  `json:"doubled"`     // by the QoS of publishing
	TakenTwice int64  `json:"taken_twice"` // QoS 2 messages that stand in the broker's log twice; needs Config.IDHeader
	Reordered  int64  `json:"reordered"`
	Invented   int64  `json:"invented"` // content changed, or never sent
	Foreign    int64  `json:"foreign"`  // messages of others on the same topics
}

// verdict reads the whole ledger. The run must be over.
func (l *ledger) verdict() Verdict {
	v := Verdict{Unsettled: l.Unsettled(), Faults: []string{}}
	for q := range 3 {
		v.Sent[q], v.Acknowledged[q], v.Refused[q] = l.sent[q].Load(), l.acked[q].Load(), l.refused[q].Load()
	}
	fault := func(n int64, format string, args ...any) {
		if n > 0 {
			v.Faults = append(v.Faults, fmt.Sprintf("%d %s", n, fmt.Sprintf(format, args...)))
		}
	}
	fault(v.Unsettled, "messages were sent and never acknowledged")
	for _, c := range l.checkers {
		k := c.check()
		v.Checks = append(v.Checks, k)
		v.Offenders = append(v.Offenders, c.offenders...)
		fault(k.Missing.Total(), "acknowledged messages are missing: %s", c.name)
		var twice int64
		for q := range uint8(3) {
			if c.exact(q) {
				twice += k.Doubled[q]
			}
		}
		fault(twice, "messages came twice that may come once: %s", c.name)
		fault(k.TakenTwice, "messages of QoS 2 were taken twice by the broker: %s", c.name)
		fault(k.Reordered, "messages came out of order: %s", c.name)
		fault(k.Invented, "messages came that were never sent like that: %s", c.name)
	}
	v.Reconciled = len(v.Faults) == 0
	return v
}

// check sums up what c saw and accuses what is missing.
func (c *checker) check() Check {
	k := Check{
		Name: c.name, Arrived: c.arrived.Load(), Reordered: c.reorder.Load(),
		TakenTwice: c.twice.Load(), Invented: c.corrupt.Load() + c.unsent.Load(), Foreign: c.foreign.Load(),
	}
	for q := range 3 {
		k.Unique[q], k.Doubled[q] = c.unique[q].Load(), c.doubled[q].Load()
	}
	for d := range c.ledger.accounts {
		a := &c.ledger.accounts[d]
		a.mu.Lock()
		for seq := range a.sent {
			q := c.ledger.mix.QoS(d, seq)
			if c.promised(q) && a.acked.has(seq) && !a.marks[c.index].seen.has(seq) {
				k.Missing[q]++
				c.accuse("missing", message{device: d, seq: seq}, "")
			}
		}
		a.mu.Unlock()
	}
	return k
}

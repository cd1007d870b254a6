package mapping

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// Action is what becomes of a record.
type Action uint8

// The actions.
const (
	Send   Action = iota
	Leave         // it is not sent
	Refuse        // it is a dead letter
)

// Decision is what becomes of a record, and where it goes.
type Decision struct {
	Action Action
	Reason Reason // of Leave and Refuse
	Err    error  // of a fault
	Hint   string // what can be done about it

	Topic    string // Kafka topic; not set for a mapping that is plain
	Overflow string // takes the record when the route has all the topics it may have
	Constant bool   // Topic does not count as one that a template made

	Key       string // decides the partition, unless that is given
	NoKey     bool   // the Kafka record gets no key
	Partition int64  // taken modulo the number of partitions; negative: by Key

	key   keyKind
	value []byte // of a value template
}

// Place is Decide with the Kafka topic of a plain mapping too, and counts nothing.
func (m *Mapper) Place(s *Scratch, rec *spool.Record) Decision {
	d := m.Decide(s, rec, true)
	if m.plain {
		d.Topic, _, _ = m.topic.render(s)
		d.Overflow, d.Constant = m.topic.over, m.topic.constant()
	}
	return d
}

// Decide says what becomes of a record. again is true when it was asked for the record before: then nothing is counted.
func (m *Mapper) Decide(s *Scratch, rec *spool.Record, again bool) (d Decision) {
	s.begin(rec)
	d.Partition = -1
	if m.plain {
		m.key.decide(&d, rec)
		return d
	}
	s.faults = 0
	fault := m.decide(s, rec, &d)
	if fault != nil && (d.Action == Send || d.Reason == None) {
		d.Reason, d.Err, d.Hint = fault.Reason, fault.Err, fault.Reason.hint()
	}
	if f, ok := s.jsonErr.(*Fault); ok { // may be that the policy takes it for an object without fields
		s.faults |= 1 << f.Reason
	}
	if !again {
		for r := range m.counts.faults {
			if s.faults&(1<<r) != 0 {
				m.counts.faults[r].Add(1)
			}
		}
		if d.Action == Leave {
			m.counts.leftOut[d.Reason].Add(1)
		}
	}
	return d
}

// decide returns the fault that ended it, or that the policy let pass.
func (m *Mapper) decide(s *Scratch, rec *spool.Record, d *Decision) (last *Fault) {
	// stops notes a fault, and reports whether the policy ends the record's way.
	stops := func(err error) bool {
		if err == nil {
			return false
		}
		fault, ok := errors.AsType[*Fault](err)
		if !ok {
			panic(fmt.Sprintf("BUG: mapping: %v is no fault", err))
		}
		last = fault
		s.faults |= 1 << fault.Reason
		switch m.policy(fault.Reason) {
		case DeadLetter:
			d.Action = Refuse
		case Skip:
			d.Action = Leave
		default:
			return false
		}
		return true
	}
	if len(rec.Payload) == 0 && m.cfg.Value.EmptyPayload == Drop {
		d.Action, d.Reason = Leave, NoPayload
		return nil
	}
	if m.condition != nil {
		holds, err := m.condition.holds(s)
		if stops(err) {
			return last
		}
		if err == nil && !holds {
			d.Action, d.Reason = Leave, FilteredOut
			return last
		}
	}
	if stops(m.key.render(d, s)) {
		return last
	}
	if m.sample != 0 && !m.chosen(d, rec) {
		d.Action, d.Reason = Leave, SampledOut
		return last
	}
	topic := m.topic
	for i := range m.choices {
		holds, err := m.choices[i].when.holds(s)
		if stops(err) {
			return last
		}
		if holds {
			topic = m.choices[i].topic
			break
		}
	}
	name, missing, err := topic.render(s)
	if stops(err) || stops(missed(missing)) {
		return last
	}
	d.Topic, d.Overflow, d.Constant = name, topic.over, topic.constant()
	if m.partition != nil && stops(m.place(d, s)) {
		return last
	}
	if m.value != nil && len(rec.Payload) > 0 || m.value != nil && m.cfg.Value.EmptyPayload == EmptyValue {
		value, missing, err := m.value.appendTo(nil, s)
		if stops(err) || stops(missed(missing)) {
			return last
		}
		d.value = value
	}
	return last
}

func missed(f *field) error {
	if f == nil {
		return nil
	}
	return &Fault{MissingField, fmt.Errorf("%v is missing", f)}
}

func (m *Mapper) policy(r Reason) string {
	switch r {
	case InvalidJSON, JSONTooLarge:
		return m.cfg.OnFault.InvalidJSON
	case ConditionError:
		return m.cfg.OnFault.ConditionError
	case MissingField:
		return m.cfg.OnFault.MissingField
	}
	return m.cfg.OnFault.MissingField // a partition that is no number is as good as none
}

// place reads the partition.
func (m *Mapper) place(d *Decision, s *Scratch) error {
	text, missing, err := m.partition.appendTo(s.buf[:0], s)
	s.buf = text
	if err != nil {
		return err
	}
	if missing != nil {
		return missed(missing)
	}
	n, err := strconv.ParseUint(string(text), 10, 63)
	if err != nil {
		return &Fault{BadPartition, fmt.Errorf("partition: %q is not a whole number", text[:min(len(text), 64)])}
	}
	d.Partition = int64(n)
	return nil
}

// PartitionOf is the Kafka partition of a record, of n.
func (d *Decision) PartitionOf(n int32) int32 {
	if d.Partition >= 0 {
		return int32(d.Partition % int64(n))
	}
	return kafka.PartitionFor(d.Key, n)
}

// chosen reports whether the record is in the sample.
func (m *Mapper) chosen(d *Decision, rec *spool.Record) bool {
	h := fnv.New64a()
	if m.cfg.Sample.By == ByKey {
		_, _ = h.Write([]byte(d.Key))
	} else {
		_, _ = h.Write([]byte(m.ID(rec)))
	}
	// FNV changes its high bits little for the last bytes: mix them (the finalizer of MurmurHash3).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x < m.sample
}

package mapping

import "sync/atomic"

// Reason says why a record is not sent, or what of it could not be used.
type Reason uint8

// The reasons. The first three are what the operator asked for, the others are faults of a record.
const (
	None             Reason = iota
	FilteredOut             // the route's condition does not hold
	SampledOut              // sample did not choose it
	NoPayload               // empty_payload: drop
	MissingField            // a field that is needed
	InvalidJSON             // a JSON field is needed, and the payload is none
	JSONTooLarge            // or too large to be looked into
	ConditionError          // a condition ended in an error
	BadPartition            // the partition's template did not make a whole number
	MissingHeader           // a header was left out; the record is sent
	BadTimestamp            // the time of reception was used; the record is sent
	BadTopic                // of a downlink: the MQTT topic would be illegal, or another than the template means
	BadQoS                  // likewise: not 0, 1 or 2
	BadRetain               // neither true nor false
	BadExpiry               // neither seconds nor a duration
	BadResponseTopic        // as BadTopic
	TooLarge                // value or properties
	CameDown                // of a route: the record came by a downlink
	numberOfReasons
)

var reasons = [numberOfReasons]string{
	"", "condition", "sample", "empty_payload", "missing_field", "invalid_json", "json_too_large", "condition_error", "bad_partition",
	"missing_header", "bad_timestamp", "bad_topic", "bad_qos", "bad_retain", "bad_expiry", "bad_response_topic", "too_large", "downlink",
}

// String is the reason as metrics and dead letters have it.
func (r Reason) String() string { return reasons[r] }

// LeftOut and Faults are the reasons that the counts have.
var (
	LeftOut = []Reason{FilteredOut, SampledOut, NoPayload, CameDown, MissingField, InvalidJSON, JSONTooLarge, ConditionError, BadPartition}
	Faults  = []Reason{MissingField, InvalidJSON, JSONTooLarge, ConditionError, BadPartition, MissingHeader, BadTimestamp}

	// DownFaults are why a Kafka record cannot be published.
	DownFaults = []Reason{MissingField, InvalidJSON, JSONTooLarge, BadTopic, BadQoS, BadRetain, BadExpiry, BadResponseTopic, TooLarge}
)

// Fault is what is wrong with a record.
type Fault struct {
	Reason Reason
	Err    error
}

func (f *Fault) Error() string { return f.Err.Error() }
func (f *Fault) Unwrap() error { return f.Err }

// hint is what somebody can do about a fault.
func (r Reason) hint() string {
	switch r {
	case MissingField:
		return "give the field a |text in the template, or set on_fault.missing_field of the route"
	case InvalidJSON, JSONTooLarge:
		return "set on_fault.invalid_json or on_fault.max_json of the route, or let its filters leave such topics out"
	case ConditionError:
		return "ask with has(json.field) before a field is used, or set on_fault.condition_error of the route"
	case BadPartition:
		return "the template of partition has to make a whole number"
	}
	return ""
}

// counts of a mapping, by reason.
type counts struct {
	leftOut, faults [numberOfReasons]atomic.Uint64
}

// LeftOut is how many records were not sent for a reason, dead letters not among them.
func (m *Mapper) LeftOut(r Reason) uint64 { return m.counts.leftOut[r].Load() }

// Faults is how often a record had a fault, whatever the policy made of it.
func (m *Mapper) Faults(r Reason) uint64 { return m.counts.faults[r].Load() }

// LeaveOut counts a record that is not sent although it is no dead letter.
func (m *Mapper) LeaveOut(r Reason) { m.counts.leftOut[r].Add(1) }

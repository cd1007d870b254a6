package spool

// Offset is a record's position in its partition: dense, rising, never reused.
type Offset uint64

// Record is what the log stores: one PUBLISH and what the gateway knows about it.
//
// A Record that came out of the log is shared by all its readers: nobody may change it or what it points to.
// A Record handed to Append belongs to the spool from then on, payload and properties included.
type Record struct {
	Topic    string // MQTT topic name, alias resolved; 1..65535 bytes of UTF-8 without wildcards
	ClientID string // publisher's client ID; the partition key unless the stream says otherwise
	UserName string // publisher's user name, empty when it gave none
	Payload  []byte // may be empty

	// Properties are the PUBLISH properties that travel with the message, nil when there are none.
	Properties *Properties

	ReceivedAt int64 // when the gateway had read the PUBLISH, Unix time in nanoseconds
	ExpiresAt  int64 // when the record stops being delivered, Unix time in nanoseconds; 0 is never

	// Offset and Partition are set by the spool. Offset is valid once the record is durable.
	Offset    Offset
	Partition uint16

	QoS    uint8 // QoS of the PUBLISH, 0..2
	Retain bool  // RETAIN flag of the PUBLISH

	// StreamTTL is set by the spool when ExpiresAt is the stream's time to live and the publisher gave none. A receiver
	// must not be told of it: the Message Expiry Interval of a delivery is that of the PUBLISH (MQTT 5, 3.3.2-6).
	StreamTTL bool
}

// Properties are the PUBLISH properties of MQTT 5 that a receiver must get unaltered (MQTT 5, 3.3.2.3). Message Expiry
// Interval is Record.ExpiresAt; topic alias and subscription identifiers belong to a connection and are not stored.
type Properties struct {
	// PayloadFormat is the Payload Format Indicator: 0 unspecified bytes, 1 UTF-8; meaningful when HasPayloadFormat.
	PayloadFormat    uint8
	HasPayloadFormat bool

	ContentType     string
	ResponseTopic   string
	CorrelationData []byte // nil when absent; empty but not nil when present with no bytes

	// User holds the user properties in the order of the packet, names may repeat (MQTT 5, 3.3.2.3.7).
	User []UserProperty
}

// UserProperty is one name-value pair of a PUBLISH.
type UserProperty struct{ Name, Value string }

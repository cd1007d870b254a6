package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Message is one record on its way: what a route made out of a record of the spool.
type Message struct {
	// Offset is the record's offset in its spool partition. Messages of a flight ascend in it.
	Offset uint64

	// Expires is when the record's time is over, in nanoseconds since 1970; 0 is never.
	Expires int64

	rec      kgo.Record // the producer's while it is in the air
	received time.Time
	size     int
	acked    bool
	attempts int
}

// messageOverhead is what a record costs beside its bytes: the structures here and in the producer, and its framing.
const messageOverhead = 320

// NewMessage makes a message. Key nil is no key. The byte slices are used as they are and must not change any more; headers
// is room for the headers to come.
func NewMessage(offset uint64, key, value []byte, received time.Time, headers int) Message {
	return Message{
		Offset: offset,
		rec: kgo.Record{
			Key: key, Value: value, Timestamp: received,
			Headers: make([]kgo.RecordHeader, 0, headers),
		},
		received: received,
		size:     messageOverhead + len(key) + len(value),
	}
}

// AddHeader appends a header. Keys may repeat; the order is kept.
func (m *Message) AddHeader(key string, value []byte) {
	m.rec.Headers = append(m.rec.Headers, kgo.RecordHeader{Key: key, Value: value})
	m.size += len(key) + len(value) + 40
}

// SetTimestamp gives the message another time than that of reception.
func (m *Message) SetTimestamp(t time.Time) { m.rec.Timestamp = t }

// Key is the message's key, nil when it has none.
func (m *Message) Key() []byte { return m.rec.Key }

// Value is the message's value, nil for a tombstone.
func (m *Message) Value() []byte { return m.rec.Value }

// Timestamp is the time that the Kafka record has.
func (m *Message) Timestamp() time.Time { return m.rec.Timestamp }

// Headers calls fn with each header, in order.
func (m *Message) Headers(fn func(key string, value []byte)) {
	for _, h := range m.rec.Headers {
		fn(h.Key, h.Value)
	}
}

// Size is what the message takes in memory, about.
func (m *Message) Size() int { return m.size }

// Attempts is how many times the message was sent.
func (m *Message) Attempts() int { return m.attempts }

// Received is when the gateway received the record.
func (m *Message) Received() time.Time { return m.received }

// ValueSize is the payload's.
func (m *Message) ValueSize() int { return len(m.rec.Value) }

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

// What a record and each of its headers cost beside their bytes.
const (
	MessageOverhead = 320 // the structures here and in the producer, and its framing
	headerMemory    = 40
	recordFraming   = 40 // 33: lengths, attributes, time and offset in their longest form
	headerFraming   = 10 // two lengths of at most five bytes
)

// NewMessage makes a message in m. Key nil is no key. The byte slices are used as they are and must not change any more;
// headers is room for the headers to come.
func (a *Arena) NewMessage(m *Message, offset uint64, key, value []byte, received time.Time, headers int) {
	*m = Message{Offset: offset, received: received, size: MessageOverhead + len(key) + len(value)}
	m.rec.Key, m.rec.Value, m.rec.Timestamp, m.rec.Headers = key, value, received, a.headersFor(headers)
}

// AddHeader appends a header. Keys may repeat; the order is kept.
func (m *Message) AddHeader(key string, value []byte) {
	m.rec.Headers = append(m.rec.Headers, kgo.RecordHeader{Key: key, Value: value})
	m.size += len(key) + len(value) + headerMemory
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

// WireSize is what the message takes in a request before it is compressed, at most, for headers shorter than 2 MiB.
func (m *Message) WireSize() int {
	return m.size - MessageOverhead + recordFraming - (headerMemory-headerFraming)*len(m.rec.Headers)
}

// Attempts is how many times the message was sent.
func (m *Message) Attempts() int { return m.attempts }

// Received is when the gateway received the record.
func (m *Message) Received() time.Time { return m.received }

// ValueSize is the payload's.
func (m *Message) ValueSize() int { return len(m.rec.Value) }

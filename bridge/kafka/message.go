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

// MessageOverhead is what a record costs beside its bytes: the structures here and in the producer, and its framing.
const MessageOverhead = 320

// Arena is memory for the small pieces of messages that are made one after the other: a few messages share an allocation, which
// is kept until the last of them is gone. It belongs to one goroutine at a time. The zero Arena is ready.
type Arena struct {
	headers []kgo.RecordHeader
	bytes   []byte
}

// What is allocated at once is the work of about a dozen messages: a message that waits keeps no more than that.
const (
	arenaHeaders = 64
	arenaBytes   = 1 << 10
)

// Bytes is room for n bytes: an empty slice of that capacity.
func (a *Arena) Bytes(n int) []byte {
	if n > len(a.bytes) {
		if n > arenaBytes/4 {
			return make([]byte, 0, n)
		}
		a.bytes = make([]byte, arenaBytes)
	}
	b := a.bytes[:0:n]
	a.bytes = a.bytes[n:]
	return b
}

func (a *Arena) headersFor(n int) []kgo.RecordHeader {
	if n > len(a.headers) {
		if n > arenaHeaders/4 {
			return make([]kgo.RecordHeader, 0, n)
		}
		a.headers = make([]kgo.RecordHeader, arenaHeaders)
	}
	h := a.headers[:0:n]
	a.headers = a.headers[n:]
	return h
}

// NewMessage makes a message in m. Key nil is no key. The byte slices are used as they are and must not change any more;
// headers is room for the headers to come.
func (a *Arena) NewMessage(m *Message, offset uint64, key, value []byte, received time.Time, headers int) {
	*m = Message{Offset: offset, received: received, size: MessageOverhead + len(key) + len(value)}
	m.rec.Key, m.rec.Value, m.rec.Timestamp, m.rec.Headers = key, value, received, a.headersFor(headers)
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

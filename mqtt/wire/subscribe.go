package wire

import (
	"encoding/binary"

	"github.com/mochi-mqtt/server/v2/packets"
)

// Subscription options (MQTT 5, 3.8.3.1).
const (
	optionQoS            = 3 << 0
	optionNoLocal        = 1 << 2
	optionRetainAsPub    = 1 << 3
	optionRetainHandling = 3 << 4
	optionReserved       = 3 << 6
)

// countStrings counts the strings, each with size bytes behind it, that fill b, up to one more than limit. What is malformed
// ends it: who decodes finds that too.
func countStrings(b []byte, size, limit int) (n int) {
	for len(b) >= 2 && n <= limit {
		n++
		b = b[min(len(b), 2+int(binary.BigEndian.Uint16(b))+size):]
	}
	return n
}

func tooManyFilters() *Error {
	return &Error{Code: packets.ErrQuotaExceeded, Detail: "too many topic filters in a packet"}
}

func decodeSubscribe(b []byte, version byte, limit int) (*Subscribe, *Error) {
	id, off, err := readPacketID(b, 0)
	if err != nil {
		return nil, err
	}
	s := &Subscribe{PacketID: id}
	if version == Version5 {
		q, _, end, err := otherProperties(b, off, packets.Subscribe)
		if err != nil {
			return nil, err
		}
		off = end
		if len(q.SubscriptionIdentifier) > 0 {
			s.SubscriptionID = uint32(q.SubscriptionIdentifier[0])
		}
		s.User = userProperties(&q)
	}
	n := countStrings(b[off:], 1, limit)
	if n > limit {
		return nil, tooManyFilters()
	}
	s.Filters = make([]Filter, 0, n)
	for off < len(b) {
		var f Filter
		if off, err = f.decode(b, off, version); err != nil {
			return nil, err
		}
		s.Filters = append(s.Filters, f)
	}
	if len(s.Filters) == 0 { // MQTT 5, 3.8.3-2
		return nil, protocolError("subscribe without a filter")
	}
	return s, nil
}

func (f *Filter) decode(b []byte, off int, version byte) (next int, err *Error) {
	name, off, err := readString(b, off) // MQTT 5, 3.8.3-1
	if err != nil {
		return 0, err
	}
	f.Filter = text(name)
	if f.Share, f.Topic, err = parseFilter(f.Filter); err != nil {
		return 0, err
	}
	if off == len(b) {
		return 0, malformed("filter without options")
	}
	o := b[off]
	f.QoS = o & optionQoS
	switch {
	case version == Version311:
		if o > 2 { // MQTT 3.1.1, 3.8.3-4
			return 0, malformed("reserved bits or QoS 3 in a subscription")
		}
		return off + 1, nil
	case o&optionReserved != 0: // MQTT 5, 3.8.3-5
		return 0, malformed("reserved bits in subscription options")
	case f.QoS == 3: // MQTT 5, 3.8.3.1
		return 0, protocolError("subscription with QoS 3")
	}
	f.NoLocal = o&optionNoLocal != 0
	f.RetainAsPublished = o&optionRetainAsPub != 0
	f.RetainHandling = o & optionRetainHandling >> 4
	if f.RetainHandling == 3 { // MQTT 5, 3.8.3.1
		return 0, protocolError("retain handling is 3")
	}
	if f.NoLocal && f.Share != "" { // MQTT 5, 3.8.3-4
		return 0, protocolError("shared subscription with no local")
	}
	return off + 1, nil
}

func decodeUnsubscribe(b []byte, version byte, limit int) (*Unsubscribe, *Error) {
	id, off, err := readPacketID(b, 0)
	if err != nil {
		return nil, err
	}
	u := &Unsubscribe{PacketID: id}
	if version == Version5 {
		q, _, end, err := otherProperties(b, off, packets.Unsubscribe)
		if err != nil {
			return nil, err
		}
		off = end
		u.User = userProperties(&q)
	}
	n := countStrings(b[off:], 0, limit)
	if n > limit {
		return nil, tooManyFilters()
	}
	u.Filters = make([]string, 0, n)
	for off < len(b) {
		var name []byte
		if name, off, err = readString(b, off); err != nil { // MQTT 5, 3.10.3-1
			return nil, err
		}
		if _, _, err := parseFilter(text(name)); err != nil {
			return nil, err
		}
		u.Filters = append(u.Filters, text(name))
	}
	if len(u.Filters) == 0 { // MQTT 5, 3.10.3-2
		return nil, protocolError("unsubscribe without a filter")
	}
	return u, nil
}

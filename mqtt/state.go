package mqtt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/forebay-gateway/forebay/spool"
)

// The spaces of durable state. Keys are built of client IDs and filters, which hold no U+0000.
//
//	space              key                       value
//	mqtt/session       client ID                 expiry, times
//	mqtt/subscription  client ID NUL filter      options, first offsets
//	mqtt/position      client ID                 next offset on each lane, QoS 1 deliveries in flight, last identifier
//	mqtt/outbound      client ID NUL identifier  QoS 2 delivery in flight
//	mqtt/inbound       client ID NUL identifier of the session, packet identifier
//	                                             nothing: the record is in the log, PUBREL has not come
//	mqtt/will          client ID                 will message, delay
//	mqtt/retained      topic                     message
//	mqtt/share         $share/{name}/{filter}    next offset on each lane, deliveries to hand out again
const (
	spaceSession      = "mqtt/session"
	spaceSubscription = "mqtt/subscription"
	spacePosition     = "mqtt/position"
	spaceOutbound     = "mqtt/outbound"
	spaceInbound      = "mqtt/inbound"
	spaceWill         = "mqtt/will"
	spaceRetained     = "mqtt/retained"
	spaceShare        = "mqtt/share"
)

// stateVersion is the first byte of every value. Another one is unsupported, not damage.
const stateVersion = 1

var errShortState = errors.New("value is cut off")

func pidKey(clientID string, pid uint16) string {
	return clientID + "\x00" + string([]byte{byte(pid >> 8), byte(pid)})
}

func splitPidKey(key string) (clientID string, pid uint16, err error) {
	i := len(key) - 3
	if i < 0 || key[i] != 0 {
		return "", 0, fmt.Errorf("key %q is no client ID and packet identifier", key)
	}
	return key[:i], uint16(key[i+1])<<8 | uint16(key[i+2]), nil
}

// inboundKey names the session too: a publish of a session that has ended may be written after the session's state was
// deleted, and must not become an identifier of the next session of its client.
func inboundKey(clientID string, epoch uint64, pid uint16) string {
	b := append([]byte(clientID), 0)
	b = binary.BigEndian.AppendUint64(b, epoch)
	return string(binary.BigEndian.AppendUint16(b, pid))
}

func splitInboundKey(key string) (clientID string, epoch uint64, pid uint16, err error) {
	i := len(key) - 11
	if i < 0 || key[i] != 0 {
		return "", 0, 0, fmt.Errorf("key %q is no client ID, session and packet identifier", key)
	}
	tail := []byte(key[i+1:])
	return key[:i], binary.BigEndian.Uint64(tail), binary.BigEndian.Uint16(tail[8:]), nil
}

func filterKey(clientID, filter string) string { return clientID + "\x00" + filter }

func splitFilterKey(key string) (clientID, filter string, err error) {
	clientID, filter, ok := strings.Cut(key, "\x00")
	if !ok {
		return "", "", fmt.Errorf("key %q is no client ID and filter", key)
	}
	return clientID, filter, nil
}

// decoder reads a value; the first fault stays in err.
type decoder struct {
	b   []byte
	err error
}

// openState checks the version of a value.
func openState(value []byte) *decoder {
	d := &decoder{b: value}
	if v := d.byte(); d.err == nil && v != stateVersion {
		d.err = fmt.Errorf("value of version %d: %w", v, spool.ErrUnsupported)
	}
	return d
}

func (d *decoder) byte() byte {
	if d.err != nil || len(d.b) == 0 {
		d.fail()
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if d.err != nil || n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if d.err != nil || n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// bytes returns a copy: values passed to Load are only lent.
func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if d.err != nil || n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	v := append([]byte{}, d.b[:n]...)
	d.b = d.b[n:]
	return v
}

func (d *decoder) string() string { return string(d.bytes()) }

func (d *decoder) fail() {
	if d.err == nil {
		d.err = errShortState
	}
	d.b = nil
}

func appendBytes(b []byte, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

func appendString(b []byte, v string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// Flags of a stored message.
const (
	msgRetain = 1 << iota
	msgPayloadFormat
	msgCorrelation
	msgProperties
)

// appendMessage encodes what a will or a retained message needs of a record.
//
//	flags 1 | QoS 1 | received at varint | expires at varint | topic | client ID | user name | payload |
//	[ payload format 1 | content type | response topic | correlation data | n × (name | value) ]
//
// Strings and bytes are preceded by their length as uvarint.
func appendMessage(b []byte, r *spool.Record) []byte {
	var flags byte
	if r.Retain {
		flags |= msgRetain
	}
	p := r.Properties
	if p != nil {
		flags |= msgProperties
		if p.HasPayloadFormat {
			flags |= msgPayloadFormat
		}
		if p.CorrelationData != nil {
			flags |= msgCorrelation
		}
	}
	b = append(b, flags, r.QoS)
	b = binary.AppendVarint(b, r.ReceivedAt)
	b = binary.AppendVarint(b, r.ExpiresAt)
	b = appendString(b, r.Topic)
	b = appendString(b, r.ClientID)
	b = appendString(b, r.UserName)
	b = appendBytes(b, r.Payload)
	if p == nil {
		return b
	}
	b = append(b, p.PayloadFormat)
	b = appendString(b, p.ContentType)
	b = appendString(b, p.ResponseTopic)
	b = appendBytes(b, p.CorrelationData)
	b = binary.AppendUvarint(b, uint64(len(p.User)))
	for _, u := range p.User {
		b = appendString(b, u.Name)
		b = appendString(b, u.Value)
	}
	return b
}

func (d *decoder) message() *spool.Record {
	flags := d.byte()
	r := &spool.Record{QoS: d.byte(), Retain: flags&msgRetain != 0}
	r.ReceivedAt = d.varint()
	r.ExpiresAt = d.varint()
	r.Topic = d.string()
	r.ClientID = d.string()
	r.UserName = d.string()
	r.Payload = d.bytes()
	if flags&msgProperties == 0 {
		return r
	}
	p := &spool.Properties{HasPayloadFormat: flags&msgPayloadFormat != 0}
	p.PayloadFormat = d.byte()
	p.ContentType = d.string()
	p.ResponseTopic = d.string()
	p.CorrelationData = d.bytes()
	if flags&msgCorrelation == 0 {
		p.CorrelationData = nil
	}
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		p.User = append(p.User, spool.UserProperty{Name: d.string(), Value: d.string()})
	}
	r.Properties = p
	return r
}

// positions is an offset on each lane.
type positions []spool.Offset

// lanes are all lanes of the log. The list does not change while the server runs.
type lanes struct {
	list  []*lane
	first map[string]int // stream → its first lane
	count map[string]int // stream → its lanes
}

func (ls *lanes) find(stream string, partition int) (int, bool) {
	i, ok := ls.first[stream]
	if !ok || partition < 0 || partition >= ls.count[stream] {
		return 0, false
	}
	return i + partition, true
}

// appendPositions encodes p by stream, so that it can be read after the configured streams have changed.
//
//	streams uvarint × ( name | partitions uvarint × next offset uvarint )
func (ls *lanes) appendPositions(b []byte, p positions) []byte {
	b = binary.AppendUvarint(b, uint64(len(ls.first)))
	for i := 0; i < len(ls.list); {
		l := ls.list[i]
		n := ls.count[l.stream]
		b = appendString(b, l.stream)
		b = binary.AppendUvarint(b, uint64(n))
		for range n {
			b = binary.AppendUvarint(b, uint64(p[i]))
			i++
		}
	}
	return b
}

// positions decodes into a copy of base, which holds the position for lanes that the value does not know.
func (ls *lanes) positions(d *decoder, base positions) positions {
	p := append(positions{}, base...)
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		stream := d.string()
		for i := range d.uvarint() {
			if d.err != nil {
				break
			}
			off := spool.Offset(d.uvarint())
			if l, ok := ls.find(stream, int(i)); ok {
				p[l] = off
			}
		}
	}
	return p
}

// appendPlace encodes where a delivery's record is: its lane and offset, or the topic of a retained message.
func (ls *lanes) appendPlace(b []byte, fl *flight) []byte {
	if fl.lane == noLane {
		b = append(b, 1)
		return appendString(b, fl.rec.Topic)
	}
	l := ls.list[fl.lane]
	b = append(b, 0)
	b = appendString(b, l.stream)
	b = binary.AppendUvarint(b, uint64(l.partition))
	return binary.AppendUvarint(b, uint64(fl.off))
}

// place decodes what appendPlace encoded. A lane that is no more gives ok == false.
func (ls *lanes) place(d *decoder) (lane int32, off spool.Offset, topic string, ok bool) {
	if d.byte() == 1 {
		return noLane, 0, d.string(), d.err == nil
	}
	stream := d.string()
	partition := d.uvarint()
	off = spool.Offset(d.uvarint())
	l, ok := ls.find(stream, int(partition))
	return int32(l), off, "", ok && d.err == nil
}

package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"unsafe"
)

// A stored record. It stands for itself, so that bodies can be concatenated and their records moved between batches.
//
//	uvarint  length of all that follows
//	uvarint  skip: offsets before this one that no record of the body has (a rewrite left expired records out)
//	u8       attributes, see below
//	i64      ReceivedAt
//	[i64     ExpiresAt, with attrExpires]
//	string   topic
//	string   client ID
//	[string  user name, with attrUser]
//	[u8      property flags, then what they name, with attrProperties]
//	...      payload, to the end
//
// A string is a uvarint length and its bytes. Integers of fixed size are little-endian. Properties, in this order: u8 payload format, string
// content type, string response topic, string correlation data, uvarint number of user properties and two strings each.
const (
	attrQoS        = 0x03
	attrRetain     = 0x04
	attrExpires    = 0x08
	attrUser       = 0x10
	attrProperties = 0x20
	attrStreamTTL  = 0x40
	attrKnown      = attrQoS | attrRetain | attrExpires | attrUser | attrProperties | attrStreamTTL

	propFormat      = 0x01
	propContentType = 0x02
	propResponse    = 0x04
	propCorrelation = 0x08
	propUser        = 0x10
	propKnown       = propFormat | propContentType | propResponse | propCorrelation | propUser
)

func uvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

func stringLen(n int) int { return uvarintLen(uint64(n)) + n }

// encodedSize is the number of bytes after the length.
func encodedSize(r *Record, skip uint64) int {
	n := uvarintLen(skip) + 1 + 8 + stringLen(len(r.Topic)) + stringLen(len(r.ClientID)) + len(r.Payload)
	if r.ExpiresAt != 0 {
		n += 8
	}
	if r.UserName != "" {
		n += stringLen(len(r.UserName))
	}
	if p := r.Properties; p != nil {
		n++
		if p.HasPayloadFormat {
			n++
		}
		if p.ContentType != "" {
			n += stringLen(len(p.ContentType))
		}
		if p.ResponseTopic != "" {
			n += stringLen(len(p.ResponseTopic))
		}
		if p.CorrelationData != nil {
			n += stringLen(len(p.CorrelationData))
		}
		if len(p.User) > 0 {
			n += uvarintLen(uint64(len(p.User)))
			for i := range p.User {
				n += stringLen(len(p.User[i].Name)) + stringLen(len(p.User[i].Value))
			}
		}
	}
	return n
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendRecord appends r's stored form. skip is the number of offsets that were left out right before it.
func appendRecord(b []byte, r *Record, skip uint64) []byte {
	b = binary.AppendUvarint(b, uint64(encodedSize(r, skip)))
	b = binary.AppendUvarint(b, skip)
	attrs := r.QoS & attrQoS
	if r.Retain {
		attrs |= attrRetain
	}
	if r.ExpiresAt != 0 {
		attrs |= attrExpires
	}
	if r.UserName != "" {
		attrs |= attrUser
	}
	if r.Properties != nil {
		attrs |= attrProperties
	}
	if r.StreamTTL {
		attrs |= attrStreamTTL
	}
	b = append(b, attrs)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.ReceivedAt))
	if r.ExpiresAt != 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(r.ExpiresAt))
	}
	b = appendString(b, r.Topic)
	b = appendString(b, r.ClientID)
	if r.UserName != "" {
		b = appendString(b, r.UserName)
	}
	if r.Properties != nil {
		b = appendProperties(b, r.Properties)
	}
	return append(b, r.Payload...)
}

func appendProperties(b []byte, p *Properties) []byte {
	at := len(b)
	b = append(b, 0)
	var flags byte
	if p.HasPayloadFormat {
		flags |= propFormat
		b = append(b, p.PayloadFormat)
	}
	if p.ContentType != "" {
		flags |= propContentType
		b = appendString(b, p.ContentType)
	}
	if p.ResponseTopic != "" {
		flags |= propResponse
		b = appendString(b, p.ResponseTopic)
	}
	if p.CorrelationData != nil {
		flags |= propCorrelation
		b = binary.AppendUvarint(b, uint64(len(p.CorrelationData)))
		b = append(b, p.CorrelationData...)
	}
	if len(p.User) > 0 {
		flags |= propUser
		b = binary.AppendUvarint(b, uint64(len(p.User)))
		for i := range p.User {
			b = appendString(b, p.User[i].Name)
			b = appendString(b, p.User[i].Value)
		}
	}
	b[at] = flags
	return b
}

// decoder walks over bytes that nobody changes any more: what it returns points into them. It never reads past them, and
// allocates nothing that the bytes do not pay for.
type decoder struct {
	b   []byte
	at  int
	err error
}

var (
	errShort = errors.New("ends early")
	errEmpty = errors.New("something is marked as present and empty") // we never write it: one record has one encoding
)

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) left() int { return len(d.b) - d.at }

func (d *decoder) uvarint() uint64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Uvarint(d.b[d.at:])
	switch {
	case n == 0:
		d.fail(errShort)
		return 0
	case n < 0:
		d.fail(errors.New("number of more than 64 bits"))
		return 0
	case n != uvarintLen(v):
		d.fail(errors.New("number is not in its shortest form"))
		return 0
	}
	d.at += n
	return v
}

func (d *decoder) u8() byte {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) bytes(n uint64) []byte {
	if d.err != nil {
		return nil
	}
	if n > uint64(d.left()) {
		d.fail(errShort)
		return nil
	}
	b := d.b[d.at : d.at+int(n) : d.at+int(n)]
	d.at += int(n)
	return b
}

// string shares memory with the decoder's bytes: one body backs all strings of its records.
func (d *decoder) string() string {
	b := d.bytes(d.uvarint())
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// present is a string that is not empty.
func (d *decoder) present() string {
	s := d.string()
	if s == "" {
		d.fail(errEmpty)
	}
	return s
}

// decodeRecords appends the records of a body whose first offset is base, and returns the offset after the last. The
// records point into body, which must not change any more.
func decodeRecords(dst []Record, body []byte, partition uint16, base Offset) ([]Record, Offset, error) {
	d := decoder{b: body}
	next := base
	for d.left() > 0 {
		at := d.at
		r, skip := d.record()
		if d.err != nil {
			return dst, next, &CorruptionError{Where: "record body", At: at, Detail: d.err.Error()}
		}
		o := next + Offset(skip)
		if o < next || o == NoOffset {
			return dst, next, &CorruptionError{Where: "record body", At: at, Detail: fmt.Sprintf("skip of %d offsets", skip)}
		}
		r.Offset, r.Partition = o, partition
		next = o + 1
		dst = append(dst, r)
	}
	return dst, next, nil
}

func (d *decoder) attributes() byte {
	attrs := d.u8()
	if attrs&^attrKnown != 0 || attrs&attrQoS == 3 {
		d.fail(fmt.Errorf("attributes %#02x", attrs))
	}
	return attrs
}

func (d *decoder) record() (r Record, skip uint64) {
	inner := decoder{b: d.bytes(d.uvarint())}
	if d.err != nil {
		return r, 0
	}
	skip = inner.uvarint()
	attrs := inner.attributes()
	r.QoS = attrs & attrQoS
	r.Retain = attrs&attrRetain != 0
	r.StreamTTL = attrs&attrStreamTTL != 0
	r.ReceivedAt = int64(inner.u64())
	if attrs&attrExpires != 0 {
		if r.ExpiresAt = int64(inner.u64()); r.ExpiresAt == 0 {
			inner.fail(errEmpty)
		}
	}
	r.Topic = inner.string()
	r.ClientID = inner.string()
	if attrs&attrUser != 0 {
		r.UserName = inner.present()
	}
	if attrs&attrProperties != 0 {
		r.Properties = inner.properties()
	}
	if inner.err == nil && inner.left() > 0 {
		r.Payload = inner.bytes(uint64(inner.left()))
	}
	d.err = inner.err
	return r, skip
}

func (d *decoder) properties() *Properties {
	p := new(Properties)
	flags := d.u8()
	if flags&^propKnown != 0 {
		d.fail(fmt.Errorf("property flags %#02x", flags))
	}
	if flags&propFormat != 0 {
		p.HasPayloadFormat, p.PayloadFormat = true, d.u8()
	}
	if flags&propContentType != 0 {
		p.ContentType = d.present()
	}
	if flags&propResponse != 0 {
		p.ResponseTopic = d.present()
	}
	if flags&propCorrelation != 0 {
		if p.CorrelationData = d.bytes(d.uvarint()); p.CorrelationData == nil {
			p.CorrelationData = []byte{}
		}
	}
	if flags&propUser != 0 {
		n := d.uvarint()
		if n == 0 || n > uint64(d.left())/2 { // a pair takes two bytes at least: a damaged count cannot make us allocate more
			d.fail(fmt.Errorf("%d user properties in %d bytes", n, d.left()))
			return p
		}
		p.User = make([]UserProperty, n)
		for i := range p.User {
			p.User[i] = UserProperty{Name: d.string(), Value: d.string()}
		}
	}
	return p
}

// recordMemory is about what a record holds in memory, for the bounds of queue and tail.
func recordMemory(r *Record) int {
	n := recordOverhead + len(r.Topic) + len(r.ClientID) + len(r.UserName) + cap(r.Payload)
	if p := r.Properties; p != nil {
		n += 112 + len(p.ContentType) + len(p.ResponseTopic) + cap(p.CorrelationData)
		for i := range p.User {
			n += 32 + len(p.User[i].Name) + len(p.User[i].Value)
		}
	}
	return n
}

const recordOverhead = 192 // a Record (136 B), its slack in a growing slice, and the headers of its strings' memory

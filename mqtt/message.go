package mqtt

import (
	"encoding/binary"

	"github.com/forebay-gateway/forebay/spool"
)

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

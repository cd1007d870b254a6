package spool

import "github.com/forebay-gateway/forebay/spool/segment"

// indexBody tells a segment's index which topics and clients a body has.
func indexBody(body []byte, yield func(kind segment.Kind, key []byte)) error {
	d := decoder{b: body}
	for d.left() > 0 {
		at := d.at
		topic, client := d.keys()
		if d.err != nil {
			return &CorruptionError{Where: "record body", At: at, Detail: d.err.Error()}
		}
		yield(segment.KindTopic, topic)
		yield(segment.KindClient, client)
	}
	return nil
}

// keys is record for the index of a segment, which needs topic and client ID of every record and nothing else.
func (d *decoder) keys() (topic, client []byte) {
	inner := decoder{b: d.bytes(d.uvarint())}
	if d.err != nil {
		return nil, nil
	}
	inner.uvarint()
	attrs := inner.attributes()
	inner.u64()
	if attrs&attrExpires != 0 {
		inner.u64()
	}
	topic = inner.bytes(inner.uvarint())
	client = inner.bytes(inner.uvarint())
	d.err = inner.err
	return topic, client
}

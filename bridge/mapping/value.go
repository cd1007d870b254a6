package mapping

import (
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// events are the templates of CloudEvents; nil is the default.
type events struct{ kind, source, subject *template }

// The content types of values that the gateway writes.
const (
	typeJSON  = "application/json"
	typeEvent = "application/cloudevents+json; charset=UTF-8"
)

// traceParent is the header of W3C Trace Context. As a user property it passes through, and CloudEvents have an extension for it.
const traceParent = "traceparent"

// valueOf makes the value of a Kafka record, nil for a tombstone. contentType is set when it is not the device's.
func (m *Mapper) valueOf(s *Scratch, rec *spool.Record, d *Decision, at time.Time, id string) (value []byte, contentType string) {
	if len(rec.Payload) == 0 && m.cfg.Value.EmptyPayload == Tombstone {
		return nil, ""
	}
	switch m.cfg.Value.Format {
	case Envelope:
		return m.envelope(s, rec, at, id), typeJSON
	case CloudEventsStructured:
		return m.event(s, rec, d, at, id), typeEvent
	case FromTemplate:
		if d.value == nil {
			return []byte{}, ""
		}
		return d.value, ""
	}
	if rec.Payload == nil {
		return []byte{}, "" // a null value would be a tombstone
	}
	return rec.Payload, ""
}

// envelope is a JSON object with the payload and what is known about it:
//
//	{"id":"gw/default/0/17","topic":"…","client_id":"…","user_name":"…","qos":1,"retain":false,
//	 "received_at":"2026-11-30T16:00:00.123456789Z","timestamp":"…","message_expiry_interval":60,"content_type":"…",
//	 "payload_format":1,"response_topic":"…","correlation_data":"base64","user_properties":[{"name":"…","value":"…"}],
//	 "payload_encoding":"json","payload":…}
//
// What the PUBLISH did not have is left out. payload_encoding is json (the payload as it is), text, or base64. timestamp is there
// when the device's time is used.
func (m *Mapper) envelope(s *Scratch, rec *spool.Record, at time.Time, id string) []byte {
	b := make([]byte, 0, 300+len(rec.Topic)+len(rec.ClientID)+len(rec.Payload)+len(rec.Payload)/2)
	b = appendJSONString(append(b, `{"id":`...), id)
	b = appendJSONString(append(b, `,"topic":`...), rec.Topic)
	b = appendJSONString(append(b, `,"client_id":`...), rec.ClientID)
	if rec.UserName != "" {
		b = appendJSONString(append(b, `,"user_name":`...), rec.UserName)
	}
	b = strconv.AppendUint(append(b, `,"qos":`...), uint64(rec.QoS), 10)
	b = strconv.AppendBool(append(b, `,"retain":`...), rec.Retain)
	b = appendTime(append(b, `,"received_at":`...), time.Unix(0, rec.ReceivedAt))
	if m.time != nil {
		b = appendTime(append(b, `,"timestamp":`...), at)
	}
	if left, ok := s.expiry(); ok {
		b = strconv.AppendInt(append(b, `,"message_expiry_interval":`...), left, 10)
	}
	if p := rec.Properties; p != nil {
		b = appendProperties(b, p)
	}
	b = append(b, `,"payload_encoding":`...)
	switch {
	case s.isJSON():
		b = append(append(b, `"json","payload":`...), rec.Payload...)
	case utf8.Valid(rec.Payload):
		b = appendJSONString(append(b, `"text","payload":`...), view(rec.Payload))
	default:
		b = appendBase64(append(b, `"base64","payload":`...), rec.Payload)
	}
	return append(b, '}')
}

func appendProperties(b []byte, p *spool.Properties) []byte {
	if p.ContentType != "" {
		b = appendJSONString(append(b, `,"content_type":`...), p.ContentType)
	}
	if p.HasPayloadFormat {
		b = strconv.AppendUint(append(b, `,"payload_format":`...), uint64(p.PayloadFormat), 10)
	}
	if p.ResponseTopic != "" {
		b = appendJSONString(append(b, `,"response_topic":`...), p.ResponseTopic)
	}
	if p.CorrelationData != nil {
		b = appendBase64(append(b, `,"correlation_data":`...), p.CorrelationData)
	}
	if len(p.User) == 0 {
		return b
	}
	b = append(b, `,"user_properties":[`...)
	for i, u := range p.User {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendJSONString(append(b, `{"name":`...), u.Name)
		b = append(appendJSONString(append(b, `,"value":`...), u.Value), '}')
	}
	return append(b, ']')
}

func appendTime(b []byte, t time.Time) []byte {
	return append(t.UTC().AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}

func appendBase64(b, payload []byte) []byte {
	return append(base64.StdEncoding.AppendEncode(append(b, '"'), payload), '"')
}

// event is a CloudEvent in structured mode. Its data is the payload as JSON if it is that and the device does not call it
// something else, as text if it is UTF-8 and not called JSON, and base64 otherwise.
func (m *Mapper) event(s *Scratch, rec *spool.Record, d *Decision, at time.Time, id string) []byte {
	b := make([]byte, 0, 400+len(rec.Topic)+len(rec.ClientID)+len(rec.Payload)+len(rec.Payload)/2)
	b = appendJSONString(append(b, `{"specversion":"1.0","id":`...), id)
	m.attributes(s, d, at, func(name, value string) {
		b = append(append(append(b, ',', '"'), name...), '"', ':')
		b = appendJSONString(b, value)
	})
	contentType := ""
	if rec.Properties != nil {
		contentType = rec.Properties.ContentType
	}
	asJSON := contentType == "" || jsonType(contentType)
	switch {
	case len(rec.Payload) == 0:
		if contentType != "" {
			b = appendJSONString(append(b, `,"datacontenttype":`...), contentType)
		}
	case asJSON && s.isJSON():
		if contentType == "" {
			contentType = typeJSON
		}
		b = appendJSONString(append(b, `,"datacontenttype":`...), contentType)
		b = append(append(b, `,"data":`...), rec.Payload...)
	case utf8.Valid(rec.Payload) && !jsonType(contentType):
		if contentType == "" {
			contentType = "text/plain"
		}
		b = appendJSONString(append(b, `,"datacontenttype":`...), contentType)
		b = appendJSONString(append(b, `,"data":`...), view(rec.Payload))
	default:
		if contentType == "" {
			contentType = "application/octet-stream"
		}
		b = appendJSONString(append(b, `,"datacontenttype":`...), contentType)
		b = appendBase64(append(b, `,"data_base64":`...), rec.Payload)
	}
	return append(b, '}')
}

// jsonType reports whether a media type is JSON's.
func jsonType(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return kind == typeJSON || kind == "text/json" || strings.HasSuffix(kind, "+json")
}

// addEvent adds the headers of a CloudEvent in binary mode; the content type of the data is the record's own header.
func (m *Mapper) addEvent(msg *kafka.Message, s *Scratch, d *Decision, at time.Time, id []byte) {
	msg.AddHeader("ce_specversion", []byte("1.0"))
	msg.AddHeader("ce_id", id)
	m.attributes(s, d, at, func(name, value string) { msg.AddHeader("ce_"+name, []byte(value)) })
}

// attributes calls fn with the attributes of the CloudEvent beside specversion and id.
func (m *Mapper) attributes(s *Scratch, d *Decision, at time.Time, fn func(name, value string)) {
	rec := s.rec
	fn("source", m.attribute(m.events.source, s, func() string { return "/" + url.PathEscape(m.who.Gateway) + "/" + url.PathEscape(rec.ClientID) }))
	fn("type", m.attribute(m.events.kind, s, func() string { return DefaultType }))
	fn("subject", m.attribute(m.events.subject, s, func() string { return rec.Topic }))
	fn("time", at.UTC().Format(time.RFC3339Nano))
	if !d.NoKey && d.Key != "" && utf8.ValidString(d.Key) {
		fn("partitionkey", d.Key)
	}
	if p := rec.Properties; p != nil {
		for i := range p.User {
			if p.User[i].Name == traceParent {
				fn(traceParent, p.User[i].Value)
				break
			}
		}
	}
}

// attribute is what the template makes; the default when there is none, or a field is missing: CloudEvents must have these.
func (m *Mapper) attribute(t *template, s *Scratch, otherwise func() string) string {
	if t == nil {
		return otherwise()
	}
	b, missing, err := t.appendTo(nil, s)
	if err != nil || missing != nil || len(b) == 0 || !utf8.Valid(b) {
		m.counts.faults[MissingHeader].Add(1)
		return otherwise()
	}
	return string(b)
}

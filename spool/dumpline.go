package spool

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// DumpLine is a DumpItem as one line of JSON.
type DumpLine struct {
	Stream     string          `json:"stream"`
	Partition  int             `json:"partition"`
	Offset     Offset          `json:"offset"`
	Received   time.Time       `json:"received_at,omitzero"`
	Expires    time.Time       `json:"expires_at,omitzero"`
	Topic      string          `json:"topic,omitempty"`
	ClientID   string          `json:"client_id,omitempty"`
	UserName   string          `json:"user_name,omitempty"`
	QoS        uint8           `json:"qos"`
	Retain     bool            `json:"retain"`
	Properties *DumpProperties `json:"properties,omitempty"`
	Payload    string          `json:"payload"`
	Encoding   string          `json:"payload_encoding"` // utf-8 when it is text, else base64

	Gap *GapListing `json:"gap,omitempty"` // set: there is no record
}

// DumpProperties are a record's properties.
type DumpProperties struct {
	PayloadFormat *uint8      `json:"payload_format,omitempty"`
	ContentType   string      `json:"content_type,omitempty"`
	ResponseTopic string      `json:"response_topic,omitempty"`
	Correlation   []byte      `json:"correlation_data,omitempty"` // base64
	HasData       bool        `json:"has_correlation_data,omitempty"`
	User          [][2]string `json:"user,omitempty"`
}

// MarshalJSON leaves out of a gap what a record has.
func (l DumpLine) MarshalJSON() ([]byte, error) {
	if l.Gap != nil {
		return json.Marshal(struct {
			Stream    string      `json:"stream"`
			Partition int         `json:"partition"`
			Gap       *GapListing `json:"gap"`
		}{l.Stream, l.Partition, l.Gap})
	}
	type plain DumpLine
	return json.Marshal(plain(l))
}

// Line is the item for a program.
func (i DumpItem) Line() DumpLine {
	l := DumpLine{Stream: i.Stream, Partition: i.Partition}
	r := i.Record
	if r == nil {
		l.Gap = &GapListing{From: i.Gap.From, To: i.Gap.To, Reason: i.Gap.Reason}
		return l
	}
	l.Offset, l.Received, l.Expires = r.Offset, timeOf(r.ReceivedAt), timeOf(r.ExpiresAt)
	l.Topic, l.ClientID, l.UserName, l.QoS, l.Retain = r.Topic, r.ClientID, r.UserName, r.QoS, r.Retain
	l.Payload, l.Encoding = string(r.Payload), "utf-8"
	if !isText(r.Payload) {
		l.Payload, l.Encoding = base64.StdEncoding.EncodeToString(r.Payload), "base64"
	}
	if p := r.Properties; p != nil {
		l.Properties = &DumpProperties{
			ContentType: p.ContentType, ResponseTopic: p.ResponseTopic, Correlation: p.CorrelationData, HasData: p.CorrelationData != nil,
		}
		if p.HasPayloadFormat {
			l.Properties.PayloadFormat = &p.PayloadFormat
		}
		for _, u := range p.User {
			l.Properties.User = append(l.Properties.User, [2]string{u.Name, u.Value})
		}
	}
	return l
}

// isText tells whether b is UTF-8 without control characters but tab and line ends: in JSON those take six bytes each.
func isText(b []byte) bool {
	for _, c := range b {
		if c < 0x20 && c != '\t' && c != '\n' && c != '\r' {
			return false
		}
	}
	return utf8.Valid(b)
}

// Item is the line as it was before Line.
func (l DumpLine) Item() (DumpItem, error) {
	i := DumpItem{Stream: l.Stream, Partition: l.Partition}
	if l.Gap != nil {
		i.Gap = Gap{From: l.Gap.From, To: l.Gap.To, Reason: l.Gap.Reason}
		return i, nil
	}
	r := &Record{
		Topic: l.Topic, ClientID: l.ClientID, UserName: l.UserName, Payload: []byte(l.Payload), QoS: l.QoS, Retain: l.Retain,
		Offset: l.Offset, Partition: uint16(l.Partition), ReceivedAt: nanos(l.Received), ExpiresAt: nanos(l.Expires),
	}
	if l.Encoding == "base64" {
		b, err := base64.StdEncoding.DecodeString(l.Payload)
		if err != nil {
			return i, fmt.Errorf("payload of offset %d: %w", l.Offset, err)
		}
		r.Payload = b
	}
	if p := l.Properties; p != nil {
		r.Properties = &Properties{ContentType: p.ContentType, ResponseTopic: p.ResponseTopic, CorrelationData: p.Correlation}
		if p.HasData && p.Correlation == nil {
			r.Properties.CorrelationData = []byte{}
		}
		if p.PayloadFormat != nil {
			r.Properties.HasPayloadFormat, r.Properties.PayloadFormat = true, *p.PayloadFormat
		}
		for _, u := range p.User {
			r.Properties.User = append(r.Properties.User, UserProperty{Name: u[0], Value: u[1]})
		}
	}
	i.Record = r
	return i, nil
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

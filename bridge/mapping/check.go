package mapping

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// check reports what is wrong with words and numbers.
func (c Config) check(fault func(string, error)) {
	oneOf := func(key, got string, want ...string) {
		for _, w := range want {
			if got == w {
				return
			}
		}
		fault(key, fmt.Errorf("%q is none of %s", got, strings.Join(want, ", ")))
	}
	v, t, p := c.Value, c.Timestamp, c.OnFault
	oneOf("value.format", v.Format, Raw, Envelope, CloudEventsBinary, CloudEventsStructured, FromTemplate)
	oneOf("value.empty_payload", v.EmptyPayload, EmptyValue, Tombstone, Drop)
	oneOf("timestamp.unit", t.Unit, "auto", "s", "ms", "us", "ns")
	oneOf("sample.by", c.Sample.By, ByRecord, ByKey)
	oneOf("on_fault.missing_field", p.MissingField, DeadLetter, Skip, Empty)
	oneOf("on_fault.invalid_json", p.InvalidJSON, DeadLetter, Skip, Missing)
	oneOf("on_fault.condition_error", p.ConditionError, DeadLetter, Skip, Pass)
	events := v.Format == CloudEventsBinary || v.Format == CloudEventsStructured
	switch {
	case v.Format == FromTemplate && v.Template == "":
		fault("value.template", errors.New("empty; format template needs one"))
	case v.Format != FromTemplate && v.Template != "":
		fault("value.template", fmt.Errorf("format is %s; set it to template", v.Format))
	}
	if !events {
		for key, text := range map[string]string{"type": v.Type, "source": v.Source, "subject": v.Subject} {
			if text != "" {
				fault("value."+key, fmt.Errorf("format is %s; this is for CloudEvents", v.Format))
			}
		}
	}
	if v.EmptyPayload == Tombstone && c.Key == KeyNone {
		fault("value.empty_payload", errors.New("a tombstone deletes the key of a record, and key is none"))
	}
	if c.Sample.Rate < 0 || c.Sample.Rate > 1 {
		fault("sample.rate", fmt.Errorf("%v is not between 0 and 1", c.Sample.Rate))
	}
	for key, d := range map[string]int64{"max_past": int64(t.MaxPast), "max_future": int64(t.MaxFuture)} {
		if d < 0 || d > int64(longestTimeBounds) {
			fault("timestamp."+key, fmt.Errorf("%v is not between 0 and 100 years", time.Duration(d)))
		}
	}
	if p.MaxJSON < 1 || p.MaxJSON > mostJSON {
		fault("on_fault.max_json", fmt.Errorf("%v is not between 1B and %v", p.MaxJSON, mostJSON))
	}
	if c.MaxTopics < 1 || c.MaxTopics > 100_000 {
		fault("max_topics", fmt.Errorf("%d is not between 1 and 100000", c.MaxTopics))
	}
}

// parseHeader reads name=template.
func parseHeader(text, format string) (h header, err error) {
	name, value, ok := strings.Cut(text, "=")
	switch {
	case !ok || name == "":
		return h, fmt.Errorf("%q is not name=template, such as site=${topic[1]}", text)
	case len(name) > maxHeaderName:
		return h, fmt.Errorf("the name has %d bytes, at most %d", len(name), maxHeaderName)
	case strings.HasPrefix(name, "mqtt."), strings.HasPrefix(name, "forebay."),
		(format == CloudEventsBinary || format == CloudEventsStructured) && (strings.HasPrefix(name, "ce_") || name == HeaderContentType):
		return h, fmt.Errorf("the header %s is the gateway's own", name)
	}
	h.name = name
	if h.value, err = parseTemplate(value); err != nil {
		return h, fmt.Errorf("behind %s=: %w", name, err)
	}
	return h, nil
}

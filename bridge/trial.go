package bridge

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/spool"
)

// Trial is what a route would make of a record, without sending it.
type Trial struct {
	Route      string               `json:"route"`
	Upstream   string               `json:"upstream"`
	Fate       Fate                 `json:"fate"`
	Reason     string               `json:"reason,omitempty"` // of left_out and dead_letter, or a fault that the policy lets pass
	Error      string               `json:"error,omitempty"`
	Hint       string               `json:"hint,omitempty"`
	Conditions []mapping.Evaluation `json:"conditions"`
	Faults     map[string]uint64    `json:"faults"` // that would be counted, by reason

	// Of a record that is sent.
	Topic     string        `json:"topic,omitempty"`
	Dynamic   bool          `json:"dynamic_topic,omitempty"` // a template made the topic: it counts towards max_topics
	Key       *TrialText    `json:"key,omitempty"`           // absent: none
	Partition *int64        `json:"partition,omitempty"`     // when one was asked for: modulo the number of partitions
	ByKey     string        `json:"partition_key,omitempty"` // what decides the partition otherwise
	Timestamp time.Time     `json:"timestamp,omitzero"`
	Headers   []TrialHeader `json:"headers,omitempty"`
	Value     *TrialText    `json:"value,omitempty"` // absent: a tombstone
}

// Fate is what becomes of a record.
type Fate string

// The fates.
const (
	Sent         Fate = "sent"
	NotMatched   Fate = "not_matched" // by the route's filters
	LeftOut      Fate = "left_out"
	DeadLettered Fate = "dead_letter"
)

// TrialText is text, or base64 when it is not UTF-8.
type TrialText struct {
	Text   string `json:"text,omitempty"`
	Base64 string `json:"base64,omitempty"`
}

// TrialHeader is one header.
type TrialHeader struct {
	Name string `json:"name"`
	TrialText
}

func trialText(b []byte) TrialText {
	if utf8.Valid(b) {
		return TrialText{Text: string(b)}
	}
	return TrialText{Base64: base64.StdEncoding.EncodeToString(b)}
}

// Try says what a route of a configuration that is valid would make of rec. It opens nothing and sends nothing.
func Try(cfg Config, gatewayID, name string, rec *spool.Record, now time.Time) (Trial, error) {
	var names []string
	for _, rc := range cfg.Routes {
		rc = rc.WithDefaults(cfg.onlyUpstream())
		if names = append(names, rc.Name); rc.Name != name {
			continue
		}
		r, err := newRoute(rc, gatewayID, nil)
		if err != nil {
			return Trial{}, err
		}
		r.dead = rc.Stream == cfg.deadLetters()
		return r.try(rec, now), nil
	}
	return Trial{}, fmt.Errorf("%q: %w; %s", name, ErrUnknownRoute, thereAre(names))
}

func (r *route) try(rec *spool.Record, now time.Time) Trial {
	t := Trial{Route: r.cfg.Name, Upstream: r.cfg.Upstream, Fate: Sent, Conditions: []mapping.Evaluation{}, Faults: make(map[string]uint64)}
	if !r.matches(rec.Topic) {
		t.Fate = NotMatched
		return t
	}
	s := r.mapper.NewScratch(func() time.Time { return now })
	t.Conditions = append(t.Conditions, r.mapper.Evaluate(s, rec)...)
	r.mapper.Decide(s, rec, false)
	d := r.mapper.Place(s, rec)
	if d.Reason != mapping.None {
		t.Reason, t.Hint = d.Reason.String(), d.Hint
	}
	if d.Err != nil {
		t.Error = d.Err.Error()
	}
	switch d.Action {
	case mapping.Leave:
		t.Fate = LeftOut
	case mapping.Refuse:
		t.Fate = DeadLettered
	default:
		t.fill(r.message(s, rec, &d), &d)
	}
	for _, reason := range mapping.Faults {
		if n := r.mapper.Faults(reason); n > 0 {
			t.Faults[reason.String()] = n
		}
	}
	return t
}

func (t *Trial) fill(m kafka.Message, d *mapping.Decision) {
	t.Topic, t.Dynamic, t.Timestamp = d.Topic, !d.Constant, m.Timestamp().UTC()
	if m.Key() != nil {
		key := trialText(m.Key())
		t.Key = &key
	}
	if m.Value() != nil {
		value := trialText(m.Value())
		t.Value = &value
	}
	if d.Partition >= 0 {
		t.Partition = &d.Partition
	} else {
		t.ByKey = d.Key
	}
	m.Headers(func(key string, value []byte) { t.Headers = append(t.Headers, TrialHeader{key, trialText(value)}) })
}

// thereAre names what there is.
func thereAre(names []string) string {
	if len(names) == 0 {
		return "there is none"
	}
	return "there are: " + strings.Join(names, ", ")
}

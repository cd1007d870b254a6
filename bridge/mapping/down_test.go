package mapping

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/forebay-gateway/forebay/bridge/kafka"
)

func TestDownTopicsOfTemplates(t *testing.T) {
	rec := &kafka.Incoming{
		Topic: "plant.north.commands", Partition: 3, Offset: 42, Timestamp: time.UnixMilli(1_796_054_399_000), Key: []byte("pump-7"),
		Value:   []byte(`{"a":{"b":[1.50,"x"]},"o":{},"n":null,"path":"l/4"}`),
		Headers: []kafka.Header{{Name: "to", Value: []byte("line/4/set")}, {Name: "bad/", Value: []byte("a")}, {Name: "empty"}},
	}
	f := func(template, want string) {
		t.Helper()
		m, err := NewDown(DownConfig{Topic: template, MaxPayload: 1 << 20}, "gw")
		if err != nil {
			t.Errorf("%s: %v", template, err)
			return
		}
		p, err := m.Publish(m.NewScratch(), rec, time.Now())
		got := ""
		if fault, ok := errors.AsType[*Fault](err); ok {
			got = "! " + fault.Reason.String()
		} else if err == nil {
			got = p.Record.Topic
		}
		if got != want {
			t.Errorf("%s makes %q (%v), want %q", template, got, err, want)
		}
	}
	f("commands", "commands")
	f("${topic}/${key}", "plant.north.commands/pump-7")
	f("${topic[1]}/p${partition}/${offset}/${timestamp_ms}/${gateway}", "north/p3/42/1796054399000/gw")
	f("${json.a.b[0]}/${json.a.b[1]}", "1.50/x")
	f("${header.to:path}", "line/4/set")
	f("x/${header.to}", "! bad_topic")
	f("${json.path:path}/x", "l/4/x")
	f("${json.o}", "! bad_topic")
	f("${json.a}", "! bad_topic")
	f("${json.n}", "! missing_field")
	f("${json.n|none}", "none")
	f("${header.no}", "! missing_field")
	f("${header.no|x/y}", "x/y")
	f("${header.empty}", "! bad_topic")
	f("${topic[7]|z}", "z")
	f(`${header["bad/"]}`, "a")
	f("${key:base64}", "cHVtcC03")
}

func TestDownTemplatesThatCannotBe(t *testing.T) {
	f := func(cfg DownConfig, want string) {
		t.Helper()
		if cfg.Topic == "" {
			cfg.Topic = "x"
		}
		if _, err := NewDown(cfg, "gw"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	for _, topic := range []string{"a/+", "#", "a\x00", "a\xff", "a/${key|#}", "a/\u0085"} {
		f(DownConfig{Topic: topic}, "which no topic name may have")
	}
	f(DownConfig{Topic: "$SYS/x"}, "the gateway's own")
	f(DownConfig{Topic: "$${key}"}, "the gateway's own")
	f(DownConfig{Topic: "a/${key|}"}, "without a name")
	f(DownConfig{Topic: "a/${key:json}"}, "quotes")
	f(DownConfig{Topic: "a/${value}"}, "whole value")
	f(DownConfig{Topic: "a/${client_id}"}, "unknown field")
	f(DownConfig{Topic: "a/${key:hex}"}, "want path, json or base64")
	f(DownConfig{QoS: "3"}, "qos: ")
	f(DownConfig{Retain: "yes"}, "retain: ")
	f(DownConfig{Expiry: "soon"}, "expiry: ")
	f(DownConfig{ResponseTopic: "a/#"}, "response_topic: ")
	f(DownConfig{UserProperties: []string{"a*b"}}, "user_properties[0]: ")
}

func TestDownFaultsOfOtherTemplates(t *testing.T) {
	f := func(cfg DownConfig, rec kafka.Incoming, want Reason) {
		t.Helper()
		cfg.Topic, cfg.MaxPayload = "x", 100
		m, err := NewDown(cfg, "gw")
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Publish(m.NewScratch(), &rec, time.Now())
		if fault, ok := errors.AsType[*Fault](err); !ok || fault.Reason != want {
			t.Errorf("%+v: %v, want %v", cfg, err, want)
		}
	}
	with := func(v string) kafka.Incoming {
		return kafka.Incoming{Headers: []kafka.Header{{Name: "h", Value: []byte(v)}}, Value: []byte("no json")}
	}
	f(DownConfig{QoS: "${header.h}"}, with("3"), BadQoS)
	f(DownConfig{Retain: "${header.h}"}, with("on"), BadRetain)
	f(DownConfig{Expiry: "${header.h}"}, with("-1"), BadExpiry)
	f(DownConfig{ResponseTopic: "re/${header.h}"}, with("#"), BadResponseTopic)
	f(DownConfig{QoS: "${json.qos}"}, with(""), InvalidJSON)
	f(DownConfig{QoS: "${json.qos}", MaxJSON: 2}, with(""), JSONTooLarge)
	f(DownConfig{QoS: "${header.no}"}, with(""), MissingField)
	f(DownConfig{}, kafka.Incoming{Value: make([]byte, 101)}, TooLarge)
}

func TestUserPropertiesAreCapped(t *testing.T) {
	m, err := NewDown(DownConfig{Topic: "x", UserProperties: []string{"a*"}, MaxUserProperties: 3, MaxPayload: 1 << 10}, "gw")
	if err != nil {
		t.Fatal(err)
	}
	rec := &kafka.Incoming{}
	for i := range 5 {
		rec.Headers = append(rec.Headers, kafka.Header{Name: fmt.Sprint("a", i), Value: []byte("v")}, kafka.Header{Name: "b", Value: []byte("v")})
	}
	p, err := m.Publish(m.NewScratch(), rec, time.Now())
	if err != nil || len(p.Record.Properties.User) != 3 || p.LeftOut != 2 {
		t.Errorf("%+v, %d left out, %v; want 3 and 2", p.Record, p.LeftOut, err)
	}
}

// Whatever a record has in it, its topic is legal, has the levels that the template says, and begins as the template does.
func FuzzDownTopic(f *testing.F) {
	for _, s := range []string{"pump", "a/b", "+", "#", "../x", "$SYS", "a\x00b", "\xff", "", "/", "\u0085", "\ufffe"} {
		f.Add([]byte(s), []byte(`{"x":"`+s+`"}`), s)
	}
	m, err := NewDown(DownConfig{Topic: "cmd/${key}/${json.x}/v${header.h}", MaxPayload: 1 << 20, ResponseTopic: "re/${header.h}"}, "gw")
	if err != nil {
		f.Fatal(err)
	}
	open, err := NewDown(DownConfig{Topic: "${key:path}", MaxPayload: 1 << 20}, "gw")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key, value []byte, header string) {
		rec := &kafka.Incoming{Key: key, Value: value, Headers: []kafka.Header{{Name: "h", Value: []byte(header)}}}
		legal := func(topic string) {
			t.Helper()
			if topic == "" || strings.ContainsAny(topic, "+#\x00") || !utf8.ValidString(topic) || topic[0] == '$' || len(topic) > 65535 {
				t.Errorf("topic %q", topic)
			}
		}
		if p, err := m.Publish(m.NewScratch(), rec, time.Now()); err == nil {
			legal(p.Record.Topic)
			if strings.Count(p.Record.Topic, "/") != 3 || !strings.HasPrefix(p.Record.Topic, "cmd/") || strings.Contains(p.Record.Topic, "//") {
				t.Errorf("topic %q is not what the template means", p.Record.Topic)
			}
			if r := p.Record.Properties.ResponseTopic; !strings.HasPrefix(r, "re/") || strings.Count(r, "/") != 1 {
				t.Errorf("response topic %q", r)
			}
		} else if _, ok := errors.AsType[*Fault](err); !ok {
			t.Errorf("%v is no fault", err)
		}
		if p, err := open.Publish(open.NewScratch(), rec, time.Now()); err == nil {
			legal(p.Record.Topic)
		}
	})
}

package mapping

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

var (
	testWho  = Identity{Gateway: "gw-1", Stream: "default"}
	testTime = time.Date(2026, 11, 30, 16, 0, 0, 123456789, time.UTC)
)

func telemetry() *spool.Record {
	return &spool.Record{
		Topic: "plant/7/press-12/temp", ClientID: "press-12", UserName: "line7", QoS: 1, ReceivedAt: testTime.UnixNano(), Partition: 2, Offset: 17,
		Payload: []byte(`{"ts":1796054399000,"temp":21.50,"serial":9007199254740993,"ok":true,"none":null,"site":{"name":"Süd \"1\"","line":4},"tags":["a","b"]}`),
		Properties: &spool.Properties{
			ContentType: "application/json", ResponseTopic: "reply/press-12", CorrelationData: []byte{1, 255}, HasPayloadFormat: true, PayloadFormat: 1,
			User: []spool.UserProperty{
				{Name: "fw", Value: "4.11.2"},
				{Name: "fw", Value: "second"},
				{Name: "a b.c", Value: "odd"},
				{Name: "traceparent", Value: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
			},
		},
	}
}

func newMapper(t testing.TB, cfg Config) *Mapper {
	t.Helper()
	if cfg.Topic == "" {
		cfg.Topic = "t"
	}
	m, err := New(cfg, testWho)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// mapped is a record on its way to Kafka, as text.
type mapped struct {
	Decision
	key, value, headers string
	at                  time.Time
	null                bool
}

func apply(t testing.TB, m *Mapper, rec *spool.Record) mapped {
	t.Helper()
	s := m.NewScratch(func() time.Time { return testTime.Add(90 * time.Second) })
	d := m.Decide(s, rec, false)
	out := mapped{Decision: d}
	if d.Action != Send {
		return out
	}
	msg := m.Message(s, rec, &d, nil)
	out.key, out.value, out.at, out.null = string(msg.Key()), string(msg.Value()), msg.Timestamp(), msg.Value() == nil
	var b strings.Builder
	msg.Headers(func(k string, v []byte) { fmt.Fprintf(&b, "%s=%s;", k, v) })
	out.headers = b.String()
	return out
}

func (m mapped) header(name string) string {
	_, rest, ok := strings.Cut(";"+m.headers, ";"+name+"=")
	if !ok {
		return "(none)"
	}
	v, _, _ := strings.Cut(rest, ";")
	return v
}

// Every field as text, as JSON and in base64, by way of a value template.
func TestFields(t *testing.T) {
	f := func(tmpl, want string) {
		t.Helper()
		m := newMapper(t, Config{Value: Value{Format: FromTemplate, Template: tmpl}, OnFault: Policy{MissingField: Empty}})
		if got := apply(t, m, telemetry()); got.value != want {
			t.Errorf("%s = %q, want %q", tmpl, got.value, want)
		}
	}
	f("${topic}", "plant/7/press-12/temp")
	f("${topic[0]}-${topic[3]}", "plant-temp")
	f("${topic[4]}", "")
	f("${topic[4]|none}", "none")
	f("${topic:json}", `"plant/7/press-12/temp"`)
	f("${client_id}/${user_name}/${qos}/${retain}", "press-12/line7/1/false")
	f("${qos:json},${retain:json},${received_ms:json}", "1,false,1796054400123")
	f("${received_at}", "2026-11-30T16:00:00.123456789Z")
	f("${received_ms}", "1796054400123")
	f("${content_type} ${response_topic} ${payload_format}", "application/json reply/press-12 1")
	f("${correlation_data}", "\x01\xff")
	f("${correlation_data:base64}", "Af8=")
	f("${correlation_data:json}", "\"\\u0001\ufffd\"")
	f("${user.fw}", "4.11.2")
	f(`${user["a b.c"]}`, "odd")
	f("${user.none}", "")
	f("${user.none:json}", "null")
	f("${user.none|x y}", "x y")
	f("${json.temp}", "21.50") // as the device wrote it
	f("${json.serial}", "9007199254740993")
	f("${json.serial:json}", "9007199254740993")
	f("${json.ok}", "true")
	f("${json.none}", "")
	f("${json.none|-}", "-")
	f("${json.none:json}", "null")
	f("${json.site.name}", `Süd "1"`)
	f("${json.site.name:json}", `"Süd \"1\""`)
	f(`${json["site"]["line"]}`, "4")
	f("${json.site:json}", `{"name":"Süd \"1\"","line":4}`)
	f("${json.tags[1]}", "b")
	f("${json.tags[2]}", "")
	f("${json.temp.x}", "")
	f("${id} ${gateway} ${stream}", "gw-1/default/2/17 gw-1 default")
	f("$${topic} costs $5 {x}", "${topic} costs $5 {x}")
	f(`{"t":${json.temp:json},"who":${client_id:json}}`, `{"t":21.50,"who":"press-12"}`)
	f("${payload:base64}", "eyJ0cyI6MTc5NjA1NDM5OTAwMCwidGVtcCI6MjEuNTAsInNlcmlhbCI6OTAwNzE5OTI1NDc0MDk5Mywib2siOnRydWUsIm5vbmUiOm51bGwsInNpdGUiOnsibmFtZSI6IlPDvGQgXCIxXCIiLCJsaW5lIjo0fSwidGFncyI6WyJhIiwiYiJdfQ==")
}

func TestKeys(t *testing.T) {
	f := func(key, want string) {
		t.Helper()
		if got := apply(t, newMapper(t, Config{Key: key, OnFault: Policy{MissingField: Empty}}), telemetry()); got.key != want {
			t.Errorf("key %s = %q, want %q", key, got.key, want)
		}
	}
	f("client_id", "press-12")
	f("topic", "plant/7/press-12/temp")
	f("topic[1]", "7")
	f("topic[9]", "press-12") // no such level: the client ID
	f("${topic[1]}/${json.site.line}", "7/4")
	f("${json.none}", "press-12") // missing, and the policy lets it pass
	f("${user.fw}", "4.11.2")
	m := newMapper(t, Config{Key: KeyNone})
	s := m.NewScratch(time.Now)
	rec := telemetry()
	d := m.Decide(s, rec, false)
	if msg := m.Message(s, rec, &d, nil); msg.Key() != nil || d.PartitionOf(8) != kafka.PartitionFor("press-12", 8) {
		t.Errorf("key none: key %q, partition %d", msg.Key(), d.PartitionOf(8))
	}
}

func TestPartitionIsANumberModuloThePartitions(t *testing.T) {
	f := func(tmpl string, want int32, reason Reason) {
		t.Helper()
		m := newMapper(t, Config{Partition: tmpl, OnFault: Policy{MissingField: Empty}})
		d := m.Decide(m.NewScratch(time.Now), telemetry(), false)
		if got := d.PartitionOf(6); got != want || d.Reason != reason {
			t.Errorf("partition %s = %d (%v), want %d (%v)", tmpl, got, d.Reason, want, reason)
		}
	}
	byKey := kafka.PartitionFor("press-12", 6)
	f("${topic[1]}", 1, None)
	f("${json.site.line}", 4, None)
	f("${json.serial}", 9007199254740993%6, None)
	f("${json.site.name}", byKey, BadPartition)
	f("${json.temp}", byKey, BadPartition)
	f("${user.none}", byKey, MissingField)
	f("${user.none|3}", 3, None)
}

func TestTopicsOfFields(t *testing.T) {
	f := func(tmpl, want string) {
		t.Helper()
		got := apply(t, newMapper(t, Config{Topic: tmpl, OnFault: Policy{MissingField: Empty}}), telemetry()).Topic
		if base, hashed := strings.CutSuffix(want, "*"); got != want && (!hashed || !strings.HasPrefix(got, base+"-") || len(got) != len(base)+1+hashLen) {
			t.Errorf("topic %s = %s, want %s", tmpl, got, want)
		}
	}
	f("t.${json.site.line}", "t.4")
	f("t.${user_name}", "t.line7")
	f("t.${user.fw}", "t.4_11_2*")
	f("t.${json.site.name}", "t.S__d__1_*")
	f("t.${json.none|unknown}", "t.unknown")
	f("t.${json.none}", "t.*")
	f("t.${qos}.${retain}", "t.1.false")
	f("t.${response_topic}", "t.reply_press-12*")
}

func TestHeaders(t *testing.T) {
	m := newMapper(t, Config{Headers: []string{"site=${topic[1]}", "line=${json.site.line}", "none=${json.none}", "dflt=${json.none|-}", "eq=a=b", "fw=mine"}})
	got := apply(t, m, telemetry())
	const want = "mqtt.topic=plant/7/press-12/temp;mqtt.client_id=press-12;mqtt.qos=1;mqtt.retain=false;forebay.id=gw-1/default/2/17;" +
		"site=7;line=4;dflt=-;eq=a=b;fw=mine;" +
		"mqtt.payload_format=1;content-type=application/json;mqtt.response_topic=reply/press-12;mqtt.correlation_data=\x01\xff;" +
		"user.fw=4.11.2;user.fw=second;a b.c=odd;traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01;"
	if got.headers != want {
		t.Errorf("headers\n%s, want\n%s", got.headers, want)
	}
	if n := m.Faults(MissingHeader); n != 1 {
		t.Errorf("%d headers were left out, want 1", n)
	}
	if !m.Plain() {
		t.Error("headers decide about no record's place, and the mapping is not plain")
	}
}

func TestExpiryIsWhatIsLeft(t *testing.T) {
	rec := telemetry()
	f := func(want string) {
		t.Helper()
		if got := apply(t, newMapper(t, Config{}), rec).header(HeaderExpiry); got != want {
			t.Errorf("expiry %s, want %s", got, want)
		}
	}
	f("(none)")
	rec.ExpiresAt = testTime.Add(100 * time.Second).UnixNano() // and 90 seconds have passed
	f("10")
	rec.ExpiresAt = testTime.Add(90*time.Second + time.Millisecond).UnixNano()
	f("1")
	rec.StreamTTL = true // the publisher gave none (MQTT 5, 3.3.2-6)
	f("(none)")
}

func TestReservedUserProperties(t *testing.T) {
	rec := telemetry()
	rec.Properties.User = []spool.UserProperty{
		{Name: "mqtt.topic", Value: "x"}, {Name: "forebay.id", Value: "x"}, {Name: "content-type", Value: "x"}, {Name: "ce_id", Value: "x"}, {Name: "free", Value: "x"},
	}
	f := func(format, want string) {
		t.Helper()
		if got := apply(t, newMapper(t, Config{Value: Value{Format: format}}), rec); !strings.HasSuffix(got.headers, want) {
			t.Errorf("%s: headers %s, want %s at the end", format, got.headers, want)
		}
	}
	f(Raw, "user.mqtt.topic=x;user.forebay.id=x;user.content-type=x;ce_id=x;free=x;")
	f(CloudEventsBinary, "user.mqtt.topic=x;user.forebay.id=x;user.content-type=x;user.ce_id=x;free=x;")
}

func TestEmptyPayloads(t *testing.T) {
	rec := telemetry()
	rec.Payload = nil
	f := func(format, policy string, action Action, null bool) {
		t.Helper()
		got := apply(t, newMapper(t, Config{Value: Value{Format: format, EmptyPayload: policy}}), rec)
		if got.Action != action || got.null != null {
			t.Errorf("%s %s: action %v, null %v", format, policy, got.Action, got.null)
		}
	}
	for _, format := range []string{Raw, Envelope, CloudEventsBinary, CloudEventsStructured} {
		f(format, EmptyValue, Send, false)
		f(format, Tombstone, Send, true)
		f(format, Drop, Leave, false)
	}
	m := newMapper(t, Config{Value: Value{EmptyPayload: Drop}})
	apply(t, m, rec)
	if n := m.LeftOut(NoPayload); n != 1 {
		t.Errorf("%d counted, want 1", n)
	}
}

func TestEnvelope(t *testing.T) {
	m := newMapper(t, Config{Value: Value{Format: Envelope}})
	got := apply(t, m, telemetry())
	const want = `{"id":"gw-1/default/2/17","topic":"plant/7/press-12/temp","client_id":"press-12","user_name":"line7","qos":1,"retain":false,` +
		`"received_at":"2026-11-30T16:00:00.123456789Z","content_type":"application/json","payload_format":1,"response_topic":"reply/press-12",` +
		`"correlation_data":"Af8=","user_properties":[{"name":"fw","value":"4.11.2"},{"name":"fw","value":"second"},{"name":"a b.c","value":"odd"},` +
		`{"name":"traceparent","value":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}],"payload_encoding":"json","payload":`
	if got.value != want+string(telemetry().Payload)+"}" {
		t.Errorf("envelope\n%s, want\n%s", got.value, want)
	}
	if ct := got.header(HeaderContentType); ct != "application/json" {
		t.Errorf("content-type %s", ct)
	}
	f := func(payload, want string) {
		t.Helper()
		rec := &spool.Record{Topic: "a\"b", ClientID: "c\n", Payload: []byte(payload)}
		got := apply(t, m, rec).value
		if !json.Valid([]byte(got)) || !strings.HasSuffix(got, want) {
			t.Errorf("%q in %s, want %s at the end", payload, got, want)
		}
	}
	f("hello \"you\"", `"payload_encoding":"text","payload":"hello \"you\""}`)
	f("", `"payload_encoding":"text","payload":""}`)
	f("\xff\x00", `"payload_encoding":"base64","payload":"/wA="}`)
	f(" 1 ", `"payload_encoding":"json","payload": 1 }`)
	f(strings.Repeat("7", 300<<10), `7"}`) // larger than max_json: text
}

func TestCloudEvents(t *testing.T) {
	rec := telemetry()
	got := apply(t, newMapper(t, Config{Value: Value{Format: CloudEventsBinary, Type: "com.example.${topic[0]}"}}), rec)
	if got.value != string(rec.Payload) {
		t.Errorf("value %s", got.value)
	}
	for name, want := range map[string]string{
		"ce_specversion": "1.0", "ce_id": "gw-1/default/2/17", "ce_source": "/gw-1/press-12", "ce_type": "com.example.plant", "ce_subject": rec.Topic,
		"ce_time": "2026-11-30T16:00:00.123456789Z", "ce_partitionkey": "press-12", "content-type": "application/json",
		"ce_traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	} {
		if v := got.header(name); v != want {
			t.Errorf("binary: %s = %s, want %s", name, v, want)
		}
	}

	m := newMapper(t, Config{Value: Value{Format: CloudEventsStructured, Source: "//plant.example/${client_id}"}})
	got = apply(t, m, rec)
	const want = `{"specversion":"1.0","id":"gw-1/default/2/17","source":"//plant.example/press-12","type":"forebay.mqtt.publish",` +
		`"subject":"plant/7/press-12/temp","time":"2026-11-30T16:00:00.123456789Z","partitionkey":"press-12",` +
		`"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","datacontenttype":"application/json","data":`
	if got.value != want+string(rec.Payload)+"}" {
		t.Errorf("structured\n%s, want\n%s", got.value, want)
	}
	if !strings.Contains(got.headers, ";content-type=application/cloudevents+json; charset=UTF-8;") {
		t.Errorf("headers %s", got.headers)
	}
	f := func(contentType, payload, want string) {
		t.Helper()
		got := apply(t, m, &spool.Record{Topic: "a", ClientID: "ä/b", Payload: []byte(payload), Properties: &spool.Properties{ContentType: contentType}}).value
		if !json.Valid([]byte(got)) || !strings.HasSuffix(got, want) {
			t.Errorf("%q %q: %s, want %s at the end", contentType, payload, got, want)
		}
	}
	f("", `{"a":1}`, `"datacontenttype":"application/json","data":{"a":1}}`)
	f("", "plain", `"datacontenttype":"text/plain","data":"plain"}`)
	f("", "\xff", `"datacontenttype":"application/octet-stream","data_base64":"/w=="}`)
	f("text/csv", "1,2", `"datacontenttype":"text/csv","data":"1,2"}`)
	f("text/csv", "1", `"datacontenttype":"text/csv","data":"1"}`)
	f("application/cbor", "\xa1\x61a\x01", `"datacontenttype":"application/cbor","data_base64":"oWFhAQ=="}`)
	f("application/senml+json; v=1", `[1]`, `"datacontenttype":"application/senml+json; v=1","data":[1]}`)
	f("application/json", `{broken`, `"datacontenttype":"application/json","data_base64":"e2Jyb2tlbg=="}`)
	f("", "", `"partitionkey":"ä/b"}`)
}

func TestDeviceTime(t *testing.T) {
	f := func(payload, unit string, want time.Time, device string) {
		t.Helper()
		m := newMapper(t, Config{Timestamp: Timestamp{From: "${json.ts}", Unit: unit}})
		rec := telemetry()
		rec.Payload = []byte(payload)
		got := apply(t, m, rec)
		if !got.at.Equal(want) || got.header(HeaderReceivedAt) != "2026-11-30T16:00:00.123456789Z" || got.header(HeaderDeviceTime) != device {
			t.Errorf("%s: %v, received %s, device %s, want %v, device %s", payload, got.at, got.header(HeaderReceivedAt), got.header(HeaderDeviceTime), want, device)
		}
		if bad := m.Faults(BadTimestamp) == 1; bad != want.Equal(testTime) {
			t.Errorf("%s: counted %v", payload, bad)
		}
	}
	at := time.Date(2026, 11, 30, 15, 59, 59, 0, time.UTC)
	const none = "(none)"
	f(`{"ts":1796054399}`, "", at, none)
	f(`{"ts":1796054399000}`, "", at, none)
	f(`{"ts":1796054399000000}`, "", at, none)
	f(`{"ts":1796054399000000000}`, "", at, none)
	f(`{"ts":1796054399000}`, "ms", at, none)
	f(`{"ts":"1796054399000"}`, "ms", at, none)
	f(`{"ts":1796054399.25}`, "", at.Add(250*time.Millisecond), none)
	f(`{"ts":1.796054399e9}`, "", at, none)
	f(`{"ts":"2026-11-30T16:59:59+01:00"}`, "s", at, none)
	f(`{"ts":1796054399000}`, "s", testTime, "1796054399000") // far in the future
	f(`{"ts":0}`, "", testTime, "0")                          // a clock that was never set
	f(`{"ts":1796055300}`, "", testTime, "1796055300")        // 15 minutes ahead
	f(`{"ts":1795449599}`, "", testTime, "1795449599")        // a week and a second ago
	f(`{"ts":1e300}`, "", testTime, "1e300")
	f(`{"ts":"soon"}`, "", testTime, "soon")
	f(`{"ts":9223372036854775807}`, "s", testTime, "9223372036854775807")
	f(`{}`, "", testTime, none)
	f(`no json`, "", testTime, none)
}

func TestFaultsFollowThePolicy(t *testing.T) {
	f := func(cfg Config, payload string, action Action, reason Reason) {
		t.Helper()
		m := newMapper(t, cfg)
		rec := telemetry()
		rec.Payload = []byte(payload)
		s := m.NewScratch(time.Now)
		d := m.Decide(s, rec, false)
		if d.Action != action || d.Reason != reason {
			t.Errorf("%+v of %.40s: %v %v (%v), want %v %v", cfg, payload, d.Action, d.Reason, d.Err, action, reason)
		}
		if reason != None && reason != FilteredOut && m.Faults(reason) != 1 {
			t.Errorf("%+v of %.40s: %v counted %d times", cfg, payload, reason, m.Faults(reason))
		}
		if action == Leave && m.LeftOut(reason) != 1 || action != Leave && m.LeftOut(reason) != 0 {
			t.Errorf("%+v of %.40s: %d left out", cfg, payload, m.LeftOut(reason))
		}
		m.Decide(s, rec, true)
		if reason != None && m.Faults(reason) > 1 {
			t.Errorf("%+v: counted again", cfg)
		}
	}
	large := `{"x":"` + strings.Repeat("x", 300<<10) + `"}`
	for _, c := range []Config{{Key: "${json.a}"}, {Topic: "t.${json.a}"}, {Partition: "${json.a}"}, {Value: Value{Format: FromTemplate, Template: "${json.a}"}}} {
		f(c, `{"a":1}`, Send, None)
		f(c, `{}`, Refuse, MissingField)
		f(c, `{"a":null}`, Refuse, MissingField)
		f(c, `a`, Refuse, InvalidJSON)
		f(c, large, Refuse, JSONTooLarge)
		c.OnFault = Policy{MissingField: Skip, InvalidJSON: Skip}
		f(c, `{}`, Leave, MissingField)
		f(c, `a`, Leave, InvalidJSON)
		c.OnFault = Policy{MissingField: Empty, InvalidJSON: Missing}
		f(c, `{}`, Send, MissingField)
		f(c, `a`, Send, MissingField)
		c.OnFault = Policy{MissingField: Skip, InvalidJSON: Missing}
		f(c, `a`, Leave, MissingField)
		c.OnFault = Policy{MaxJSON: 1 << 20, MissingField: Skip}
		f(c, large, Leave, MissingField)
	}
	c := Config{Condition: "json.a > 1"}
	f(c, `{"a":2}`, Send, None)
	f(c, `{"a":1}`, Leave, FilteredOut)
	f(c, `{}`, Refuse, ConditionError)
	f(c, `{"a":"x"}`, Refuse, ConditionError)
	f(c, `a`, Refuse, InvalidJSON)
	c.OnFault = Policy{ConditionError: Pass}
	f(c, `{}`, Send, ConditionError)
	c.OnFault = Policy{ConditionError: Skip, InvalidJSON: Skip}
	f(c, `{}`, Leave, ConditionError)
	f(c, `a`, Leave, InvalidJSON)
	c.OnFault = Policy{ConditionError: Skip, InvalidJSON: Missing}
	f(c, `a`, Leave, ConditionError)
	c.Condition = "has(json.a) && json.a > 1"
	f(c, `a`, Leave, FilteredOut)
	c.Condition = "topic == 'x' || json.a > 1"
	f(c, `{"a":2}`, Send, None)
	c.Condition = "json.a" // neither true nor false
	f(c, `{"a":2}`, Leave, ConditionError)
	f(c, `{"a":true}`, Send, None)
	c = Config{Choose: []Choice{{When: "json.a > 1", Topic: "big"}}}
	f(c, `{}`, Refuse, ConditionError)
	c.OnFault = Policy{ConditionError: Pass}
	f(c, `{}`, Send, ConditionError)
}

func TestChooseTakesTheFirstThatHolds(t *testing.T) {
	m := newMapper(t, Config{Topic: "rest", Choose: []Choice{
		{When: "has(json.alarm)", Topic: "alarms"},
		{When: "levels[0] == 'plant'", Topic: "plant.${topic[1]}"},
	}})
	f := func(topic, payload, want string) {
		t.Helper()
		if got := apply(t, m, &spool.Record{Topic: topic, Payload: []byte(payload)}).Topic; got != want {
			t.Errorf("%s %s: %s, want %s", topic, payload, got, want)
		}
	}
	f("plant/7", `{"alarm":1}`, "alarms")
	f("plant/7", `{}`, "plant.7")
	f("lab/7", `{}`, "rest")
}

func TestSampleIsTheSameEveryTime(t *testing.T) {
	const n = 20_000
	f := func(s Sample, rec func(i int) *spool.Record) map[string]int {
		t.Helper()
		m, again := newMapper(t, Config{Sample: s}), newMapper(t, Config{Sample: s})
		sent, byClient := 0, make(map[string]int)
		for i := range n {
			a, b := apply(t, m, rec(i)).Action, again.Decide(again.NewScratch(time.Now), rec(i), true).Action
			if a != b {
				t.Fatalf("%v: record %d is %v and %v", s, i, a, b)
			}
			if a == Send {
				sent++
				byClient[rec(i).ClientID]++
			}
		}
		if want := s.Rate * n; float64(sent) < 0.85*want || float64(sent) > 1.15*want {
			t.Errorf("%v: %d of %d", s, sent, n)
		}
		if got := m.LeftOut(SampledOut); got != uint64(n-sent) {
			t.Errorf("%v: %d counted, want %d", s, got, n-sent)
		}
		return byClient
	}
	rec := func(i int) *spool.Record {
		return &spool.Record{Topic: "a", ClientID: fmt.Sprintf("device-%04d", i%2000), Offset: spool.Offset(i)}
	}
	f(Sample{Rate: 0.1}, rec)
	f(Sample{Rate: 0.01}, rec)
	for client, k := range f(Sample{Rate: 0.3, By: ByKey}, rec) {
		if k != 10 {
			t.Errorf("by key: %s has %d of 10", client, k)
		}
	}
}

func TestNewNamesEveryFault(t *testing.T) {
	f := func(cfg Config, want ...string) {
		t.Helper()
		if cfg.Topic == "" {
			cfg.Topic = "t"
		}
		_, err := New(cfg, testWho)
		if err == nil {
			t.Fatalf("%+v: no fault, want %q", cfg, want)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v, want %q in it", err, w)
			}
		}
	}
	f(Config{Key: "device"}, `key: "device" is none of client_id, topic, topic[N], none, or a template`)
	f(Config{Key: "${"}, `key: position 1: unknown field ""`)
	f(Config{Key: "$${x}"}, "key: ", "has no field")
	f(Config{Key: "topic[x]"}, `key: "x" in topic[x] is not a level`)
	f(Config{Headers: []string{"a", "mqtt.x=1", "b=${x}"}}, `headers[0]: "a" is not name=template`, "headers[1]: the header mqtt.x is the gateway's own",
		`headers[2]: behind b=: position 1: unknown field "x"`)
	f(Config{Headers: []string{"ce_id=1"}, Value: Value{Format: CloudEventsBinary}}, "headers[0]: the header ce_id")
	f(Config{Partition: "${json.a"}, "partition: position 1: ${ has no closing brace")
	f(Config{Condition: "json.a >"}, "condition: line 1, column 9: ")
	f(Config{Condition: "qos > 'a'"}, "condition: line 1, column 5: found no matching overload")
	f(Config{Condition: "true &&\n  colour == 'x'"}, "condition: line 2, column 3: undeclared reference to 'colour'")
	f(Config{Condition: "qos + 1"}, "condition: line 1, column 1: the expression is of type int, want true or false")
	f(Config{Condition: "topic == '" + strings.Repeat("x", 9000) + "'"}, "bytes, at most 8192")
	f(Config{Choose: []Choice{{When: "true", Topic: "a/b"}, {}}}, "choose[0].topic: position 2", "choose[1].when: ", "choose[1].topic: empty")
	f(Config{Value: Value{Format: "xml"}}, `value.format: "xml" is none of raw, envelope`)
	f(Config{Value: Value{Format: FromTemplate}}, "value.template: empty")
	f(Config{Value: Value{Template: "x"}}, "value.template: format is raw")
	f(Config{Value: Value{Type: "x"}}, "value.type: format is raw")
	f(Config{Value: Value{EmptyPayload: Tombstone}, Key: KeyNone}, "value.empty_payload: ")
	f(Config{Timestamp: Timestamp{Unit: "h", MaxPast: -1}}, `timestamp.unit: "h"`, "timestamp.max_past: ")
	f(Config{Sample: Sample{Rate: 2, By: "x"}}, "sample.rate: 2 is not", "sample.by: ")
	f(Config{OnFault: Policy{MissingField: "x", InvalidJSON: "x", ConditionError: "x", MaxJSON: 1 << 30}}, "on_fault.missing_field: ", "on_fault.invalid_json: ",
		"on_fault.condition_error: ", "on_fault.max_json: ")
}

// FuzzTemplate: whatever is accepted shows itself in text that is read again, and renders without a panic.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		"a${topic}b", "${topic[1]}.${client_id}", `${user["a\"b"]|x}`, `${json.a["b.c"][3].d:json|null}`, "$${x}", "${", "${json.", "${topic[", "${user[\"", "${payload:base64}",
	} {
		f.Add(s)
	}
	rec := telemetry()
	f.Fuzz(func(t *testing.T, text string) {
		tmpl, err := parseTemplate(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "position ") && len(text) <= maxTemplate {
				t.Fatalf("%q: %v names no position", text, err)
			}
			return
		}
		m := &Mapper{who: testWho, maxJSON: 1 << 20, cfg: Config{}.WithDefaults()}
		s := m.NewScratch(time.Now)
		s.begin(rec)
		first, _, err := tmpl.appendTo(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range tmpl.parts {
			if p.field == nil {
				continue
			}
			again, n, err := parseField(p.field.String())
			if err != nil || n != len(p.field.String()) || again.String() != p.field.String() {
				t.Fatalf("%q: field %v is read again as %v, %v", text, p.field, again, err)
			}
		}
		if tt, err := parseTopic(text); err == nil {
			name, _, err := tt.render(s)
			if err != nil || !kafka.ValidTopic(name) {
				t.Fatalf("%q makes the topic %q: %v", text, name, err)
			}
		}
		_ = first
	})
}

// FuzzTopicNames: two pairs of values never share a name, nor collide as Kafka sees it.
func FuzzTopicNames(f *testing.F) {
	f.Add("a/b", "a.b", "c", "d")
	f.Add("a_b", "a/b", "", "_")
	f.Add("overflow", "a-0123456789abcdef", "x", "x")
	var templates []*topicTemplate
	for _, text := range []string{"${topic}", "x.${topic[0]}", "${client_id}", "${topic[0]}.${topic[1]}", "${client_id}_${topic}"} {
		tt, err := parseTopic(text)
		if err != nil {
			f.Fatal(err)
		}
		templates = append(templates, tt)
	}
	f.Fuzz(func(t *testing.T, topicA, topicB, clientA, clientB string) {
		for i, tt := range templates {
			values := func(topic, client string) string {
				level := func(n int) string {
					l, ok := topicLevel(topic, n)
					return fmt.Sprintf("%q %v", l, ok)
				}
				return []string{topic, level(0), client, level(0) + level(1), fmt.Sprintf("%q %q", client, topic)}[i]
			}
			a, b := rendered(tt, topicA, clientA), rendered(tt, topicB, clientB)
			if !kafka.ValidTopic(a) || a == tt.over {
				t.Fatalf("%s of %q %q = %q", tt.text, topicA, clientA, a)
			}
			same := strings.ReplaceAll(a, ".", "_") == strings.ReplaceAll(b, ".", "_")
			if want := values(topicA, clientA) == values(topicB, clientB); same != want {
				t.Fatalf("%s: %q %q makes %s and %q %q makes %s", tt.text, topicA, clientA, a, topicB, clientB, b)
			}
		}
	})
}

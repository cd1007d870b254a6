package mapping

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/forebay-gateway/forebay/spool"
)

var update = flag.Bool("update", false, "write testdata/golden.txt anew")

// payloads are what devices send: JSON, CBOR, a Sparkplug B metric (protobuf), text, nothing, and 256 KiB of JSON and of bytes.
func payloads() map[string]*spool.Record {
	large := []byte(`{"ts":1796054399000,"site":"north","wave":[`)
	for i := 0; len(large) < 256<<10-8; i++ {
		large = append(strconv.AppendInt(large, int64(i%1000), 10), ',')
	}
	large = append(large, "0]}"...)
	binary := make([]byte, 256<<10)
	for i := range binary {
		binary[i] = byte(i * 7)
	}
	record := func(topic, contentType string, payload []byte) *spool.Record {
		return &spool.Record{
			Topic: topic, ClientID: "press-12", QoS: 1, ReceivedAt: testTime.UnixNano(), Partition: 2, Offset: 17, Payload: payload,
			Properties: &spool.Properties{ContentType: contentType},
		}
	}
	return map[string]*spool.Record{
		"1 json": telemetry(),
		"2 cbor": record("plant/7/press-12/temp", "application/cbor", // {"ts": 1796054399000, "temp": 36.5, "site": "north"}
			[]byte("\xa3btts\x1b\x00\x00\x01\xa2\x2dN\xe0\x18dtemp\xf9\x50\x90dsiteenorth")),
		"3 sparkplug": record("spBv1.0/plant/DDATA/edge 7/press_12", "", // timestamp, one metric with name, alias, type Double and value, seq
			[]byte("\x08\x98\xc1\xb8\xd1\xa24\x12\x1a\x0a\x0btemperature\x10\x05\x20\x0ai\x00\x00\x00\x00\x00\x40\x42\x40\x18\xc8\x01")),
		"4 text":       record("plant/7/Hütte/log", "text/plain", []byte("valve \"3\" öffnet\n")),
		"5 empty":      record("plant/7/press-12/temp", "", nil),
		"6 large json": record("plant/7/press-12/wave", "application/json", large),
		"7 large":      record("plant/7/press-12/image", "application/octet-stream", binary),
	}
}

// goldenConfigs are every form of template and value, and every policy.
func goldenConfigs() map[string]Config {
	policy := func(missing, invalid, condition string) Policy {
		return Policy{MissingField: missing, InvalidJSON: invalid, ConditionError: condition}
	}
	return map[string]Config{
		"01 raw":                   {},
		"02 envelope":              {Value: Value{Format: Envelope}},
		"03 cloudevents_binary":    {Value: Value{Format: CloudEventsBinary}},
		"04 events of templates":   {Value: Value{Format: CloudEventsStructured, Type: "t.${topic[0]}", Source: "/${client_id}", Subject: "${topic}"}},
		"05 tombstone":             {Value: Value{Format: CloudEventsStructured, EmptyPayload: Tombstone}},
		"06 drop":                  {Value: Value{EmptyPayload: Drop}},
		"07 topic of levels":       {Topic: "t.${topic[1]}.${topic[2]}"},
		"08 whole topic":           {Topic: "${topic}", Key: KeyTopic},
		"09 key of a level":        {Topic: "t_${topic[3]|none}", Key: "topic[2]"},
		"10 key of json":           {Key: "${json.site.name|nowhere}/${qos}", OnFault: policy(Empty, Missing, Pass)},
		"11 no key":                {Key: KeyNone, Partition: "${json.serial|7}", OnFault: policy(Empty, Missing, Pass)},
		"12 missing, dead letter":  {Topic: "t.${json.site}", OnFault: policy(DeadLetter, DeadLetter, DeadLetter)},
		"13 missing, skip":         {Topic: "t.${json.site}", OnFault: policy(Skip, Skip, Skip)},
		"14 missing, empty":        {Topic: "t.${json.site}", OnFault: policy(Empty, Missing, Pass)},
		"15 condition":             {Condition: `json.temp > 20.0 && json.serial == 9007199254740993`, OnFault: policy(DeadLetter, Skip, Skip)},
		"16 condition lets pass":   {Condition: `json.temp > 20.0`, OnFault: policy(DeadLetter, Missing, Pass)},
		"17 condition of bytes":    {Condition: `payload_size > 0 && payload != b"x" && levels.size() > 3`, OnFault: policy(DeadLetter, DeadLetter, Skip)},
		"18 choose":                {Topic: "rest", Choose: []Choice{{When: `topic.startsWith("spBv1.0/")`, Topic: "sparkplug.${topic[2]}"}, {When: "payload_size > 100000", Topic: "large"}}},
		"19 time":                  {Timestamp: Timestamp{From: "${json.ts}", Unit: "ms"}, OnFault: policy(Empty, Missing, Pass)},
		"20 headers":               {Headers: []string{"line=${topic[1]}", "fw=${user.fw|unknown}", "b=${correlation_data:base64}", "j=${json.site:json}", "gone=${user.gone}"}},
		"21 value of a template":   {Value: Value{Format: FromTemplate, Template: `{"d":${client_id:json},"t":${topic[3]:json},"p":"${payload:base64|}","n":${json.temp:json|0}}`}, OnFault: policy(Empty, Missing, Pass)},
		"22 of the gateway itself": {Value: Value{Format: FromTemplate, Template: "${gateway} ${stream} ${id} ${received_at} ${received_ms} $${x} ${retain} ${user_name|-} ${response_topic|-} ${payload_format|-} ${content_type|-}"}},
	}
}

// brief is a value for the eye; a large one as its hash.
func brief(v string) string {
	if len(v) > 700 {
		return fmt.Sprintf("%d bytes, sha256 %x", len(v), sha256.Sum256([]byte(v)))
	}
	return strconv.QuoteToASCII(v)
}

func TestGoldenMappings(t *testing.T) {
	records, configs := payloads(), goldenConfigs()
	var b bytes.Buffer
	for _, name := range sorted(configs) {
		cfg := configs[name]
		if cfg.Topic == "" {
			cfg.Topic = "t"
		}
		m, err := New(cfg, testWho)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, of := range sorted(records) {
			got := apply(t, m, records[of])
			fmt.Fprintf(&b, "== %s: %s\n", name, of)
			if got.Reason != None {
				fmt.Fprintf(&b, "reason %v: %v\n", got.Reason, got.Err)
			}
			if got.Action != Send {
				fmt.Fprintf(&b, "%s\n", map[Action]string{Leave: "left out", Refuse: "dead letter"}[got.Action])
				continue
			}
			key := brief(got.key)
			if got.NoKey {
				key = "none"
			}
			value := brief(got.value)
			if got.null {
				value = "null"
			}
			topic := m.Place(m.NewScratch(time.Now), records[of]).Topic // a plain mapping has none before
			fmt.Fprintf(&b, "topic %s\nkey %s, partition %d\ntime %s\nheaders %s\nvalue %s\n", topic, key, got.Decision.Partition, got.at.UTC().Format(time.RFC3339Nano), brief(got.headers), value)
			if f := cfg.Value.Format; (f == Envelope || f == CloudEventsStructured || name == "21 value of a template" && got.value != "") && !got.null && !json.Valid([]byte(got.value)) {
				t.Errorf("%s: %s: the value is not JSON: %s", name, of, brief(got.value))
			}
		}
	}
	const file = "testdata/golden.txt"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wants := strings.Split(string(want), "== ")
	for i, got := range strings.Split(b.String(), "== ") {
		if i >= len(wants) || got != wants[i] {
			w := ""
			if i < len(wants) {
				w = wants[i]
			}
			t.Errorf("got\n%s\nwant\n%s", got, w)
		}
	}
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// What JSON is, and what a device may call it, at the edges.
func TestEdgesOfJSON(t *testing.T) {
	f := func(payload, key string, reason Reason) {
		t.Helper()
		m := newMapper(t, Config{Key: "${json.a}"})
		got := apply(t, m, &spool.Record{Topic: "t", ClientID: "c", Payload: []byte(payload)})
		if got.Reason != reason || reason == None && got.key != key {
			t.Errorf("%.80q: %v %v, key %.80q; want %v, %.80q", payload, got.Reason, got.Err, got.key, reason, key)
		}
		var v any
		if valid := json.Unmarshal([]byte(payload), &v) == nil; valid && utf8.ValidString(payload) && reason == InvalidJSON && strings.Count(payload, "[") < maxDepth {
			t.Errorf("%.80q is JSON", payload)
		}
	}
	f(`{"a":NaN}`, "", InvalidJSON)
	f(`{"a":Infinity}`, "", InvalidJSON)
	f(`{"a":-Infinity}`, "", InvalidJSON)
	f(`{"a":nan}`, "", InvalidJSON)
	f(`{"a":1e400}`, "1e400", None) // as the device wrote it
	f(`{"a":-0}`, "-0", None)
	f(`{"a":9007199254740993}`, "9007199254740993", None)
	f(`{"a":18446744073709551616}`, "18446744073709551616", None)
	f(`{"a":01}`, "", InvalidJSON)
	f(`{"a":1.}`, "", InvalidJSON)
	f(`{"a":+1}`, "", InvalidJSON)
	f(`{"a":0x10}`, "", InvalidJSON)
	f(`{"a":1,"a":2}`, "2", None)
	f(`{"a":1,"\u0061":3}`, "3", None) // the same name
	f(`{"a":1,"a":null}`, "", MissingField)
	f(`{"a":1,}`, "", InvalidJSON)
	f(`{'a':1}`, "", InvalidJSON)
	f("{\"a\":\"\xff\"}", "", InvalidJSON)
	f("{\"a\":\"\xed\xa0\x80\"}", "", InvalidJSON) // half of a pair, as UTF-8
	f(`{"a":"\ud800"}`, "\ufffd", None)            // half of a pair, escaped: as other readers of JSON have it
	f(`{"a":"\u0000"}`, "\x00", None)
	f("{\"a\":\"x\ny\"}", "", InvalidJSON)
	f("\ufeff{\"a\":1}", "", InvalidJSON) // a byte order mark
	f(`{"a":1}{"a":2}`, "", InvalidJSON)
	f(`{"a":1} `+"\x00", "", InvalidJSON)
	f(``, "", InvalidJSON)
	f(`{"a":`+strings.Repeat("[", maxDepth)+strings.Repeat("]", maxDepth)+`}`, strings.Repeat("[", maxDepth)+strings.Repeat("]", maxDepth), None)
	f(`{"a":`+strings.Repeat("[", maxDepth+1)+strings.Repeat("]", maxDepth+1)+`}`, "", InvalidJSON)
	f(strings.Repeat("[", 100_000), "", InvalidJSON)
	f(strings.Repeat(`{"a":`, 40_000), "", InvalidJSON)
	f(`["a"]`, "", MissingField)
	f(`"a"`, "", MissingField)
	f(`null`, "", MissingField)

	// Whole numbers beyond 2^53 in conditions, partitions and times.
	holds := func(condition, payload string, want bool) {
		t.Helper()
		m := newMapper(t, Config{Condition: condition})
		got := apply(t, m, &spool.Record{Topic: "t", ClientID: "c", Payload: []byte(payload)})
		if got.Reason == ConditionError || got.Action == Send != want {
			t.Errorf("%s of %s: %v %v, want %t", condition, payload, got.Reason, got.Err, want)
		}
	}
	holds("json.a == 9007199254740993", `{"a":9007199254740993}`, true)
	holds("json.a == 9007199254740993", `{"a":9007199254740992}`, false)
	holds("json.a == -9007199254740993", `{"a":-9007199254740993}`, true)
	holds("json.a == 9223372036854775807", `{"a":9223372036854775807}`, true)
	holds("json.a == 9223372036854775807", `{"a":9223372036854775806}`, false)
	holds("json.a == 18446744073709551615u", `{"a":18446744073709551615}`, true)
	holds("json.a > 9223372036854775807", `{"a":18446744073709551615}`, true)
	holds("json.a > 1", `{"a":1e400}`, true)
	holds("json.a < 0", `{"a":-1e400}`, true)
	holds("json.a == json.a", `{"a":1e400}`, true)
	holds("json.a == 1", `{"a":1,"a":2}`, false)
	holds("json.a == 2 && json.size() == 1", `{"a":1,"a":2}`, true)
	holds("json == {'a': 2.0}", `{"a":1,"a":2}`, true)
	holds("json.all(k, json[k] == 2)", `{"a":1,"a":2}`, true)
}

// FuzzCondition: whatever is compiled is asked without a panic, of any payload, and twice with the same answer.
func FuzzCondition(f *testing.F) {
	for _, c := range []string{
		"json.temp > 30.0 && levels[0] == 'plant'", "json.a.exists(x, x == json.b)", "has(json.a) || user.fw == '4'", "json.?a.orValue(0.0) > 1.0", "payload == b'x'",
		"json.a[json.b] == json.c", "string(json.a).matches(json.b)", "json.map(k, json[k]).size() > 1", "timestamp(json.a) > received_at", "levels + ['a'] == json.l",
		"json.a / json.b == 1", "dyn(json.a) in json.b", "type(json.a) == double", "user == {'a': 'b'}", "size(levels) == size(json)",
	} {
		f.Add(c, []byte(`{"a":[1,"x",{"b":null}],"b":2,"c":"x","l":["a"],"temp":31}`))
	}
	f.Fuzz(func(t *testing.T, text string, payload []byte) {
		m, err := New(Config{Topic: "t", Condition: text}, testWho)
		if err != nil {
			return
		}
		rec := telemetry()
		rec.Payload = payload
		s := m.NewScratch(func() time.Time { return testTime })
		first := m.Decide(s, rec, false)
		if again := m.Decide(s, rec, true); again.Action != first.Action || again.Reason != first.Reason {
			t.Fatalf("%q of %q: %v %v, then %v %v", text, payload, first.Action, first.Reason, again.Action, again.Reason)
		}
	})
}

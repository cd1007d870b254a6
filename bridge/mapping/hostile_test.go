package mapping

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/spool"
)

// Conditions as operators write them, over payloads as a device with bad intent does: none may hold the route for long, whatever its
// cost is thought to be.
func TestHostilePayloadsCostLittle(t *testing.T) {
	list := func(n int, item string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + "]"
	}
	names := func(n int) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(`"`)
			for x := i; x > 0; x /= 26 {
				b.WriteByte(byte('a' + x%26))
			}
			b.WriteString(`":1`)
		}
		return "{" + b.String() + "}"
	}
	deep := strings.Repeat("[", 120) + list(60_000, "1") + strings.Repeat("]", 120)
	f := func(condition, payload string) {
		t.Helper()
		m := newMapper(t, Config{Condition: condition})
		rec := &spool.Record{Topic: "a/b", ClientID: "c", Payload: []byte(payload)}
		s := m.NewScratch(time.Now)
		began := busy(t)
		d := m.Decide(s, rec, false)
		took := busy(t) - began
		if d.Reason == JSONTooLarge && !strings.HasPrefix(payload, "7") {
			t.Errorf("%s: a payload of %d bytes is not looked into", condition, len(payload))
		}
		if most := 3 * time.Second; took > most {
			t.Errorf("%s: %v, want some milliseconds, with the race detector at most %v", condition, took, most)
		}
	}
	f("json.ids.all(i, has(json.known.zz) || true)", `{"ids":`+list(20_000, `"zz"`)+`,"known":`+names(20_000)+`}`)
	f("json.ids.all(i, i in json.known)", `{"ids":`+list(20_000, `"aa"`)+`,"known":`+names(20_000)+`}`)
	f("json.ids.all(i, i in json.known || true)", `{"ids":`+list(30_000, `"z"`)+`,"known":`+list(25_000, `"y"`)+`}`)
	f("json.ids.all(i, json.known[i] == 1)", `{"ids":`+list(20_000, "29999")+`,"known":`+list(30_000, "1")+`}`)
	f("json.ids.all(i, size(json.name) > 0)", `{"ids":`+list(60_000, "1")+`,"name":"`+strings.Repeat("x", 120_000)+`"}`)
	f("json.ids.all(i, json.name == json.name)", `{"ids":`+list(60_000, "1")+`,"name":"`+strings.Repeat("x", 120_000)+`"}`)
	f(`json.ids.all(i, json.name == "x")`, `{"ids":`+list(60_000, "1")+`,"name":"`+strings.Repeat("\\u0041", 20_000)+`"}`)
	f("json.ids.all(i, json.a == json.a)", `{"ids":`+list(60_000, "1")+`,"a":[`+list(60_000, "1")+`]}`)
	f("json.a == json.a", `{"a":`+deep+`}`)
	f("json.a == json.b", `{"a":`+deep+`,"b":`+deep+`}`)
	f("json.all(k, json[k] == 1)", names(30_000))
	f("json.a.exists(x, json.a.exists(y, x + y == 3.0))", `{"a":`+list(100_000, "1")+`}`)
	f("json.a.map(x, json.a.map(y, x)).size() > 0", `{"a":`+list(100_000, "1")+`}`)
	f(`json.a.matches("(a+)+$")`, `{"a":"`+strings.Repeat("a", 200_000)+`b"}`)
	f(`"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab".matches(json.re)`, `{"re":"`+strings.Repeat("(a{0,900})", 20_000)+`"}`)
	f(`"b".matches(json.re)`, `{"re":"`+strings.Repeat("(a{0,900})", 3)+`"}`)
	f(`json.a.contains(json.b)`, `{"a":"`+strings.Repeat("a", 100_000)+`b","b":"`+strings.Repeat("a", 50_000)+`c"}`)
	f(`json.a.exists(x, x.contains("zz"))`, `{"a":`+list(50, `"`+strings.Repeat("z ", 1000)+`"`)+`}`)
	f(`(json.a + json.a + json.a + json.a).size() > 1`, `{"a":"`+strings.Repeat("a", 200_000)+`"}`)
	f(`json.a.b.c == 1`, strings.Repeat(`{"a":`, 200)+"1"+strings.Repeat("}", 200))
	f(`json.a == 1`, strings.Repeat("7", 1<<20))
	f(`timestamp(json.t) > timestamp("1601-01-01T00:00:00Z")`, `{"t":"9999-12-31T23:59:59Z"}`)
	f(`duration(json.t) > duration("1s")`, `{"t":"99999999999999999h"}`)
	f(`int(json.t) > 1`, `{"t":1e400}`)
	f(`int(json.t) > 1`, `{"t":"NaN"}`)
	f(`double(json.t) > 1.0`, `{"t":"NaN"}`)
	f(`json.t % 2 == 0`, `{"t":2}`)
	f(`json.t / 0 == 0`, `{"t":9007199254740993}`)
	f(`json.t - 1 == 0`, `{"t":-9223372036854775808}`)
}

func TestAnEvaluationThatIsTooCostlyIsAFault(t *testing.T) {
	many := "[" + strings.Repeat("1,", 100_000) + "1]"
	f := func(condition, payload string) {
		t.Helper()
		m := newMapper(t, Config{Condition: condition, OnFault: Policy{ConditionError: Skip}})
		s := m.NewScratch(time.Now)
		d := m.Decide(s, &spool.Record{Topic: "a", Payload: []byte(payload)}, false)
		if d.Reason != ConditionError || d.Action != Leave || !strings.Contains(d.Err.Error(), "cost") {
			t.Errorf("%s: %v %v", condition, d.Reason, d.Err)
		}
		if d := m.Decide(s, &spool.Record{Topic: "a", Payload: []byte(`{"a":[1],"b":1}`)}, false); d.Action != Send {
			t.Errorf("%s: the next record pays for the one before: %v %v", condition, d.Reason, d.Err)
		}
	}
	f("json.a.all(x, json.a.exists(y, y == 1) || true) || true", `{"a":`+many+`}`) // || true does not hide it
	f("json.a == json.a || json.b == json.b", `{"a":[`+many[1:120_001]+`1],"b":[`+many[1:120_001]+`1]}`)
}

func TestJSONOfTooManyValuesIsTooLarge(t *testing.T) {
	m := newMapper(t, Config{Key: "${json[0]}", OnFault: Policy{MaxJSON: 16 << 20}})
	d := m.Decide(m.NewScratch(time.Now), &spool.Record{Topic: "a", Payload: []byte("[" + strings.Repeat("1,", maxNodes) + "1]")}, false)
	if d.Reason != JSONTooLarge || d.Action != Refuse {
		t.Errorf("%v: %v", d.Reason, d.Err)
	}
}

// Two faults that the policy lets pass count both, also when the sample leaves the record out behind them.
func TestEveryFaultOfARecordIsCounted(t *testing.T) {
	m := newMapper(t, Config{
		Condition: "json.a > 1", Key: "${json.k}", Sample: Sample{Rate: 1e-12}, OnFault: Policy{MissingField: Empty, ConditionError: Pass},
	})
	d := m.Decide(m.NewScratch(time.Now), &spool.Record{Topic: "a", Payload: []byte("{}")}, false)
	if d.Action != Leave || d.Reason != SampledOut || m.LeftOut(SampledOut) != 1 {
		t.Errorf("%v %v, %d counted", d.Action, d.Reason, m.LeftOut(SampledOut))
	}
	if c, k := m.Faults(ConditionError), m.Faults(MissingField); c != 1 || k != 1 {
		t.Errorf("%d errors of the condition and %d missing fields, want 1 each", c, k)
	}
}

// busy is the processor time of this process: other programs on the machine do not count.
func busy(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

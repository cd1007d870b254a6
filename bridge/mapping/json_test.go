package mapping

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

var jsonSeeds = []string{
	`{"temp":21.50,"serial":9007199254740993,"ok":true,"tags":["a","b"],"none":null,"deep":{"x":[{"y":1}]}}`,
	`[]`, `{}`, `""`, `0`, `-0.5e+10`, `null`, ` true `, `{"a":1,"a":2}`, `"\u00e9\n\ud83d\ude00"`, `"\ud800"`, `{"\u0061":1}`,
	`01`, `1.`, `.5`, `-`, `1e`, `{"a"}`, `{"a":}`, `[1,]`, `[1 2]`, `{"a":1,}`, `nul`, `"`, `"\x"`, `"\u12"`, "\"\x01\"", "\"\xff\"", `tru`, `1 1`, ``,
	"\ufeff1", strings.Repeat("[", 200) + strings.Repeat("]", 200),
}

// FuzzJSON holds the parser equal to the standard library's, which takes bytes that are not UTF-8 and ten thousand levels.
func FuzzJSON(f *testing.F) {
	for _, s := range jsonSeeds {
		f.Add([]byte(s))
	}
	var d jsonDoc
	f.Fuzz(func(t *testing.T, text []byte) {
		err := d.parse(text)
		want := json.Valid(text) && utf8.Valid(text)
		if deep := err != nil && strings.Contains(err.Error(), "inside of each other"); !deep && (err == nil) != want {
			t.Fatalf("%q: %v, and the standard library says %v", text, err, want)
		}
		if err != nil {
			return
		}
		var v any
		dec := json.NewDecoder(strings.NewReader(string(text)))
		dec.UseNumber()
		if err := dec.Decode(&v); err != nil {
			t.Fatal(err)
		}
		sameJSON(t, d.root(), v)
	})
}

// sameJSON compares a value with what the standard library made of it.
func sameJSON(t *testing.T, n *jsonNode, v any) {
	t.Helper()
	switch v := v.(type) {
	case nil:
		if n.kind != jsonNull {
			t.Fatalf("%s is not null", n.raw())
		}
	case bool:
		if n.kind != jsonBool || (string(n.raw()) == "true") != v {
			t.Fatalf("%s is not %v", n.raw(), v)
		}
	case json.Number:
		if n.kind != jsonNumber || string(n.raw()) != v.String() {
			t.Fatalf("%s is not %v", n.raw(), v)
		}
	case string:
		if n.kind != jsonString || n.str() != v {
			t.Fatalf("%s is not %q", n.raw(), v)
		}
	case []any:
		if n.kind != jsonArray || int(n.count) != len(v) || n.at(len(v)) != nil {
			t.Fatalf("%s has not %d values", n.raw(), len(v))
		}
		for i := range v {
			sameJSON(t, n.at(i), v[i])
		}
	case map[string]any:
		if n.kind != jsonObject || int(n.count) < len(v) {
			t.Fatalf("%s has not %d members", n.raw(), len(v))
		}
		for name := range v {
			m := n.member(name)
			if m == nil {
				t.Fatalf("%s has no member %q", n.raw(), name)
			}
			sameJSON(t, m, v[name])
		}
	}
}

func TestJSONFaultsNameTheByte(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		var d jsonDoc
		if err := d.parse([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	f(`{"a":1,}`, "byte 7: a name in quotes has to be here")
	f(`[1 2]`, "byte 3: a comma or ] has to be here")
	f(`{"a":01}`, "byte 5: not a number")
	f(`{"a":"x`, "byte 5: a string without an end")
	f(``, "byte 0: the text ends where a value has to be")
	f(`1 2`, "byte 2: something follows the value")
	f(strings.Repeat("[", 130)+strings.Repeat("]", 130), "byte 129: more than 128 values inside of each other")
	var d jsonDoc
	if err := d.parse([]byte(strings.Repeat("[", 129) + strings.Repeat("]", 129))); err != nil {
		t.Errorf("just not too deep: %v", err)
	}
}

package export

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/forebay-gateway/forebay/spool"
)

func records(n int) []spool.Record {
	var recs []spool.Record
	for i := range n {
		r := spool.Record{
			Topic: fmt.Sprintf("plant/%d/temp", i%3), ClientID: fmt.Sprintf("device-%d", i%5), QoS: uint8(i % 3), Offset: spool.Offset(i),
			ReceivedAt: time.Date(2031, 5, 1, 12, 0, i, 1000, time.UTC).UnixNano(), Payload: fmt.Appendf(nil, `{"temperature":%d.5,"n":%d,"ok":%v,"motor":{"state":"on \"1\""}}`, i, i, i%2 == 0),
		}
		if i%4 == 1 {
			r.Payload, r.ExpiresAt = []byte{0xff, 0, 1}, r.ReceivedAt+int64(time.Hour)
			r.Properties = &spool.Properties{ContentType: "application/x", ResponseTopic: "back", CorrelationData: []byte{1, 2}, User: []spool.UserProperty{{Name: "a", Value: "1"}, {Name: "a", Value: "2"}}}
		}
		if i%4 == 2 {
			r.Payload, r.UserName = nil, "meier"
		}
		recs = append(recs, r)
	}
	return recs
}

func fieldsOf(t *testing.T, specs ...string) []Field {
	t.Helper()
	fields, err := ParseFields(specs)
	if err != nil {
		t.Fatal(err)
	}
	return fields
}

func TestParquetHasWhatWasWritten(t *testing.T) {
	recs := records(1000)
	var b bytes.Buffer
	p := NewParquet(&b, "default", fieldsOf(t, "temperature:double", "n:long", "ok:boolean", "motor.state"))
	for i := range recs {
		if err := p.Write(3, &recs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	type flat struct {
		Time        time.Time `parquet:"time,timestamp(microsecond)"`
		Partition   int32     `parquet:"partition"`
		Offset      int64     `parquet:"offset"`
		Client      string    `parquet:"client"`
		Topic       string    `parquet:"topic"`
		Payload     []byte    `parquet:"payload"`
		Temperature *float64  `parquet:"json_temperature,optional"`
		State       *string   `parquet:"json_motor_state,optional"`
	}
	got, err := parquet.Read[flat](bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil || len(got) != len(recs) {
		t.Fatalf("%d rows: %v", len(got), err)
	}
	for i, g := range got {
		r := recs[i]
		if g.Time.UnixNano() != r.ReceivedAt || g.Offset != int64(i) || g.Partition != 3 || g.Client != r.ClientID || g.Topic != r.Topic || !bytes.Equal(g.Payload, r.Payload) {
			t.Fatalf("row %d: %+v", i, g)
		}
		isJSON := bytes.HasPrefix(r.Payload, []byte("{"))
		if (g.Temperature != nil) != isJSON || isJSON && (*g.Temperature != float64(i)+0.5 || *g.State != `on "1"`) {
			t.Fatalf("row %d: fields %v %v", i, g.Temperature, g.State)
		}
	}
}

func TestLinesAreJSON(t *testing.T) {
	recs := records(8)
	var b bytes.Buffer
	l := NewLines(&b, "default", fieldsOf(t, "n:long"))
	for i := range recs {
		if err := l.Write(0, &recs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(b.String()) {
		var v struct {
			Topic  string `json:"topic"`
			Fields struct {
				N *int `json:"json_n"`
			} `json:"fields"`
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil || v.Topic != recs[n].Topic {
			t.Fatalf("%s: %v", line, err)
		}
		if recs[n].Payload != nil && recs[n].Payload[0] == '{' && (v.Fields.N == nil || *v.Fields.N != n) {
			t.Errorf("line %d: %s", n, line)
		}
		n++
	}
	if n != 8 {
		t.Errorf("%d lines", n)
	}
}

func TestFieldsThatCannotBeAreRefused(t *testing.T) {
	for want, specs := range map[string][]string{
		"want PATH":                  {""},
		`field "a..b": want PATH`:    {"a..b"},
		`field ":double": want PATH`: {":double"},
		`field "a\\": want PATH`:     {`a\`},
		`field "a=": want PATH`:      {"a="},
		"type \"float\" is none":     {"a:float"},
		"column \"x y\" has other":   {"a=x y"},
		"one that every file has":    {"a=payload"},
		`fields "a.b" and "a_b" make the same column json_a_b: name one, as in a_b=COLUMN`: {"a.b", "a_b"},
		`make the same column n`: {"a:long=n", "b=n"},
	} {
		if _, err := ParseFields(specs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", specs, err, want)
		}
	}
}

func TestFieldsTakeWhatFits(t *testing.T) {
	const payload = `{"a":{"b":1},"a_b":2,"x.y":{"c:d":3,"e=f":4},"big":9007199254740993,"max":9223372036854775807,"beyond":18446744073709551615,
		"whole":21.0,"exp":2e3,"half":0.5,"huge":1e999,"s":"<&>","nested":{"z":[1,"<",null],"k":12345678901234567890.5},"no":null,"yes":true}`
	for spec, want := range map[string]any{
		"a.b:long": int64(1), "a_b:long": int64(2), `x\.y.c\:d:long`: int64(3), `x\.y.e\=f:double=ef`: 4.0,
		"big:long": int64(9007199254740993), "big:double": 9007199254740992.0, "big": "9007199254740993", "max:long": int64(9223372036854775807),
		"beyond:long": nil, "beyond": "18446744073709551615", "whole:long": int64(21), "exp:long": int64(2000), "half:long": nil, "half:double": 0.5,
		"huge:double": nil, "huge:long": nil, "huge": "1e999", "s": "<&>", "s:double": nil, "nested": `{"k":12345678901234567890.5,"z":[1,"<",null]}`,
		"no": nil, "no.b": nil, "yes:boolean": true, "yes": "true", "yes:long": nil, "missing": nil, "s.t": nil,
	} {
		f := fieldsOf(t, spec)[0]
		if got := f.value(decode([]byte(payload))); got != want {
			t.Errorf("%s: %v (%T), want %v (%T)", spec, got, got, want, want)
		}
	}
	for _, none := range []string{"", "{", `{"a":1} rubbish`, `{"a":1}{"a":2}`, "NaN", "[1]", `"text"`, "1", "\xff\x00", `{"a":NaN}`} {
		if doc := decode([]byte(none)); doc != nil {
			t.Errorf("%q is taken for the object %v", none, doc)
		}
	}
	if decode([]byte(" {\"a\":1} \r\n")) == nil {
		t.Error("space around an object is in its way")
	}
}

// Memory is bounded by bytes, wherever they are: in a payload, in properties or in a decoded field.
func TestParquetGroupsAreBounded(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	for name, r := range map[string]spool.Record{
		"payload":       {Payload: []byte(big)},
		"decoded field": {Payload: []byte(`{"a":"` + big + `"}`)},
		"property":      {Properties: &spool.Properties{User: []spool.UserProperty{{Name: "a", Value: big}}}},
		"correlation":   {Properties: &spool.Properties{CorrelationData: []byte(big)}},
	} {
		var b bytes.Buffer
		p := NewParquet(&b, "default", fieldsOf(t, "a"))
		for range 36 {
			if err := p.Write(0, &r); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		f, err := parquet.OpenFile(bytes.NewReader(b.Bytes()), int64(b.Len()))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(f.RowGroups()); n < 2 || n > 4 {
			t.Errorf("%s: 36 MiB are in %d groups", name, n)
		}
	}
}

func TestFileThatFailsHasNoName(t *testing.T) {
	dir := t.TempDir()
	err := File(filepath.Join(dir, "x"), func(w io.Writer) error { _, _ = w.Write([]byte("half")); return io.ErrClosedPipe })
	if entries, _ := os.ReadDir(dir); err == nil || len(entries) != 0 {
		t.Errorf("%v: %v", entries, err)
	}
}

// What others read counts. FOREBAY_PYTHON names a Python with pyarrow and duckdb; make test-stores makes one.
func TestStoresParquetIsReadByPyArrowAndDuckDB(t *testing.T) {
	python := os.Getenv("FOREBAY_PYTHON")
	if python == "" {
		t.Skip("FOREBAY_PYTHON is not set: make test-stores does")
	}
	path := filepath.Join(t.TempDir(), "x.parquet")
	recs := records(1000)
	recs[0].Payload = []byte(`{"temperature":1e3,"big":9223372036854775807,"note":{"<":[1]}}`)
	recs[3].Payload = []byte(`{"temperature":NaN}`)
	recs[4].Payload, recs[4].Topic = bytes.Repeat([]byte{0x80}, 1<<20), "größe/\u202e/\"'"
	write := func(path string, recs []spool.Record) {
		t.Helper()
		if err := File(path, func(w io.Writer) error {
			p := NewParquet(w, "default", fieldsOf(t, "temperature:double", "ok:boolean", "big:long", "note"))
			for i := range recs {
				if err := p.Write(1, &recs[i]); err != nil {
					return err
				}
			}
			return p.Close()
		}); err != nil {
			t.Fatal(err)
		}
	}
	empty := filepath.Join(t.TempDir(), "empty.parquet")
	write(path, recs)
	write(empty, nil)
	const script = `
import sys, pyarrow.parquet as pq, duckdb
t = pq.read_table(sys.argv[1])
assert t.num_rows == 1000, t.num_rows
r = t.slice(5, 1).to_pylist()[0]
assert r["client"] == "device-0" and r["payload"] == b"\xff\x00\x01" and r["content_type"] == "application/x", r
assert r["user_properties"] in ('[["a","1"],["a","2"]]', b'[["a","1"],["a","2"]]'), r
assert r["expires"] > r["time"] and r["time"].year == 2031 and r["json_temperature"] is None, r
r = t.slice(0, 5).to_pylist()
assert r[0]["json_temperature"] == 1000 and r[0]["json_big"] == 9223372036854775807 and r[0]["json_note"] == '{"<":[1]}', r[0]
assert r[3]["json_temperature"] is None and r[4]["topic"] == "größe/\u202e/\"'" and r[4]["payload"] == b"\x80" * 2**20, r[3]
e = pq.read_table(sys.argv[2])
assert e.num_rows == 0 and e.schema.equals(t.schema), e.schema
assert duckdb.sql(f"select count(*) from '{sys.argv[2]}'").fetchall()[0][0] == 0
n, s, d = duckdb.sql(f"select count(*), sum(json_temperature), count(distinct topic) from '{sys.argv[1]}' where payload is not null").fetchall()[0]
assert n == 1000 and d == 4 and s > 0, (n, s, d)
print("ok", n, s, d)
`
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, "-c", script, path, empty).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "ok") {
		t.Errorf("%v: %s", err, out)
	}
}

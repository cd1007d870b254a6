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

func fieldsOf(t *testing.T, specs ...string) (fields []Field) {
	t.Helper()
	for _, s := range specs {
		f, err := ParseField(s)
		if err != nil {
			t.Fatal(err)
		}
		fields = append(fields, f)
	}
	return fields
}

func TestParquetHasWhatWasWritten(t *testing.T) {
	recs := records(1000)
	var b bytes.Buffer
	p, err := NewParquet(&b, "default", fieldsOf(t, "temperature:double", "n:long", "ok:boolean", "motor.state"))
	if err != nil {
		t.Fatal(err)
	}
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
	for _, s := range []string{"", "a..b", "a:float", ":double"} {
		if _, err := ParseField(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
	if _, err := NewParquet(io.Discard, "s", fieldsOf(t, "a.b", "a_b")); err == nil {
		t.Error("two columns of one name")
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
	if err := File(path, func(w io.Writer) error {
		p, err := NewParquet(w, "default", fieldsOf(t, "temperature:double", "ok:boolean"))
		if err != nil {
			return err
		}
		for i := range recs {
			if err := p.Write(1, &recs[i]); err != nil {
				return err
			}
		}
		return p.Close()
	}); err != nil {
		t.Fatal(err)
	}
	const script = `
import sys, pyarrow.parquet as pq, duckdb
t = pq.read_table(sys.argv[1])
assert t.num_rows == 1000, t.num_rows
r = t.slice(5, 1).to_pylist()[0]
assert r["client"] == "device-0" and r["payload"] == b"\xff\x00\x01" and r["content_type"] == "application/x", r
assert r["user_properties"] in ('[["a","1"],["a","2"]]', b'[["a","1"],["a","2"]]'), r
assert r["expires"] > r["time"] and r["time"].year == 2031 and r["json_temperature"] is None, r
n, s, d = duckdb.sql(f"select count(*), sum(json_temperature), count(distinct topic) from '{sys.argv[1]}' where payload is not null").fetchall()[0]
assert n == 1000 and d == 3 and s > 0, (n, s, d)
print("ok", n, s, d)
`
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, "-c", script, path).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "ok") {
		t.Errorf("%v: %s", err, out)
	}
}

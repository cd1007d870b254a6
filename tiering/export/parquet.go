package export

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/forebay-gateway/forebay/spool"
)

// row is the columns that every file has. Times are in microseconds: every reader knows those.
type row struct {
	Time           time.Time  `parquet:"time,timestamp(microsecond),delta"`
	Partition      int32      `parquet:"partition"`
	Offset         int64      `parquet:"offset,delta"`
	Client         string     `parquet:"client,dict"`
	User           *string    `parquet:"user,optional,dict"`
	Topic          string     `parquet:"topic,dict"`
	QoS            int32      `parquet:"qos"`
	Retain         bool       `parquet:"retain"`
	Expires        *time.Time `parquet:"expires,optional,timestamp(microsecond)"`
	PayloadFormat  *int32     `parquet:"payload_format,optional"`
	ContentType    *string    `parquet:"content_type,optional,dict"`
	ResponseTopic  *string    `parquet:"response_topic,optional,dict"`
	Correlation    []byte     `parquet:"correlation_data,optional"`
	UserProperties *string    `parquet:"user_properties,optional,json"` // [["name", "value"], ...]: names may repeat
	Payload        []byte     `parquet:"payload"`
}

// rowColumns are their names.
var rowColumns = func() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[row]()) {
		name, _, _ := strings.Cut(f.Tag.Get("parquet"), ",")
		names = append(names, name)
	}
	return names
}()

const (
	groupRows  = 128 << 10 // of a row group
	groupBytes = 32 << 20  // or about this much, which is held in memory until then
)

// Parquet writes records as a Parquet file.
type Parquet struct {
	w      *parquet.GenericWriter[any]
	typ    reflect.Type // row, and the fields' columns
	fields []Field
	rows   int
	bytes  int
	total  int64
}

var columnTypes = map[string]reflect.Type{
	"string": reflect.TypeFor[*string](), "double": reflect.TypeFor[*float64](), "long": reflect.TypeFor[*int64](), "boolean": reflect.TypeFor[*bool](),
}

// NewParquet writes to w. Close ends the file.
func NewParquet(w io.Writer, stream string, fields []Field) *Parquet {
	columns := reflect.VisibleFields(reflect.TypeFor[row]())
	for i, f := range fields {
		columns = append(columns, reflect.StructField{
			Name: fmt.Sprintf("F%d", i), Type: columnTypes[f.Type], Tag: reflect.StructTag(fmt.Sprintf(`parquet:"%s,optional"`, f.Column)),
		})
	}
	for i := range columns {
		columns[i].Index, columns[i].Offset = nil, 0
	}
	p := &Parquet{typ: reflect.StructOf(columns), fields: fields}
	schema := parquet.SchemaOf(reflect.New(p.typ).Interface())
	p.w = parquet.NewGenericWriter[any](w, schema, parquet.Compression(&zstd.Codec{}), parquet.CreatedBy("forebay", "", ""),
		parquet.KeyValueMetadata("forebay.stream", stream))
	return p
}

// Write adds a record.
func (p *Parquet) Write(partition int, r *spool.Record) error {
	v := reflect.New(p.typ)
	base := reflect.ValueOf(rowOf(partition, r))
	for i := range base.NumField() {
		v.Elem().Field(i).Set(base.Field(i))
	}
	p.bytes += sizeOf(r)
	if len(p.fields) > 0 {
		if doc := decode(r.Payload); doc != nil {
			for i := range p.fields {
				if x := p.fields[i].value(doc); x != nil {
					if s, ok := x.(string); ok {
						p.bytes += len(s)
					}
					cell := v.Elem().Field(base.NumField() + i)
					cell.Set(reflect.New(cell.Type().Elem()))
					cell.Elem().Set(reflect.ValueOf(x))
				}
			}
		}
	}
	if _, err := p.w.Write([]any{v.Interface()}); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	p.total++
	p.rows++
	if p.rows >= groupRows || p.bytes >= groupBytes {
		p.rows, p.bytes = 0, 0
		if err := p.w.Flush(); err != nil {
			return fmt.Errorf("export: %w", err)
		}
	}
	return nil
}

// Records is how many were written.
func (p *Parquet) Records() int64 { return p.total }

// Close ends the file, not the writer below.
func (p *Parquet) Close() error {
	if err := p.w.Close(); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

// sizeOf is about what a record takes in memory until its group is written.
func sizeOf(r *spool.Record) int {
	n := len(r.Payload) + len(r.Topic) + len(r.ClientID) + len(r.UserName) + 64
	if p := r.Properties; p != nil {
		n += len(p.ContentType) + len(p.ResponseTopic) + len(p.CorrelationData)
		for _, u := range p.User {
			n += len(u.Name) + len(u.Value) + 8
		}
	}
	return n
}

func rowOf(partition int, r *spool.Record) row {
	o := row{
		Time: time.Unix(0, r.ReceivedAt).UTC(), Partition: int32(partition), Offset: int64(r.Offset), Client: r.ClientID, User: text(r.UserName), Topic: r.Topic,
		QoS: int32(r.QoS), Retain: r.Retain, Payload: r.Payload,
	}
	if o.Payload == nil {
		o.Payload = []byte{}
	}
	if r.ExpiresAt != 0 {
		at := time.Unix(0, r.ExpiresAt).UTC()
		o.Expires = &at
	}
	if p := r.Properties; p != nil {
		if p.HasPayloadFormat {
			f := int32(p.PayloadFormat)
			o.PayloadFormat = &f
		}
		o.ContentType, o.ResponseTopic, o.Correlation = text(p.ContentType), text(p.ResponseTopic), p.CorrelationData
		if len(p.User) > 0 {
			pairs := make([][2]string, len(p.User))
			for i, u := range p.User {
				pairs[i] = [2]string{u.Name, u.Value}
			}
			o.UserProperties = text(jsonOf(pairs))
		}
	}
	return o
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

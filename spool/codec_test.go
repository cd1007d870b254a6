package spool

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/spool/segment"
)

var codecRecords = []Record{
	{Topic: "a", ReceivedAt: 1},
	{Topic: "plant/7/temp", ClientID: "device-7", UserName: "u", Payload: []byte("21.5"), ReceivedAt: 1700000000123456789, ExpiresAt: 1800000000000000000, QoS: 2, Retain: true},
	{Topic: "t", ClientID: strings.Repeat("c", 300), Payload: bytes.Repeat([]byte{0}, 70000), QoS: 1, ReceivedAt: -5, Properties: &Properties{}},
	{Topic: "t", Properties: &Properties{
		PayloadFormat: 1, HasPayloadFormat: true, ContentType: "application/json", ResponseTopic: "r/s", CorrelationData: []byte{},
		User: []UserProperty{{"a", "1"}, {"a", "2"}, {"", ""}},
	}},
	{Topic: "t", ReceivedAt: 1, ExpiresAt: 2, StreamTTL: true},
	{Topic: "t", Properties: &Properties{HasPayloadFormat: true, CorrelationData: []byte{1, 2}}},
}

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	var body []byte
	want := append([]Record(nil), codecRecords...)
	o := Offset(40)
	for i := range want {
		skip := uint64(i * 3)
		n := len(body)
		body = appendRecord(body, &want[i], skip)
		if size := stringLen(encodedSize(&want[i], skip)); size != len(body)-n {
			t.Errorf("record %d: size %d, has %d", i, size, len(body)-n)
		}
		o += Offset(skip)
		want[i].Offset, want[i].Partition = o, 3
		o++
	}
	got, next, err := decodeRecords(nil, body, 3, 40)
	if err != nil || next != o {
		t.Fatalf("next %d, want %d: %v", next, o, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestRecordCutAnywhereIsDamage(t *testing.T) {
	for i := range codecRecords {
		body := appendRecord(nil, &codecRecords[i], 1)
		for n := 1; n < min(len(body), 500); n++ {
			_, _, err := decodeRecords(nil, body[:n], 0, 0)
			var ce *CorruptionError
			if !errors.As(err, &ce) {
				t.Fatalf("record %d cut at %d: %v", i, n, err)
			}
		}
	}
}

// sameKeys compares what the index is told about body with its records.
func sameKeys(t *testing.T, body []byte, recs []Record) {
	t.Helper()
	var got, want []string
	for i := range recs {
		want = append(want, "topic "+recs[i].Topic, "client "+recs[i].ClientID)
	}
	err := indexBody(body, func(kind segment.Kind, key []byte) {
		got = append(got, map[segment.Kind]string{segment.KindTopic: "topic ", segment.KindClient: "client "}[kind]+string(key))
	})
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("the index is told of %q, records have %q: %v", got, want, err)
	}
}

func TestIndexIsToldWhatRecordsHave(t *testing.T) {
	var body []byte
	for i := range codecRecords {
		body = appendRecord(body, &codecRecords[i], uint64(i))
	}
	sameKeys(t, body, codecRecords)
	var ce *CorruptionError
	if err := indexBody(body[:len(body)-1], func(segment.Kind, []byte) {}); !errors.As(err, &ce) {
		t.Errorf("a body that is cut short: %v", err)
	}
}

func FuzzDecodeRecords(f *testing.F) {
	for i := range codecRecords[:2] {
		f.Add(appendRecord(nil, &codecRecords[i], uint64(i)))
	}
	f.Add(appendRecord(nil, &codecRecords[3], 1<<63))
	f.Fuzz(func(t *testing.T, body []byte) {
		recs, next, err := decodeRecords(nil, body, 0, 7)
		if err != nil {
			return
		}
		sameKeys(t, body, recs)
		// What decodes encodes to a body that decodes to the same.
		var again []byte
		at := Offset(7)
		for i := range recs {
			again = appendRecord(again, &recs[i], uint64(recs[i].Offset-at))
			at = recs[i].Offset + 1
		}
		recs2, next2, err := decodeRecords(nil, again, 0, 7)
		if err != nil || next2 != next || !reflect.DeepEqual(recs, recs2) {
			t.Fatalf("%+v\n%+v\n%v", recs, recs2, err)
		}
	})
}

func FuzzDecodePayload(f *testing.F) {
	g := new(group)
	g.reset()
	p := &partition{st: &stream{name: "s"}, num: 3}
	g.add(p, &Record{Topic: "t", Payload: []byte("x")}, weight{10, 10, 0}, nil)
	g.addChanges([]Change{{"space", "key", []byte("v")}, {"space", "gone", nil}})
	f.Add(g.appendPayload(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = decodePayload(b, payloadVisitor{
			records: func(_ string, n int, base Offset, count int, body []byte) error {
				if count > len(body) {
					t.Fatalf("%d records in %d bytes", count, len(body))
				}
				_, _, err := decodeRecords(nil, body, uint16(n), base)
				return err
			},
			changes: func(b []byte) error {
				return decodeChanges(b, func(string, string, []byte) error { return nil })
			},
		})
		_, _ = decodeCursor(b)
	})
}

func TestPayloadOfNewerVersionIsUnsupported(t *testing.T) {
	for _, b := range [][]byte{{payloadVersion + 1}, {payloadVersion, 'x', 0, 0, 0, 0}} {
		if err := decodePayload(b, payloadVisitor{}); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%v: %v", b, err)
		}
	}
}

package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unsafe"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

var testLimits = Limits{Connect: 4 << 10, Packet: 1 << 20}

const (
	connect5   = `10 len s"MQTT" 05 02 003c 00 s"x"`
	connect311 = `10 len s"MQTT" 04 02 003c s"x"`
)

func TestIdleDecoderIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Decoder{}); size > 512 {
		t.Errorf("a Decoder takes %d bytes, want at most 512", size)
	}
}

// after returns what a Decoder reads from the packets in notation, after a CONNECT of the version.
func after(t *testing.T, version byte, notation string) (Packet, error) {
	t.Helper()
	in := mqtttest.Bytes(t, connect5)
	if version == Version311 {
		in = mqtttest.Bytes(t, connect311)
	}
	in = append(in, mqtttest.Bytes(t, notation)...)
	d := NewDecoder(iotest.HalfReader(bytes.NewReader(in)), testLimits)
	if _, err := d.Read(); err != nil {
		t.Fatal(err)
	}
	p, err := d.Read()
	if err == nil {
		if _, err := d.Read(); err != io.EOF {
			t.Errorf("%s: after the packet: %v, want EOF", notation, err)
		}
	}
	return p, err
}

func TestReadConnect(t *testing.T) {
	f := func(notation string, want *Connect) {
		t.Helper()
		d := NewDecoder(bytes.NewReader(mqtttest.Bytes(t, notation)), testLimits)
		got, err := d.Read()
		if err != nil {
			t.Errorf("%s: %v", notation, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", notation, got, want)
		}
	}
	f(connect5, &Connect{
		Version: 5, ClientID: "x", CleanStart: true, KeepAlive: 60, ReceiveMaximum: 65535, RequestProblemInfo: true,
	})
	f(connect311, &Connect{
		Version: 4, ClientID: "x", CleanStart: true, KeepAlive: 60, ReceiveMaximum: 65535, RequestProblemInfo: true,
	})
	f(`10 len s"MQTT" 04 00 0000 s"x"`, &Connect{
		Version: 4, ClientID: "x", SessionExpiry: math.MaxUint32, ReceiveMaximum: 65535, RequestProblemInfo: true,
	})
	f(`10 len s"MQTT" 04 02 0000 0000`, &Connect{
		Version: 4, CleanStart: true, ReceiveMaximum: 65535, RequestProblemInfo: true,
	})
	f(`10 len s"MQTT" 05 42 0000 00 0000 0000`, &Connect{ // password alone and empty: MQTT 5 allows both
		Version: 5, CleanStart: true, ReceiveMaximum: 65535, RequestProblemInfo: true, HasPassword: true, Password: []byte{},
	})
	f(`10 len s"MQTT" 05 ee 000a [
		11 00000e10 21 0014 27 00010000 22 0005 19 01 17 00 26 s"k" s"v" 26 s"k" s"w" 15 s"SCRAM" 16 s"n" ]
		s"id" [ 18 0000001e 01 01 02 00000000 03 0000 08 s"r/t" 09 0000 26 s"a" s"b" ] s"w/t" s"bye" s"me" s"pw"`,
		&Connect{
			Version: 5, ClientID: "id", CleanStart: true, KeepAlive: 10,
			HasUserName: true, UserName: "me", HasPassword: true, Password: []byte("pw"),
			SessionExpiry: 3600, ReceiveMaximum: 20, MaxPacketSize: 65536, TopicAliasMaximum: 5,
			RequestResponse: true, HasAuthMethod: true, AuthMethod: "SCRAM", AuthData: []byte("n"),
			User: []spool.UserProperty{{Name: "k", Value: "v"}, {Name: "k", Value: "w"}},
			Will: &Will{
				Delay: 30,
				Publish: Publish{
					Topic: "w/t", Payload: []byte("bye"), QoS: 1, Retain: true, HasExpiry: true,
					Properties: &spool.Properties{
						PayloadFormat: 1, HasPayloadFormat: true, ResponseTopic: "r/t", CorrelationData: []byte{},
						User: []spool.UserProperty{{Name: "a", Value: "b"}},
					},
				},
			},
		})
}

func TestReadPublish(t *testing.T) {
	f := func(version byte, notation string, want *Publish) {
		t.Helper()
		got, err := after(t, version, notation)
		if err != nil {
			t.Errorf("%s: %v", notation, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", notation, got, want)
		}
	}
	f(4, `30 len s"a/b" "hello"`, &Publish{Topic: "a/b", Payload: []byte("hello")})
	f(4, `3d len s"a" 0102`, &Publish{Topic: "a", Payload: []byte{}, QoS: 2, Dup: true, Retain: true, PacketID: 0x102})
	f(5, `32 len s"a/b" ffff 00 "x"`, &Publish{Topic: "a/b", Payload: []byte("x"), QoS: 1, PacketID: 65535})
	f(5, `30 len 0000 03 23 0007 "x"`, &Publish{Payload: []byte("x"), TopicAlias: 7})
	f(5, `30 len s"ünï/日本" 00`, &Publish{Topic: "ünï/日本", Payload: []byte{}})
	f(5, `30 len s"$SYS/x" 05 02 00000000`, &Publish{Topic: "$SYS/x", Payload: []byte{}, HasExpiry: true})
	f(5, `34 len s"a" 0001 [ 01 01 02 0000003c 03 s"text" 08 s"r" 09 s"cd" 26 s"k" s"1" 26 s"k" s"2" ] "p"`, &Publish{
		Topic: "a", Payload: []byte("p"), QoS: 2, PacketID: 1, Expiry: 60, HasExpiry: true,
		Properties: &spool.Properties{
			PayloadFormat: 1, HasPayloadFormat: true, ContentType: "text", ResponseTopic: "r", CorrelationData: []byte("cd"),
			User: []spool.UserProperty{{Name: "k", Value: "1"}, {Name: "k", Value: "2"}},
		},
	})
	// Discouraged code points and a byte order mark are kept: MQTT 5, 1.5.4-3.
	f(5, `30 len 0004 efbbbf 01 00`, &Publish{Topic: "\ufeff\x01", Payload: []byte{}})
}

func TestReadOtherPackets(t *testing.T) {
	f := func(version byte, notation string, want Packet) {
		t.Helper()
		got, err := after(t, version, notation)
		if err != nil {
			t.Errorf("%s: %v", notation, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", notation, got, want)
		}
	}
	f(4, `40 02 0001`, &Ack{Kind: packets.Puback, PacketID: 1})
	f(5, `50 03 0001 97`, &Ack{Kind: packets.Pubrec, PacketID: 1, Reason: 0x97})
	f(5, `62 04 0001 92 00`, &Ack{Kind: packets.Pubrel, PacketID: 1, Reason: 0x92})
	f(5, `70 len 0001 92 0c 26 s"k" s"v" 1f s"no"`, &Ack{Kind: packets.Pubcomp, PacketID: 1, Reason: 0x92, ReasonString: "no"})
	f(5, `40 8400 0001 00 00`, &Ack{Kind: packets.Puback, PacketID: 1}) // not the shortest length, and allowed
	f(4, `82 len 0001 s"a/#" 02 s"+" 00`, &Subscribe{PacketID: 1, Filters: []Filter{
		{Filter: "a/#", Topic: "a/#", QoS: 2}, {Filter: "+", Topic: "+"},
	}})
	f(5, `82 len 0001 0c 0b ffffff7f 26 s"k" s"v" s"$share/g/a/+" 2a s"/" 15`, &Subscribe{
		PacketID: 1, SubscriptionID: 1<<28 - 1, User: []spool.UserProperty{{Name: "k", Value: "v"}},
		Filters: []Filter{
			{Filter: "$share/g/a/+", Share: "g", Topic: "a/+", QoS: 2, RetainAsPublished: true, RetainHandling: 2},
			{Filter: "/", Topic: "/", QoS: 1, NoLocal: true, RetainHandling: 1},
		},
	})
	f(4, `a2 len 0001 s"a" s"b/#"`, &Unsubscribe{PacketID: 1, Filters: []string{"a", "b/#"}})
	f(5, `a2 len 0001 07 26 s"k" s"v" s"$share/g/#"`, &Unsubscribe{
		PacketID: 1, Filters: []string{"$share/g/#"}, User: []spool.UserProperty{{Name: "k", Value: "v"}},
	})
	f(4, `c0 00`, &Pingreq{})
	f(4, `e0 00`, &Disconnect{})
	f(5, `e0 00`, &Disconnect{})
	f(5, `e0 01 04`, &Disconnect{Reason: 4})
	f(5, `e0 len 00 09 11 0000000a 1f s"x"`, &Disconnect{HasSessionExpiry: true, SessionExpiry: 10, ReasonString: "x"})
	f(5, `f0 len 18 08 15 s"m" 16 s"d"`, &Auth{Reason: 0x18, Method: "m", Data: []byte("d")})
	f(5, `f0 len 19 04 15 s"m"`, &Auth{Reason: 0x19, Method: "m"})
}

func TestReadEnds(t *testing.T) {
	whole := mqtttest.Bytes(t, connect5+` `)
	whole = append(whole, mqtttest.Bytes(t, `32 len s"a/b" 0001 00 "hello"`)...)
	boundary := len(mqtttest.Bytes(t, connect5))
	for n := range len(whole) {
		d := NewDecoder(bytes.NewReader(whole[:n]), testLimits)
		var err error
		for err == nil {
			_, err = d.Read()
		}
		want := io.ErrUnexpectedEOF
		if n == 0 || n == boundary {
			want = io.EOF
		}
		if err != want {
			t.Errorf("after %d bytes: %v, want %v", n, err, want)
		}
	}
}

func TestReadPassesConnectionErrors(t *testing.T) {
	broken := errors.New("broken pipe")
	d := NewDecoder(io.MultiReader(bytes.NewReader(mqtttest.Bytes(t, connect5)), iotest.ErrReader(broken)), testLimits)
	if _, err := d.Read(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read(); err != broken {
		t.Errorf("got %v, want %v", err, broken)
	}
	if _, err := NewDecoder(emptyReader{}, testLimits).Read(); err != io.ErrNoProgress {
		t.Errorf("got %v, want %v", err, io.ErrNoProgress)
	}
}

type emptyReader struct{}

func (emptyReader) Read([]byte) (int, error) { return 0, nil }

func TestReadHonoursLimits(t *testing.T) {
	size := len(mqtttest.Bytes(t, connect5))
	f := func(l Limits, first, second bool) {
		t.Helper()
		in := append(mqtttest.Bytes(t, connect5), mqtttest.Bytes(t, `30 len s"a" 00 "0123456789"`)...) // 16 bytes
		d := NewDecoder(bytes.NewReader(in), l)
		_, err := d.Read()
		if (err == nil) != first {
			t.Errorf("%+v: connect: %v", l, err)
		}
		if err == nil {
			if _, err = d.Read(); (err == nil) != second {
				t.Errorf("%+v: publish: %v", l, err)
			}
		}
		if e, ok := errors.AsType[*Error](err); err != nil && (!ok || e.Code != packets.ErrPacketTooLarge) {
			t.Errorf("%+v: %v, want packet too large", l, err)
		}
	}
	f(Limits{Connect: uint32(size) - 1, Packet: 100}, false, false)
	f(Limits{Connect: uint32(size), Packet: 15}, true, false)
	f(Limits{Connect: uint32(size), Packet: 16}, true, true)
}

// What a packet points to must not change when the next one is read.
func TestPacketsOwnTheirMemory(t *testing.T) {
	in := mqtttest.Bytes(t, connect5)
	const n = 500
	for i := range n {
		b, _ := Peer{Version: Version5}.AppendPublish(nil, numbered(i))
		in = append(in, b...)
	}
	d := NewDecoder(bytes.NewReader(in), testLimits)
	if _, err := d.Read(); err != nil {
		t.Fatal(err)
	}
	var all []Packet
	for range n {
		p, err := d.Read()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	for i, p := range all {
		if !reflect.DeepEqual(p, Packet(numbered(i))) {
			t.Fatalf("packet %d: got %+v", i, p)
		}
	}
}

func numbered(i int) *Publish {
	s := strings.Repeat(string(rune('a'+i%26)), 1+i%700)
	return &Publish{
		Topic: "t/" + s, Payload: []byte(s + s), QoS: 1, PacketID: uint16(1 + i),
		Properties: &spool.Properties{ContentType: s, User: []spool.UserProperty{{Name: s, Value: s}}},
	}
}

// A connection that drained a burst gives its big buffer back.
func TestDecoderReturnsItsBigBuffer(t *testing.T) {
	in := mqtttest.Bytes(t, connect5)
	for len(in) < 3*bigBuffer {
		in = append(in, mqtttest.Bytes(t, `30 len s"topic" 00 "0123456789"`)...)
	}
	d := NewDecoder(bytes.NewReader(in), testLimits)
	borrowed := false
	for {
		if _, err := d.Read(); err != nil {
			break
		}
		borrowed = borrowed || d.big != nil
	}
	if !borrowed || d.big != nil {
		t.Errorf("borrowed: %t, still held: %t; want true, false", borrowed, d.big != nil)
	}
}

// A client that announces much and sends little costs little.
func TestReadDoesNotTrustAnnouncedLengths(t *testing.T) {
	in := append(mqtttest.Bytes(t, connect5), 0x30, 0xFF, 0xFF, 0xFF, 0x7F, 0, 1, 'a')
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d := NewDecoder(bytes.NewReader(in), Limits{Connect: 1 << 10, Packet: 1 << 30})
	_, _ = d.Read()
	if _, err := d.Read(); err != io.ErrUnexpectedEOF {
		t.Errorf("got %v, want %v", err, io.ErrUnexpectedEOF)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 2*eagerBody {
		t.Errorf("allocated %d bytes for a packet of which 3 came", n)
	}
}

func TestReadLargePublish(t *testing.T) {
	m := &Publish{Topic: "big", Payload: bytes.Repeat([]byte("0123456789abcdef"), 300<<10/16)}
	in, _ := Peer{Version: Version5}.AppendPublish(mqtttest.Bytes(t, connect5), m)
	d := NewDecoder(bytes.NewReader(in), testLimits)
	_, _ = d.Read()
	p, err := d.Read()
	if err != nil || !reflect.DeepEqual(p, Packet(m)) {
		t.Errorf("a large publish came back different: %v", err)
	}
}

func TestRecordCountsExpiryDown(t *testing.T) {
	received := time.Unix(1000, 0)
	r := (&Publish{Topic: "a", Expiry: 10, HasExpiry: true, QoS: 1, Retain: true}).Record("id", "me", received)
	if r.Topic != "a" || r.ClientID != "id" || r.UserName != "me" || r.QoS != 1 || !r.Retain {
		t.Errorf("record: %+v", r)
	}
	f := func(after time.Duration, want uint32, alive bool) {
		t.Helper()
		var m Publish
		if ok := m.FromRecord(r, received.Add(after)); ok != alive || ok && (!m.HasExpiry || m.Expiry != want) {
			t.Errorf("after %v: %t, %d seconds; want %t, %d", after, ok, m.Expiry, alive, want)
		}
	}
	f(0, 10, true)
	f(999*time.Millisecond, 10, true)
	f(time.Second, 9, true)
	f(9999*time.Millisecond, 1, true) // MQTT 5, 3.3.2-6: never 0 on the wire
	f(10*time.Second, 0, false)
	f(-time.Hour, 10, true) // a clock that was set back adds nothing

	r = (&Publish{Topic: "a"}).Record("id", "", received)
	var m Publish
	if !m.FromRecord(r, received.Add(1e6*time.Hour)) || m.HasExpiry {
		t.Errorf("a record without expiry came out as %+v", m)
	}
	r = (&Publish{Topic: "a", HasExpiry: true}).Record("id", "", received)
	if m.FromRecord(r, received) {
		t.Error("a record with expiry 0 is delivered")
	}
	r = (&Publish{Topic: "a"}).Record("id", "", received)
	r.ExpiresAt, r.StreamTTL = received.Add(time.Minute).UnixNano(), true
	if !m.FromRecord(r, received) || m.HasExpiry || m.FromRecord(r, received.Add(time.Hour)) {
		t.Errorf("the stream's time to live came out as %+v", m)
	}
}

func TestPayloadFormat(t *testing.T) {
	f := func(format byte, payload string, want bool) {
		t.Helper()
		m := Publish{Payload: []byte(payload), Properties: &spool.Properties{HasPayloadFormat: true, PayloadFormat: format}}
		if got := m.PayloadFormatValid(); got != want {
			t.Errorf("format %d, %q: got %t, want %t", format, payload, got, want)
		}
	}
	f(0, "\xff", true)
	f(1, "grün\x00", true)
	f(1, "\xff", false)
	if !(&Publish{Payload: []byte{0xff}}).PayloadFormatValid() {
		t.Error("no properties")
	}
}

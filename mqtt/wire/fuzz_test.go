package wire

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"runtime"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// addPackets seeds a fuzz test with the malformed corpus and some good packets.
func addPackets(f *testing.F) {
	for _, m := range mqtttest.MalformedPackets(f) {
		f.Add(m.State == "v4", m.Bytes)
	}
	for _, s := range []string{
		connect5, connect311, `c0 00`, `e0 00`, `40 02 0001`, `62 03 0001 92`,
		`10 len s"MQTT" 05 ee 000a [ 11 00000e10 26 s"k" s"v" ] s"id" [ 18 0000001e 01 01 ] s"w/t" s"bye" s"me" s"pw"`,
		`34 len s"a" 0001 [ 01 01 02 0000003c 03 s"text" 08 s"r" 09 s"cd" 26 s"k" s"1" ] "p"`,
		`82 len 0001 [ 0b ffffff7f ] s"$share/g/a/+" 2a s"/" 15`,
		`a2 len 0001 00 s"a"`, `f0 len 18 [ 15 s"m" ]`,
	} {
		f.Add(false, mqtttest.Bytes(f, s))
		f.Add(true, mqtttest.Bytes(f, s))
	}
}

// FuzzRead: whatever comes, Read neither panics nor hangs nor allocates out of proportion, and what it accepts obeys the
// rules that the engine relies on.
func FuzzRead(f *testing.F) {
	addPackets(f)
	f.Fuzz(func(t *testing.T, old bool, in []byte) {
		first := mqtttest.Bytes(t, connect5)
		if old {
			first = mqtttest.Bytes(t, connect311)
		}
		readAll(t, in)
		readAll(t, append(first, in...))
	})
}

func readAll(t *testing.T, in []byte) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d := NewDecoder(bytes.NewReader(in), Limits{Connect: 8 << 10, Packet: 1 << 20})
	for {
		p, err := d.Read()
		if err != nil {
			if e, ok := errors.AsType[*Error](err); ok && e.Code.Code < 0x80 {
				t.Fatalf("%x: refused with success: %v", in, err)
			} else if !ok && err != io.EOF && err != io.ErrUnexpectedEOF {
				t.Fatalf("%x: %v", in, err)
			}
			break
		}
		checkPacket(t, p)
	}
	runtime.ReadMemStats(&after)
	// The dearest byte is an empty user property: 5 on the wire, three headers of 32 while it is decoded, doubled by append.
	if n := after.TotalAlloc - before.TotalAlloc; n > 2*eagerBody+uint64(64*len(in)) {
		t.Fatalf("%x: %d bytes allocated for %d", in, n, len(in))
	}
}

func checkPacket(t *testing.T, p Packet) {
	switch p := p.(type) {
	case *Publish:
		if (p.QoS == 0) != (p.PacketID == 0) || p.QoS > 2 || p.Topic == "" && p.TopicAlias == 0 {
			t.Fatalf("publish: %+v", p)
		}
	case *Subscribe:
		if p.PacketID == 0 || len(p.Filters) == 0 {
			t.Fatalf("subscribe: %+v", p)
		}
		for _, f := range p.Filters {
			if f.Topic == "" || f.QoS > 2 || f.RetainHandling > 2 {
				t.Fatalf("filter: %+v", f)
			}
		}
	case *Connect:
		if p.ReceiveMaximum == 0 || p.Version != Version5 && p.Version != Version311 {
			t.Fatalf("connect: %+v", p)
		}
	}
}

// FuzzPublishAgainstLibrary: what is accepted, the library decodes to the same; what the library cannot decode is refused.
func FuzzPublishAgainstLibrary(f *testing.F) {
	addPackets(f)
	f.Fuzz(func(t *testing.T, old bool, in []byte) {
		if len(in) < 2 {
			return
		}
		version := Version5
		if old {
			version = Version311
		}
		head, body := packets.Publish<<4|in[0]&0x0F, in[1:]
		var pk packets.Packet
		pk.ProtocolVersion = version
		headErr := pk.FixedHeader.Decode(head)
		if d := (&Decoder{version: version}); (d.checkHead(head) != nil) != (headErr != nil) {
			t.Fatalf("%x: %v, library %v", head, d.checkHead(head), headErr)
		}
		if headErr != nil {
			return
		}
		m, fault := decodePublish(head, bytes.Clone(body), version)
		err := pk.PublishDecode(bytes.Clone(body))
		if err != nil && fault == nil {
			t.Fatalf("%x: library refuses: %v", body, err)
		}
		if fault != nil {
			return
		}
		q := &pk.Properties
		want := &Publish{
			Topic: pk.TopicName, Payload: pk.Payload, QoS: pk.FixedHeader.Qos, Dup: pk.FixedHeader.Dup,
			Retain: pk.FixedHeader.Retain, PacketID: pk.PacketID, TopicAlias: q.TopicAlias, Expiry: q.MessageExpiryInterval,
			HasExpiry: m.HasExpiry, // the library does not tell 0 from absent
		}
		if m.Properties != nil {
			want.Properties = &spool.Properties{
				PayloadFormat: q.PayloadFormat, HasPayloadFormat: q.PayloadFormatFlag, ContentType: q.ContentType,
				ResponseTopic: q.ResponseTopic, CorrelationData: q.CorrelationData, User: userProperties(q),
			}
		} else if q.PayloadFormatFlag || q.ContentType != "" || q.ResponseTopic != "" || q.CorrelationData != nil || q.User != nil {
			t.Fatalf("%x: properties lost", body)
		}
		if !reflect.DeepEqual(m, want) {
			t.Fatalf("%x:\n got %+v\nwant %+v", body, m, want)
		}
	})
}

// FuzzPublishRoundTrip: what a client sent and what is sent on for it read the same.
func FuzzPublishRoundTrip(f *testing.F) {
	addPackets(f)
	f.Fuzz(func(t *testing.T, old bool, in []byte) {
		if len(in) < 2 {
			return
		}
		p := peer5
		if old {
			p = peer311
		}
		head, body := packets.Publish<<4|in[0]&0x0F, in[1:]
		if (&Decoder{version: p.Version}).checkHead(head) != nil {
			return
		}
		m, fault := decodePublish(head, body, p.Version)
		if fault != nil {
			return
		}
		b, _ := p.AppendPublish(mqtttest.Bytes(t, connectOf(p)), m)
		d := NewDecoder(bytes.NewReader(b), Limits{Connect: 1 << 10, Packet: 1 << 28})
		_, _ = d.Read()
		again, err := d.Read()
		if err != nil {
			t.Fatalf("%x: %v", b, err)
		}
		if m.Properties != nil && reflect.DeepEqual(*m.Properties, spool.Properties{}) {
			m.Properties = nil // an empty content type says the same as none and is not sent
		}
		if !reflect.DeepEqual(again, Packet(m)) {
			t.Fatalf("%x:\n got %+v\nwant %+v", b, again, m)
		}
	})
}

func connectOf(p Peer) string {
	if p.Version == Version311 {
		return connect311
	}
	return connect5
}

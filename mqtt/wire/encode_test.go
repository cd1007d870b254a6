package wire

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

var (
	peer5   = Peer{Version: Version5}
	peer311 = Peer{Version: Version311}
)

func TestAppend(t *testing.T) {
	f := func(got []byte, want string) {
		t.Helper()
		if w := mqtttest.Bytes(t, want); !bytes.Equal(got, w) {
			t.Errorf("got  %x\nwant %x", got, w)
		}
	}
	b := []byte{0xEE} // what stands in the buffer stays

	f(peer5.AppendPuback(b, 1, 0, ""), `ee 40 02 0001`)
	f(peer5.AppendPuback(b, 0x1234, 0x10, ""), `ee 40 03 1234 10`)
	f(peer5.AppendPubrec(b, 1, 0x97, "full"), `ee 50 len 0001 97 [ 1f s"full" ]`)
	f(peer5.AppendPubrel(b, 1, 0, ""), `ee 62 02 0001`)
	f(peer5.AppendPubcomp(b, 1, 0x92, ""), `ee 70 03 0001 92`)
	f(peer5.AppendPuback(nil, 1, 0, "why"), `40 len 0001 00 [ 1f s"why" ]`)
	f(peer311.AppendPuback(b, 1, 0x97, "full"), `ee 40 02 0001`)
	f(peer311.AppendPubrec(b, 1, 0x10, ""), `ee 50 02 0001`)
	f(peer311.AppendPubrel(b, 1, 0x92, ""), `ee 62 02 0001`)
	f(peer311.AppendPubcomp(b, 1, 0, ""), `ee 70 02 0001`)

	f(peer5.AppendSuback(b, 7, []byte{0, 1, 0x87}, ""), `ee 90 len 0007 00 00 01 87`)
	f(peer5.AppendSuback(b, 7, []byte{0x8F}, "bad"), `ee 90 len 0007 [ 1f s"bad" ] 8f`)
	f(peer311.AppendSuback(b, 7, []byte{2, 0x87, 0x8F}, "bad"), `ee 90 len 0007 02 80 80`) // MQTT 3.1.1, 3.9.3-2
	f(peer5.AppendUnsuback(b, 7, []byte{0, 0x11}, ""), `ee b0 len 0007 00 00 11`)
	f(peer311.AppendUnsuback(b, 7, []byte{0, 0x11}, "x"), `ee b0 02 0007`)

	f(peer5.AppendPingresp(b), `ee d0 00`)
	f(peer5.AppendDisconnect(b, &Disconnect{}), `ee e0 00`)
	f(peer5.AppendDisconnect(b, &Disconnect{Reason: 0x8E}), `ee e0 01 8e`)
	f(peer5.AppendDisconnect(b, &Disconnect{Reason: 0x9C, ReasonString: "go", ServerReference: "b:1883"}),
		`ee e0 len 9c [ 1f s"go" 1c s"b:1883" ]`)
	f(peer311.AppendDisconnect(b, &Disconnect{Reason: 0x8E}), `ee`)
	f(peer5.AppendAuth(b, &Auth{Reason: 0x18, Method: "m", Data: []byte{}}), `ee f0 len 18 [ 15 s"m" 16 0000 ]`)
	f(peer311.AppendAuth(b, &Auth{Reason: 0x18, Method: "m"}), `ee`)

	f(peer5.AppendConnack(b, &Connack{}), `ee 20 03 00 00 00`)
	f(peer5.AppendConnack(b, &Connack{SessionPresent: true, Reason: 0x87}), `ee 20 03 00 87 00`) // MQTT 5, 3.2.2-6
	f(peer311.AppendConnack(b, &Connack{SessionPresent: true}), `ee 20 02 01 00`)
	f(peer311.AppendConnack(b, &Connack{Reason: 5}), `ee 20 02 00 05`)
	f(peer5.AppendConnack(b, &Connack{SessionPresent: true, Properties: packets.Properties{
		SessionExpiryInterval: 60, SessionExpiryIntervalFlag: true, ReceiveMaximum: 1024, MaximumQos: 1, MaximumQosFlag: true,
		RetainAvailableFlag: true, MaximumPacketSize: 1 << 20, AssignedClientID: "auto", TopicAliasMaximum: 16,
		WildcardSubAvailable: 1, WildcardSubAvailableFlag: true, SubIDAvailableFlag: true, SharedSubAvailableFlag: true,
		ServerKeepAliveFlag: true, ServerKeepAlive: 30, ResponseInfo: "r/", ServerReference: "s", AuthenticationMethod: "m",
		AuthenticationData: []byte("d"), ReasonString: "hi", User: []packets.UserProperty{{Key: "k", Val: "v"}},
	}}), `ee 20 len 01 00 [ 11 0000003c 21 0400 24 01 25 00 27 00100000 12 s"auto" 22 0010 28 01 29 00 2a 00 13 001e
		1a s"r/" 1c s"s" 15 s"m" 16 s"d" 1f s"hi" 26 s"k" s"v" ]`)
}

func TestAppendPublish(t *testing.T) {
	f := func(p Peer, m *Publish, want string, wantID int) {
		t.Helper()
		got, id := p.AppendPublish([]byte{0xEE}, m)
		if w := mqtttest.Bytes(t, "ee "+want); !bytes.Equal(got, w) || id != wantID {
			t.Errorf("got  %x, identifier at %d\nwant %x, identifier at %d", got, id, w, wantID)
		}
		if n := p.PublishSize(m); n != len(got)-1 {
			t.Errorf("%x: size %d, want %d", got, n, len(got)-1)
		}
	}
	m := &Publish{
		Topic: "a/b", Payload: []byte("pay"), QoS: 2, PacketID: 9, Retain: true, Expiry: 60, HasExpiry: true,
		TopicAlias: 3, SubscriptionIDs: []uint32{1, 300},
		Properties: &spool.Properties{
			PayloadFormat: 1, HasPayloadFormat: true, ContentType: "ct", ResponseTopic: "r", CorrelationData: []byte{},
			User: []spool.UserProperty{{Name: "k", Value: "1"}, {Name: "k", Value: "1"}, {}},
		},
	}
	f(peer311, m, `35 len s"a/b" 0009 "pay"`, 7)
	f(peer5, m, `35 len s"a/b" 0009 [ 02 0000003c 23 0003 0b 01 0b ac02 01 01 03 s"ct" 08 s"r" 09 0000
		26 s"k" s"1" 26 s"k" s"1" 26 0000 0000 ] "pay"`, 7)
	f(peer5, &Publish{Topic: "a"}, `30 len s"a" 00`, 0)
	f(peer5, &Publish{TopicAlias: 1, QoS: 1, PacketID: 1, Dup: true}, `3a len 0000 0001 [ 23 0001 ]`, 4)
	f(peer311, &Publish{Topic: strings.Repeat("x", 200), QoS: 1, PacketID: 1}, `32 len s"`+strings.Repeat("x", 200)+`" 0001`, 205)
}

func TestPatchPublish(t *testing.T) {
	m := &Publish{Topic: "a/b", Payload: []byte("x"), QoS: 1, PacketID: 1}
	b, id := peer5.AppendPublish(nil, m)
	PatchPublish(b, id, 0xABCD, true)
	if want := mqtttest.Bytes(t, `3a len s"a/b" abcd 00 "x"`); !bytes.Equal(b, want) {
		t.Errorf("got %x, want %x", b, want)
	}
	PatchPublish(b, id, 1, false)
	if want, _ := peer5.AppendPublish(nil, m); !bytes.Equal(b, want) {
		t.Errorf("got %x, want %x", b, want)
	}
}

// MQTT 5, 3.1.2-24, 3.2.2-19, 3.2.2-20, 3.4.2-2, 3.5.2-2, 3.9.2-1, 3.14.2-3: explanations yield to the client's maximum.
func TestAppendHonoursMaximumPacketSize(t *testing.T) {
	why := strings.Repeat("why", 20)
	user := packets.Properties{ReasonString: why, User: []packets.UserProperty{{Key: "key", Val: why}}}
	f := func(name string, full, short int, appended func(p Peer) []byte) {
		t.Helper()
		for limit := 1; limit < full+3; limit++ {
			want := full
			if limit < full {
				want = short
			}
			if limit < short {
				want = 0
			}
			if got := len(appended(Peer{Version: Version5, MaxPacket: uint32(limit)})); got != want {
				t.Errorf("%s with a limit of %d: %d bytes, want %d", name, limit, got, want)
			}
		}
	}
	f("puback", 69, 5, func(p Peer) []byte { return p.AppendPuback(nil, 1, 0x97, why) })
	f("pubcomp", 69, 4, func(p Peer) []byte { return p.AppendPubcomp(nil, 1, 0, why) })
	f("suback", 70, 7, func(p Peer) []byte { return p.AppendSuback(nil, 1, []byte{0, 1}, why) })
	f("unsuback", 69, 6, func(p Peer) []byte { return p.AppendUnsuback(nil, 1, []byte{0}, why) })
	f("disconnect", 67, 3, func(p Peer) []byte { return p.AppendDisconnect(nil, &Disconnect{Reason: 0x8E, ReasonString: why}) })
	f("auth", 71, 8, func(p Peer) []byte { return p.AppendAuth(nil, &Auth{Reason: 0x18, Method: "m", ReasonString: why}) })
	f("connack", 68, 5, func(p Peer) []byte {
		return p.AppendConnack(nil, &Connack{Properties: packets.Properties{ReasonString: why}})
	})
	for limit := range 200 {
		p := Peer{Version: Version5, MaxPacket: uint32(limit)}
		if n := len(p.AppendConnack(nil, &Connack{Properties: user})); limit > 0 && n > limit {
			t.Errorf("connack of %d bytes with a limit of %d", n, limit)
		}
	}
}

// MQTT 5, 3.1.2-29.
func TestAppendGivesNoProblemInformationUnasked(t *testing.T) {
	p := Peer{Version: Version5, NoProblemInfo: true}
	f := func(name string, got []byte, want string) {
		t.Helper()
		if w := mqtttest.Bytes(t, want); !bytes.Equal(got, w) {
			t.Errorf("%s: got %x, want %x", name, got, w)
		}
	}
	f("puback", p.AppendPuback(nil, 1, 0x97, "why"), `40 03 0001 97`)
	f("suback", p.AppendSuback(nil, 1, []byte{0x80}, "why"), `90 04 0001 00 80`)
	f("auth", p.AppendAuth(nil, &Auth{Reason: 0x18, Method: "m", ReasonString: "why"}), `f0 len 18 [ 15 s"m" ]`)
	f("disconnect", p.AppendDisconnect(nil, &Disconnect{Reason: 0x97, ReasonString: "why"}), `e0 len 97 [ 1f s"why" ]`)
	f("connack", p.AppendConnack(nil, &Connack{Properties: packets.Properties{ReasonString: "why"}}), `20 len 00 00 [ 1f s"why" ]`)
}

func TestEncodersDoNotAllocate(t *testing.T) {
	b := make([]byte, 0, 1<<10)
	m := numbered(30)
	m.SubscriptionIDs = []uint32{1, 2}
	ack := &Connack{Properties: packets.Properties{ReceiveMaximum: 10, AssignedClientID: "abc", ReasonString: "hello"}}
	suback := []byte{0, 1, 2}
	if n := testing.AllocsPerRun(100, func() {
		_ = peer5.AppendPuback(b, 1, 0x10, "why")
		_ = peer5.AppendSuback(b, 1, suback, "why")
		_ = peer5.AppendConnack(b, ack)
		_, _ = peer5.AppendPublish(b, m)
		_ = peer5.PublishSize(m)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// What a client of the library reads must be what was meant.
func TestLibraryReadsWhatIsSent(t *testing.T) {
	m := numbered(50)
	m.Expiry, m.HasExpiry, m.SubscriptionIDs = 17, true, []uint32{5, 1 << 27}
	b, _ := peer5.AppendPublish(nil, m)
	pk := libraryDecode(t, b, Version5)
	if pk.TopicName != m.Topic || pk.PacketID != m.PacketID || !bytes.Equal(pk.Payload, m.Payload) ||
		pk.Properties.MessageExpiryInterval != 17 || !reflect.DeepEqual(pk.Properties.SubscriptionIdentifier, []int{5, 1 << 27}) ||
		pk.Properties.ContentType != m.Properties.ContentType || len(pk.Properties.User) != 1 {
		t.Errorf("publish: %+v", pk)
	}
	pk = libraryDecode(t, peer5.AppendSuback(nil, 3, []byte{1, 0x87}, "no"), Version5)
	if pk.PacketID != 3 || !bytes.Equal(pk.ReasonCodes, []byte{1, 0x87}) || pk.Properties.ReasonString != "no" {
		t.Errorf("suback: %+v", pk)
	}
}

func libraryDecode(t testing.TB, b []byte, version byte) packets.Packet {
	t.Helper()
	pk := packets.Packet{ProtocolVersion: version}
	if err := pk.FixedHeader.Decode(b[0]); err != nil {
		t.Fatal(err)
	}
	r := bytes.NewReader(b[1:])
	n, _, err := packets.DecodeLength(r)
	if err != nil || n != r.Len() {
		t.Fatalf("%x: remaining length %d of %d, %v", b, n, r.Len(), err)
	}
	pk.FixedHeader.Remaining = n
	body := b[len(b)-n:]
	switch pk.FixedHeader.Type {
	case packets.Publish:
		err = pk.PublishDecode(body)
	case packets.Suback:
		err = pk.SubackDecode(body)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pk
}

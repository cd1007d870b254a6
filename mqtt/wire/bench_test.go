package wire

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// loop repeats a packet for ever.
type loop struct {
	b   []byte
	off int
}

func (l *loop) Read(b []byte) (n int, err error) {
	for n < len(b) {
		c := copy(b[n:], l.b[l.off:])
		l.off = (l.off + c) % len(l.b)
		n += c
	}
	return n, nil
}

func telemetry(properties bool) *Publish {
	m := &Publish{
		Topic: "plant/7/line/3/device/000042/telemetry", Payload: []byte(strings.Repeat("x", 200)), QoS: 1, PacketID: 77,
	}
	if properties {
		m.Expiry, m.HasExpiry = 3600, true
		m.Properties = &spool.Properties{ContentType: "application/json", User: []spool.UserProperty{{Name: "site", Value: "north"}}}
	}
	return m
}

func benchmarkRead(b *testing.B, packet []byte) {
	d := NewDecoder(io.MultiReader(bytes.NewReader(mqtttest.Bytes(b, connect5)), &loop{b: packet}), testLimits)
	if _, err := d.Read(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Read(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadPublish(b *testing.B) {
	p, _ := peer5.AppendPublish(nil, telemetry(false))
	benchmarkRead(b, p)
}

func BenchmarkReadPublishWithProperties(b *testing.B) {
	p, _ := peer5.AppendPublish(nil, telemetry(true))
	benchmarkRead(b, p)
}

func BenchmarkReadPuback(b *testing.B) { benchmarkRead(b, peer5.AppendPuback(nil, 77, 0, "")) }

// The library's decoder on a fresh packet and a fresh body, without any check of ours.
func BenchmarkLibraryPublish(b *testing.B) {
	p, _ := peer5.AppendPublish(nil, telemetry(false))
	body := p[3:]
	b.ReportAllocs()
	for b.Loop() {
		pk := &packets.Packet{ProtocolVersion: 5}
		_ = pk.FixedHeader.Decode(p[0])
		if err := pk.PublishDecode(bytes.Clone(body)); err != nil {
			b.Fatal(err)
		}
		sink = pk
	}
}

var sink any

func BenchmarkAppendPublish(b *testing.B) {
	m, buf := telemetry(true), make([]byte, 0, 1<<10)
	b.ReportAllocs()
	for b.Loop() {
		buf, _ = peer5.AppendPublish(buf[:0], m)
	}
}

func BenchmarkAppendPuback(b *testing.B) {
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		buf = peer5.AppendPuback(buf[:0], 77, 0, "")
	}
}

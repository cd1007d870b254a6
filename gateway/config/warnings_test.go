package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestWarningsNameWhatIsSeldomMeant(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		l, err := Parse("forebay.yaml", []byte(text), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := l.Config.Warnings()
		if len(got) != len(want) {
			t.Fatalf("%q, want %q", got, want)
		}
		for i, w := range want {
			if !strings.Contains(got[i], w) {
				t.Errorf("%q, want %q", got[i], w)
			}
		}
	}
	const routes = "bridge: {embedded: {enabled: true}, routes: [{name: a, topic: t}]}\n"
	f(routes)
	f("", "bridge.routes: is empty")
	f(routes+"mqtt: {listeners: []}", "mqtt.listeners: is empty")
	const login = "bridge: {upstreams: [{name: main, brokers: ['a:1'], %s sasl: {mechanism: plain, user: u, password_file: f}}], routes: [{name: a, topic: t}]}\n"
	f(fmt.Sprintf(login, ""), "bridge.upstreams[0].sasl.mechanism: plain sends a secret")
	f(fmt.Sprintf(login, "tls: {enabled: true},"))
	f(routes+"spool: {max_size: 1GiB}", "spool.max_size: retained messages and sessions")
	f(routes + "spool: {max_size: 1GiB}\nmqtt: {max_retained_size: 64MiB, max_sessions_size: 64MiB}")
	f(routes+"mqtt: {listeners: [{name: a, type: tcp, address: '0.0.0.0:1883'}, {name: b, type: tcp, address: 'localhost:1'}, {name: c, type: tcp, address: ':2'}]}",
		"mqtt.listeners[0].address: other machines reach 0.0.0.0:1883", "mqtt.listeners[2].address")
	f(routes+"spool: {streams: [{name: a, filters: ['x/#']}, {name: b, filters: ['x/+/y', 'z']}]}", `spool.streams[1].filters[0]: "x/+/y" gets nothing: spool.streams[0].filters[0] ("x/#")`)
	const fixed = "bridge: {upstreams: [{name: a, brokers: ['a:1']}, {name: b, brokers: ['b:1']}], routes: [{name: x, upstream: a, topic: t.one}, {name: y, upstream: %s, topic: '%s'}]}\n"
	f(fmt.Sprintf(fixed, "a", "t_one"), "bridge.routes[1].topic: Kafka takes t_one and t.one (bridge.routes[0].topic) for the same")
	f(fmt.Sprintf(fixed, "a", "t.one"))
	f(fmt.Sprintf(fixed, "b", "t_one"))
	f(fmt.Sprintf(fixed, "a", "t_${topic[0]}"))
}

func TestCovers(t *testing.T) {
	f := func(a, b string, want bool) {
		t.Helper()
		if got := covers(a, b); got != want {
			t.Errorf("%q covers %q: %v", a, b, got)
		}
	}
	f("#", "a/b", true)
	f("#", "#", true)
	f("#", "$SYS/#", false)
	f("a/#", "a", true)
	f("a/#", "a/+/b", true)
	f("a/+", "a/b", true)
	f("a/+", "a/#", false)
	f("a/+/c", "a/b/c", true)
	f("a/b", "a/+", false)
	f("a", "a/b", false)
	f("a/b", "a", false)
}

func TestFaultsThatWereTakenOnce(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		_, err := Parse("forebay.yaml", []byte(text), nil, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v, want %q", text, err, want)
		}
	}
	f("mqtt: {listeners: [{name: a, type: tcp, address: ':99999'}]}", `mqtt.listeners[0].address: "99999" is not a port: want 0 to 65535`)
	f("bridge: {embedded: {enabled: true, address: '127.0.0.1:x'}}", "bridge.embedded.address")
	f("gateway: {data_dir: ~/data}", "gateway.data_dir: ~ is not expanded")
	f("spool: {dir: ~/data}", "spool.dir: ~ is not expanded")
	f("spool: {max_size: 10 Gb}", "Gb")
}

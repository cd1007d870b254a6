package config

import (
	"slices"
	"testing"
)

func TestChangesNameTheKeys(t *testing.T) {
	const base = `
spool:
  max_size: 20GiB
  streams:
    - {name: a, filters: [a/#]}
    - {name: b, filters: [b/#]}
bridge:
  upstreams: [{name: main, brokers: ["kafka:9092"]}]
  routes:
    - {name: one, topic: one}
    - {name: two, topic: two, create_topics: {partitions: 3}}
`
	parse := func(text string) Config {
		t.Helper()
		l, err := Parse("f.yaml", []byte(text), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return l.Config
	}
	was := parse(base)
	f := func(text string, want ...string) {
		t.Helper()
		if got := Changes(was, parse(text)); !slices.Equal(got, want) {
			t.Errorf("%s\ngot  %q\nwant %q", text, got, want)
		}
	}
	f(base)
	f(`
log: {level: debug}
spool:
  max_size: 30GiB
  streams:
    - {name: b, filters: [b/#]}
    - {name: a, filters: [a/#], ttl: 1h}
bridge:
  upstreams: [{name: main, brokers: ["kafka:9092", "kafka-2:9092"]}]
  routes:
    - {name: two, topic: other}
    - {name: three, topic: three}
  downlinks: [{name: down, topics: [t], topic: t}]
`, "bridge.downlinks[down]", "bridge.routes[one]", "bridge.routes[three]", "bridge.routes[two].create_topics", "bridge.routes[two].topic",
		"bridge.upstreams[main].brokers", "log.level", "spool.max_size", "spool.streams[a].ttl")
	f(`
spool:
  max_size: 20GiB
  streams:
    - {name: b, filters: [b/#]}
    - {name: a, filters: [a/#]}
bridge:
  upstreams: [{name: main, brokers: ["kafka:9092"]}]
  routes:
    - {name: one, topic: one}
    - {name: two, topic: two, create_topics: {partitions: 3}}
`, "spool.streams") // the first that takes a topic has it
}

package bridge

import (
	"strings"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/bridge/embedded"
	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/mapping"
	"github.com/forebay-gateway/forebay/gateway/unit"
)

func TestConfigFaultsNameTheKey(t *testing.T) {
	good := func() Config {
		return Config{
			Upstreams: []kafka.Config{{Name: "main", Brokers: []string{"k1:9092,k2:9092", "[::1]:9092"}}},
			Embedded:  embedded.DefaultConfig(),
			Routes:    []RouteConfig{{Name: "all", Topic: "telemetry"}},
		}
	}
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	f := func(want string, change func(*Config)) {
		t.Helper()
		c := good()
		change(&c)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	f("upstreams[0].name: \"Main\" is not", func(c *Config) { c.Upstreams[0].Name = "Main" })
	f("upstreams[0].brokers: none given", func(c *Config) { c.Upstreams[0].Brokers = nil })
	f("upstreams[0].brokers[1]: \"k3\" is not host:port", func(c *Config) { c.Upstreams[0].Brokers = []string{"k1:1", "k2:1,k3"} })
	f("upstreams[0].brokers[0]: \"k1:99999\" has the port", func(c *Config) { c.Upstreams[0].Brokers = []string{"k1:99999"} })
	f("upstreams[0].compression: \"zip\" is none of zstd", func(c *Config) { c.Upstreams[0].Compression = "zip" })
	f("upstreams[0].max_buffered: 1KiB", func(c *Config) { c.Upstreams[0].MaxBuffered = 1 << 10 })
	f("upstreams[1].name: \"main\" is already", func(c *Config) { c.Upstreams = append(c.Upstreams, c.Upstreams[0]) })
	f("upstreams[0].name: \"embedded\" is the broker", func(c *Config) { c.Upstreams[0].Name = "embedded" })
	f("embedded.address: \"0.0.0.0:9092\" is not on 127.0.0.1", func(c *Config) { c.Embedded.Enabled, c.Embedded.Address = true, "0.0.0.0:9092" })
	f("embedded.retention: 1s", func(c *Config) { c.Embedded.Enabled, c.Embedded.Retention = true, 1e9 })
	f("routes[0].name: \"\" is not", func(c *Config) { c.Routes[0].Name = "" })
	f("routes[1].name: \"all\" is already the name of routes[0]", func(c *Config) { c.Routes = append(c.Routes, c.Routes[0]) })
	f("routes[0].upstream: unknown upstream \"mian\"; there are main", func(c *Config) { c.Routes[0].Upstream = "mian" })
	f("routes[0].upstream: there is none", func(c *Config) { c.Upstreams = nil })
	f("routes[0].upstream: which one? there are main, embedded", func(c *Config) { c.Embedded.Enabled = true })
	f("routes[0].filters[1]: topic filter \"a/#/b\"", func(c *Config) { c.Routes[0].Filters = []string{"a", "a/#/b"} })
	f("routes[0].topic: position 3: unknown field \"x\"", func(c *Config) { c.Routes[0].Topic = "a.${x}" })
	f("routes[0].topic: empty", func(c *Config) { c.Routes[0].Topic = "" })
	f("routes[0].key: \"clientid\" is none of client_id, topic, topic[N], none", func(c *Config) { c.Routes[0].Key = "clientid" })
	f("routes[0].key: \"x\" in topic[x] is not a level", func(c *Config) { c.Routes[0].Key = "topic[x]" })
	f("routes[0].from: \"start\" is none of", func(c *Config) { c.Routes[0].From = "start" })
	f("routes[0].delivery: \"once\" is neither", func(c *Config) { c.Routes[0].Delivery = "once" })
	f("routes[0].after_crash: \"hope\" is neither", func(c *Config) { c.Routes[0].AfterCrash = "hope" })
	f("routes[0].failover.to[0]: unknown upstream \"cloud\"; there are main", func(c *Config) { c.Routes[0].Failover.To = []string{"cloud"} })
	f("downlinks[0].own_records: pass, and routes[0] sends what came by a downlink to topic telemetry", func(c *Config) { // after a failover
		c.Upstreams = append(c.Upstreams, kafka.Config{Name: "cloud", Brokers: []string{"k9:9092"}})
		c.Routes[0].Upstream, c.Routes[0].Failover.To, c.Routes[0].Downlinks = "main", []string{"cloud"}, true
		c.Downlinks = []downlink.Config{{Name: "down", Upstream: "cloud", Topics: []string{"telemetry"}, Topic: "a", OwnRecords: downlink.OwnPass, OnPoison: downlink.Skip}}
	})
	f("downlinks[0].own_records: pass, and routes[0] sends what came by a downlink to topic alarms", func(c *Config) {
		c.Routes[0].Choose, c.Routes[0].Downlinks = []mapping.Choice{{When: "qos == 2", Topic: "alarms"}}, true
		c.Downlinks = []downlink.Config{{Name: "down", Pattern: "al.*", Topic: "a", OwnRecords: downlink.OwnPass, OnPoison: downlink.Skip}}
	})
	f("routes[0].failover.to[0]: \"main\" is in the list already", func(c *Config) { c.Routes[0].Failover.To = []string{"main"} })
	f("routes[0].failover.to[0]: the embedded upstream goes away", func(c *Config) {
		c.Embedded.Enabled, c.Routes[0].Upstream, c.Routes[0].Failover.To = true, "main", []string{"embedded"}
	})
	f("routes[0].failover.to: there is none, and the other keys", func(c *Config) { c.Routes[0].Failover.After = unit.Duration(time.Hour) })
	two := func(c *Config) *Failover {
		c.Upstreams = append(c.Upstreams, kafka.Config{Name: "cloud", Brokers: []string{"k9:9092"}})
		c.Routes[0].Upstream, c.Routes[0].Failover.To = "main", []string{"cloud"}
		return &c.Routes[0].Failover
	}
	f("routes[0].failover.after: 500ms is less than 1s", func(c *Config) { two(c).After = unit.Duration(500 * time.Millisecond) })
	f("routes[0].failover.fail_back: \"later\" is neither auto nor never", func(c *Config) { two(c).FailBack = "later" })
	f("routes[0].failover.fail_back_after: 500ms is less than 1s", func(c *Config) { two(c).FailBackAfter = unit.Duration(500 * time.Millisecond) })
	f("routes[0].rate: 100B/s is less than", func(c *Config) { c.Routes[0].Rate = 100 })
	f("routes[0].records_per_second: -1", func(c *Config) { c.Routes[0].RecordsPerSecond = -1 })
	f("routes[0].max_topics: -1", func(c *Config) { c.Routes[0].MaxTopics = -1 })
	f("routes[0].create_topics.partitions: 0", func(c *Config) { c.Routes[0].CreateTopics = &kafka.Create{} })
	f("routes[0].create_topics.configs[0]: \"x\" is not key=value", func(c *Config) {
		c.Routes[0].CreateTopics = &kafka.Create{Partitions: 1, Configs: []string{"x"}}
	})
	f("dead_letter_stream: \"default\" takes records of devices", func(c *Config) { c.DeadLetterStream = "default" })
}

func TestBrokersAreSplitAtCommas(t *testing.T) {
	got := kafka.Config{Brokers: []string{"a:1, b:2", "c:3"}}.BrokerList()
	if strings.Join(got, " ") != "a:1 b:2 c:3" {
		t.Errorf("brokers %q", got)
	}
}

func TestUnknownStreamsAreRefused(t *testing.T) {
	l := newMemLog(map[string]int{"default": 1})
	cfg := Config{
		Upstreams: []kafka.Config{{Name: "main", Brokers: []string{"127.0.0.1:1"}}},
		Routes:    []RouteConfig{{Name: "all", Topic: "telemetry", Stream: "alarms"}},
	}
	if _, err := New(t.Context(), cfg, Options{Log: l, GatewayID: "gw"}); err == nil || !strings.Contains(err.Error(), `routes[0].stream: unknown stream "alarms"`) {
		t.Errorf("%v", err)
	}
	cfg.Routes[0].Stream, cfg.DeadLetterStream = "default", "dead"
	if _, err := New(t.Context(), cfg, Options{Log: l, GatewayID: "gw"}); err == nil || !strings.Contains(err.Error(), `dead_letter_stream: unknown stream "dead"`) {
		t.Errorf("%v", err)
	}
}

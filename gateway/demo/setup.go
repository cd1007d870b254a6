package demo

import (
	"fmt"
	"net"
	"path/filepath"

	"github.com/forebay-gateway/forebay/bridge"
	"github.com/forebay-gateway/forebay/bridge/embedded"
	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/loadtest/fleet"
	"github.com/forebay-gateway/forebay/mqtt"
)

// The demo's own names.
const (
	kafkaTopic   = "telemetry"
	upstreamName = "demo"
	routeName    = "telemetry"
)

// upstreamConfig is the embedded broker. It is a part of the demo and not of the gateway, so that it can go away alone.
func (d *demo) upstreamConfig() embedded.Config {
	c := embedded.DefaultConfig()
	c.Enabled = true
	c.Address = d.address("Kafka", c.Address)
	c.Dir = filepath.Join(d.dir, "kafka")
	return c
}

// gatewayConfig is the gateway as a user would write it, with a small spool.
func (d *demo) gatewayConfig() config.Config {
	c := config.DefaultConfig()
	c.Gateway.ID = "demo"
	c.Gateway.DataDir = filepath.Join(d.dir, "gateway")
	c.Admin.Address = d.address("health and metrics", c.Admin.Address)
	for i, l := range c.MQTT.Listeners {
		c.MQTT.Listeners[i].Address = d.address("MQTT "+l.Name, l.Address)
		if l.Type == mqtt.ListenerTCP {
			d.mqttAddr = c.MQTT.Listeners[i].Address
		}
	}
	c.Spool.MaxSize = 2 << 30
	c.Spool.MinFree = 64 << 20
	c.Spool.Journal.FileSize = 16 << 20
	c.Bridge.Upstreams = []kafka.Config{{Name: upstreamName, Brokers: []string{d.upstream.Addr()}}}
	c.Bridge.Routes = []bridge.RouteConfig{{
		Name: routeName, Upstream: upstreamName, Topic: kafkaTopic, CreateTopics: &kafka.Create{Partitions: 6, Replication: 1},
	}}
	return c
}

// fleetConfig is devices that wake together, one subscriber and one consumer.
func (d *demo) fleetConfig() fleet.Config {
	return fleet.Config{
		Broker: d.mqttAddr, TopicPrefix: "demo", Devices: d.o.Devices, Rate: d.o.Rate, Profile: fleet.Bursty, Mix: d.o.Mix,
		Duration: d.o.Duration, Subscribers: 1, SubscriberQoS: 2,
		Kafka: []string{d.upstream.Addr()}, KafkaTopic: []string{kafkaTopic}, IDHeader: "forebay.id",
	}
}

// address is the usual one, or a free one when something else listens there; then it says so.
func (d *demo) address(what, usual string) string {
	if ln, err := net.Listen("tcp", usual); err == nil {
		ln.Close()
		return usual
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return usual // the part that listens there will tell
	}
	defer ln.Close()
	d.notes = append(d.notes, fmt.Sprintf("%s: %s is taken, using %s", what, usual, ln.Addr()))
	return ln.Addr().String()
}

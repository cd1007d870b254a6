package config

import (
	"fmt"
	"net"
	"strings"

	"github.com/forebay-gateway/forebay/mqtt"
)

// Warnings are what is allowed and seldom meant, each starting with the path of a key.
func (c Config) Warnings() []string {
	var out []string
	warn := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch {
	case c.Admin.Exposed():
		warn("admin.tls: is empty, and other machines reach %s: tokens, health and metrics can be read on the way", c.Admin.Address)
	case c.Admin.AllowRemote && !c.Admin.RequireAuth:
		warn("admin.require_auth: is false: whoever reaches %s is told health and metrics", c.Admin.Address)
	}
	if len(c.MQTT.Listeners) == 0 {
		warn("mqtt.listeners: is empty: no device can connect")
	}
	for i, l := range c.MQTT.Listeners {
		if l.Type != mqtt.ListenerUnix && len(l.Auth.Methods) == 0 && len(c.MQTT.Auth.Methods) == 0 && !onlyHere(l.Address) {
			warn("mqtt.listeners[%d].address: other machines reach %s, and everybody there may connect, publish and subscribe: set mqtt.auth.methods",
				i, l.Address)
		}
	}
	if state := c.MQTT.MaxRetainedSize + c.MQTT.MaxSessionsSize; state > c.Spool.MaxSize/2 {
		warn("spool.max_size: retained messages and sessions (mqtt.max_retained_size and max_sessions_size, together %v) may take more than half of %v, and retention removes none of them", state, c.Spool.MaxSize)
	}
	if len(c.Bridge.Routes) == 0 && len(c.Bridge.Downlinks) == 0 {
		warn("bridge.routes: is empty: nothing goes to Kafka")
	}
	for i, u := range c.Bridge.Upstreams {
		if u.InClear() {
			warn("bridge.upstreams[%d].sasl.mechanism: %s sends a secret that everybody on the way can read: set tls.enabled", i, u.SASL.Mechanism)
		}
	}
	out = append(out, c.sameToKafka()...)
	type taken struct{ key, filter string }
	var before []taken
	for i, st := range c.Spool.Streams {
		var own []taken
		for j, f := range st.Filters {
			key := fmt.Sprintf("spool.streams[%d].filters[%d]", i, j)
			for _, b := range before {
				if covers(b.filter, f) {
					warn("%s: %q gets nothing: %s (%q) comes first and takes all of it", key, f, b.key, b.filter)
					break
				}
			}
			own = append(own, taken{key, f})
		}
		before = append(before, own...)
	}
	return out
}

// sameToKafka finds fixed topics of routes that differ in . and _ only: Kafka's metrics take the two for one, and it refuses to make the
// second one.
func (c Config) sameToKafka() (out []string) {
	type named struct{ key, topic string }
	seen := map[string]named{}
	for i, r := range c.Bridge.Routes {
		topics := []named{{fmt.Sprintf("bridge.routes[%d].topic", i), r.Topic}}
		for j, ch := range r.Choose {
			topics = append(topics, named{fmt.Sprintf("bridge.routes[%d].choose[%d].topic", i, j), ch.Topic})
		}
		for _, t := range topics {
			if strings.Contains(t.topic, "${") {
				continue // no two of one template collide
			}
			at := r.Upstream + " " + strings.ReplaceAll(t.topic, ".", "_")
			if b, ok := seen[at]; ok && b.topic != t.topic {
				out = append(out, fmt.Sprintf("%s: Kafka takes %s and %s (%s) for the same in its metrics, and refuses to make the second one", t.key, t.topic, b.topic, b.key))
			} else if !ok {
				seen[at] = t
			}
		}
	}
	return out
}

// onlyHere reports whether only this machine reaches an address.
func onlyHere(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// covers reports whether every topic that matches filter b matches filter a.
func covers(a, b string) bool {
	if strings.HasPrefix(b, "$") && (a[:1] == "#" || a[:1] == "+") {
		return false // MQTT 5, 4.7.2
	}
	for {
		al, arest, amore := strings.Cut(a, "/")
		bl, brest, bmore := strings.Cut(b, "/")
		switch {
		case al == "#":
			return true
		case bl == "#", al != "+" && al != bl:
			return false
		case !amore && !bmore:
			return true
		case !bmore:
			return arest == "#" // which includes the parent level
		case !amore:
			return false
		}
		a, b = arest, brest
	}
}

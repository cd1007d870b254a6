package storetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
)

// Proxy is a real proxy of TCP (toxiproxy) between a store and its server, with faults of the test's choice.
type Proxy struct {
	Addr string // where the server is reached by way of it
	t    *testing.T
	api  string
}

// StartProxy runs one in front of a server.
func StartProxy(t *testing.T, upstream string) *Proxy {
	t.Helper()
	api, port := freePort(t), freePort(t)
	run(t, api, nil, tool(t, "toxiproxy"), "-host", "127.0.0.1", "-port", fmt.Sprint(api))
	p := &Proxy{Addr: at(port), t: t, api: "http://" + at(api) + "/proxies"}
	p.call(http.MethodPost, "", map[string]any{"name": "store", "listen": p.Addr, "upstream": upstream, "enabled": true})
	return p
}

// Fault puts a toxic in: its kind and attributes are those of toxiproxy's documentation. up is the way to the server.
func (p *Proxy) Fault(kind string, up bool, attributes map[string]any) {
	p.t.Helper()
	stream := "downstream"
	if up {
		stream = "upstream"
	}
	p.call(http.MethodPost, "/store/toxics", map[string]any{"name": kind + stream, "type": kind, "stream": stream, "toxicity": 1, "attributes": attributes})
}

// Heal takes a fault out again, and ends the connections that had it.
func (p *Proxy) Heal(kind string, up bool) {
	p.t.Helper()
	stream := "downstream"
	if up {
		stream = "upstream"
	}
	p.call(http.MethodDelete, "/store/toxics/"+kind+stream, nil)
	p.Reach(false)
	p.Reach(true)
}

// Reach says whether the server can be connected to.
func (p *Proxy) Reach(can bool) {
	p.t.Helper()
	p.call(http.MethodPost, "/store", map[string]any{"enabled": can})
}

func (p *Proxy) call(method, path string, body any) {
	p.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		p.t.Fatal(err)
	}
	post(p.t, method, p.api+path, string(b))
}

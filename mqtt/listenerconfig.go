package mqtt

import (
	"net"
	"strings"

	"github.com/forebay-gateway/forebay/mqtt/auth"
	"github.com/forebay-gateway/forebay/mqtt/transport"
)

// The types of a listener.
const (
	ListenerTCP             = "tcp"
	ListenerTLS             = "tls"
	ListenerWebSocket       = "websocket"
	ListenerSecureWebSocket = "wss"
	ListenerUnix            = "unix"
)

// ListenerConfig is one address where clients connect.
type ListenerConfig struct {
	// Name of the listener in logs and metrics.
	Name string `yaml:"name"`

	// Type: tcp, tls, websocket, wss (WebSocket over TLS) or unix (a Unix socket).
	Type string `yaml:"type"`

	// Address, host:port; of type unix the absolute path of the socket. Customary ports: 1883 for tcp, 8883 for tls, 8083
	// for websocket, 8084 for wss. Without mqtt.auth.methods keep it on a loopback or trusted network.
	Address string `yaml:"address"`

	// Path of the WebSocket. Only for types websocket and wss.
	Path string `yaml:"path"`

	// Origins that a browser may come from, such as https://example.com; "*" is any. Empty: the host of the request only, and
	// on a loopback address without TLS only localhost and addresses: a proxy before it needs the origins of its pages here. Clients that are no browsers send none and are not asked. Only for types websocket and wss.
	Origins []string `yaml:"origins"`

	// Certificate, and what clients have to show. Only for types tls and wss.
	TLS transport.TLSConfig `yaml:"tls"`

	// Proxies that tell where clients come from. Not for type unix.
	Proxy transport.ProxyConfig `yaml:"proxy_protocol"`

	// Permissions of the socket, octal; whoever may write to it may connect. Empty: 0660. Only for type unix.
	Mode string `yaml:"mode"`

	// What this listener does otherwise than mqtt.auth.
	Auth auth.ListenerConfig `yaml:"auth"`

	// Connections at the same time, from the first packet of TCP on; 0 is no limit but mqtt.max_connections. Who is above it is
	// refused (0x97), on a listener with TLS or WebSocket before the handshake.
	MaxConnections int `yaml:"max_connections"`

	// Connections at the same time from one address (of IPv6 a /64), those that are not in yet included; 0 is no limit. Who
	// is above it is refused, on a listener with TLS or WebSocket before the handshake.
	MaxConnectionsPerAddress int `yaml:"max_connections_per_address"`

	// New connections in a second; as many may come at once, the rest wait in the queue of the system. 0 is no limit.
	ConnectionRate int `yaml:"connection_rate"`

	// New connections in a second from one address (of IPv6 a /64); as many of ten seconds may come at once, the rest are
	// refused (0x9F), on a listener with TLS or WebSocket before the handshake. 0 is no limit.
	ConnectionRatePerAddress int `yaml:"connection_rate_per_address"`

	// What all clients of this listener together may send.
	Rate RateConfig `yaml:"rate"`

	// What one client of this listener may send, instead of mqtt.client_rate. Without limits here: that one.
	ClientRate RateConfig `yaml:"client_rate"`

	// Highest QoS of a publish on this listener, instead of mqtt.max_qos.
	MaxQoS *int `yaml:"max_qos"`

	// Whether there are retained messages on this listener, instead of mqtt.retain_available.
	RetainAvailable *bool `yaml:"retain_available"`

	// Connections that are busy with what comes before MQTT at the same time: PROXY header, TLS handshake, HTTP request. Twice as many wait for
	// them, the rest in the queue of the system. Addresses (of IPv6 a /64) share them: who does not go on for a second (or a tenth of
	// tls.handshake_timeout) loses the place to another address that waits. 0 is 1024. Not for a tcp or unix listener without a proxy.
	MaxHandshakes int `yaml:"max_handshakes"`
}

func (l ListenerConfig) validate(fault func(string, ...any)) {
	if l.Name == "" {
		fault(".name: is missing")
	}
	l.validateAddress(fault)
	positive := func(key string, n int) {
		if n < 0 {
			fault("%s: %d is negative", key, n)
		}
	}
	positive(".max_connections", l.MaxConnections)
	positive(".connection_rate", l.ConnectionRate)
	positive(".max_handshakes", l.MaxHandshakes)
	positive(".max_connections_per_address", l.MaxConnectionsPerAddress)
	positive(".connection_rate_per_address", l.ConnectionRatePerAddress)
	l.Rate.validate(".rate", fault)
	l.ClientRate.validate(".client_rate", fault)
	if q := l.MaxQoS; q != nil && (*q < 0 || *q > 2) {
		fault(".max_qos: %d is not between 0 and 2", *q)
	}
	if l.Type == ListenerUnix && l.MaxConnectionsPerAddress+l.ConnectionRatePerAddress > 0 {
		fault(".max_connections_per_address: clients of a unix listener have no address")
	}
	if l.secure() {
		l.TLS.Validate(fault)
	} else if timeout := l.TLS.HandshakeTimeout; l.TLS != (transport.TLSConfig{HandshakeTimeout: timeout}) {
		fault(".tls: a listener of type %s has none; want type %s or %s", l.Type, ListenerTLS, ListenerSecureWebSocket)
	}
	l.Proxy.Validate(fault)
	if l.Type == ListenerUnix && len(l.Proxy.Trusted) > 0 {
		fault(".proxy_protocol: a unix listener has none")
	}
	if l.webSocket() {
		if !strings.HasPrefix(l.Path, "/") {
			fault(".path: %q does not start with /", l.Path)
		}
		return
	}
	if l.Path != "" {
		fault(".path: a %s listener has none", l.Type)
	}
	if len(l.Origins) > 0 {
		fault(".origins: a %s listener has none", l.Type)
	}
}

func (l ListenerConfig) validateAddress(fault func(string, ...any)) {
	switch l.Type {
	case ListenerUnix:
		if err := transport.CheckUnixPath(l.Address); err != nil {
			fault(".address: %w", err)
		}
		if _, err := transport.ParseMode(l.Mode); err != nil {
			fault(".mode: %w", err)
		}
		return
	case ListenerTCP, ListenerTLS, ListenerWebSocket, ListenerSecureWebSocket:
	default:
		fault(".type: %q is not %s, %s, %s, %s or %s", l.Type, ListenerTCP, ListenerTLS, ListenerWebSocket, ListenerSecureWebSocket, ListenerUnix)
	}
	if _, _, err := net.SplitHostPort(l.Address); err != nil {
		fault(".address: %q is not host:port", l.Address)
	}
	if l.Mode != "" {
		fault(".mode: a %s listener has none", l.Type)
	}
}

func (l ListenerConfig) secure() bool {
	return l.Type == ListenerTLS || l.Type == ListenerSecureWebSocket
}

func (l ListenerConfig) webSocket() bool {
	return l.Type == ListenerWebSocket || l.Type == ListenerSecureWebSocket
}

// alpn is the protocol that TLS clients may ask for.
func (l ListenerConfig) alpn() string {
	if l.webSocket() {
		return transport.ALPNHTTP
	}
	return transport.ALPNMQTT
}

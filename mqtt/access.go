package mqtt

import "net"

// Client is who asks.
type Client struct {
	ID       string
	UserName string
	Listener string
	Remote   net.Addr
}

// Access decides what clients may do. A nil Access allows everything to everybody, which is why the default listeners are
// on the loopback address. Its methods are called by the readers of many connections at the same time, and a connection
// is not read meanwhile. An error refuses; its reason code is that of the package's errors, 0x80 for others.
type Access interface {
	// Connect decides about a CONNECT. password is nil when the client sent none.
	Connect(c Client, password []byte) error

	// Publish decides about a PUBLISH and, at CONNECT, about a will.
	Publish(c Client, topic string, qos byte, retain bool) error

	// Subscribe decides about one topic filter, $share/{name}/ included.
	Subscribe(c Client, filter string, qos byte) error
}

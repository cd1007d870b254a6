package transport

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/pires/go-proxyproto"
)

const (
	proxyHead = 16      // signature, version and command, family, length
	proxyMax  = 4 << 10 // addresses take 36 bytes at most here, the rest are notes of the proxy
)

// Proxy knows who may speak for others.
type Proxy struct{ trusted []netip.Prefix }

// NewProxy takes a valid configuration. It returns nil when there is nobody to trust.
func NewProxy(c ProxyConfig) *Proxy {
	if len(c.Trusted) == 0 {
		return nil
	}
	p := &Proxy{}
	for _, s := range c.Trusted {
		if prefix, err := parsePrefix(s); err == nil {
			p.trusted = append(p.trusted, prefix)
		}
	}
	return p
}

// Trusts reports whether a connection from there has to begin with a header.
func (p *Proxy) Trusts(peer net.Addr) bool {
	tcp, ok := peer.(*net.TCPAddr)
	if !ok {
		return false
	}
	a := tcp.AddrPort().Addr().Unmap().WithZone("")
	for _, prefix := range p.trusted {
		if prefix.Contains(a) {
			return true
		}
	}
	return false
}

// Accept reads the header of a trusted proxy, until ctx ends, and returns the connection as that of the client that it names.
// An error other than of the connection wraps ErrProxyHeader. nc is for the caller to close.
func (p *Proxy) Accept(ctx context.Context, nc net.Conn) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	head, err := readProxyHead(nc)
	if !stop() {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	h, err := proxyproto.Read(bufio.NewReaderSize(bytes.NewReader(head), len(head)))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProxyHeader, err)
	}
	if h.Command.IsLocal() || h.TransportProtocol == proxyproto.UNSPEC {
		return nc, nil // the proxy speaks for itself, to see whether we are there
	}
	from, ok := h.SourceAddr.(*net.TCPAddr)
	if !ok {
		return nil, fmt.Errorf("%w: the client's address is not one of TCP", ErrProxyHeader)
	}
	return &proxied{Conn: nc, remote: from}, nil
}

// readProxyHead reads a header and nothing behind it.
func readProxyHead(r io.Reader) ([]byte, error) {
	head := make([]byte, 0, proxyHead+36)
	signature := proxyproto.SIGV2
	for len(head) < proxyHead {
		// What is no header is refused at its first wrong byte: its sender may be waiting for an answer.
		n, err := r.Read(head[len(head):proxyHead])
		head = head[:len(head)+n]
		if got := head[:min(len(head), len(signature))]; !bytes.HasPrefix(signature, got) {
			return nil, fmt.Errorf("%w: begins with %x, which is no header of version 2", ErrProxyHeader, got)
		}
		if err != nil && len(head) < proxyHead {
			return nil, err
		}
	}
	n := int(binary.BigEndian.Uint16(head[proxyHead-2:]))
	if n > proxyMax {
		return nil, fmt.Errorf("%w: header of %d bytes, want at most %d", ErrProxyHeader, n, proxyMax)
	}
	head = append(head, make([]byte, n)...)
	if _, err := io.ReadFull(r, head[proxyHead:]); err != nil {
		return nil, err
	}
	return head, nil
}

// proxied is a connection with the address that its proxy told.
type proxied struct {
	net.Conn
	remote net.Addr
}

// RemoteAddr implements net.Conn.
func (c *proxied) RemoteAddr() net.Addr { return c.remote }

// NetConn is the connection of the proxy.
func (c *proxied) NetConn() net.Conn { return c.Conn }

// CloseWrite ends the stream to the client.
func (c *proxied) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(nc net.Conn) error {
	if half, ok := nc.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nc.Close()
}

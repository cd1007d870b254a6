package transport

import "net/netip"

// Source is what counts as one address where those are counted, slowed or kept out: who has an IPv6 address has 2^64 of them. It is
// not valid for the zero Addr, as on a Unix socket.
func Source(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return p
}

// Package transport is what lies between a socket and MQTT: TLS with client certificates and revocation lists, the PROXY
// protocol, Unix sockets.
//
// # Words
//
// A [TLS] holds what one listener shows and trusts. It consists of two bundles, each replaced as a whole: the pair (certificate
// and key) and the trust (client CA and revocation list). A bundle with a fault in a file is not used; the old one stays in force,
// and [TLS.Health] says so until the files are good again.
//
// # Guarantees
//
// New files count for the next handshake. A connection that is open is not touched by them; whether its certificate has been
// revoked is a question that [TLS.Revoked] answers. A resumed TLS session is verified against the trust of now, not against
// that of the day when it began.
//
// A handshake computes only while it holds one of a few slots, and gives the slot back while it waits for its peer: a storm of
// handshakes takes its share of the processors and no more, and peers that send nothing hold up nobody.
//
// A PROXY header is read from peers that are trusted to send one, byte by byte up to its own length: nothing of what follows is
// held back, and an idle connection has no buffer for it. What other peers send is never taken for a header.
//
// # Limits
//
// Revocation is by list only, complete lists signed by a CA of the file: no OCSP, no delta or indirect lists. The TLS records of a
// PROXY header (PP2_TYPE_SSL) are not looked at: a client certificate counts only where this process has verified it.
package transport

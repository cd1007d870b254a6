// Package wire turns the bytes of MQTT clients into packets, and packets for them into bytes.
//
// A Decoder reads one connection. It is strict: whatever one packet alone can do wrong is refused with the reason code
// that MQTT 5 names for it, and *Error says how the client may be told. What depends on more than the packet is left to
// the session: a topic alias above the maximum or unknown, Receive Maximum, identifiers in use, what is authorised, and
// the Payload Format Indicator (PayloadFormatValid). Where the standard names no reason code, a packet that cannot be
// read, or whose topic name or filter breaks the grammar, is malformed (0x81), and one that can be read but holds a
// forbidden value is a protocol error (0x82), as in the definitions of chapter 1.2.
//
// A Decoder is bounded: it refuses a packet by its announced length before it allocates, has a smaller limit for the
// CONNECT, which nobody has authenticated yet, and gives a long body memory only as its bytes arrive. While it waits it
// holds one object of 512 bytes. The memory of a packet belongs to the packet, so that a record can go through the spool
// and to all subscribers without a copy.
//
// Peer encodes what one client gets, without allocation and below its Maximum Packet Size. A PUBLISH for many subscribers
// is encoded once for each version and patched.
//
// Types of packets, reason codes and the decoding of properties off the hot path come from mochi-mqtt's package packets.
// PUBLISH and the acknowledgements are decoded by hand: a PUBLISH of 250 bytes takes 0.26 µs and 352 bytes in 2
// allocations, checks included, against 0.62 µs and 1200 bytes in 3 with the library's 800-byte Packet
// (BenchmarkReadPublish, BenchmarkLibraryPublish). FuzzPublishAgainstLibrary holds the two to the same result.
package wire

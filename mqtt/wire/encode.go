package wire

// Peer is the client that packets are encoded for. All its Append methods append one packet to b and return the extended
// slice; they allocate only when b must grow. To a client of MQTT 3.1.1 they send no properties and no reason codes, and
// nothing at all where 3.1.1 has no packet (DISCONNECT, AUTH). A reason string is left out when the client asked for no
// problem information (CONNACK and DISCONNECT excepted) and when it would exceed MaxPacket.
type Peer struct {
	Version       byte
	NoProblemInfo bool   // Request Problem Information is 0
	MaxPacket     uint32 // Maximum Packet Size of the client, 0 is no limit
}

// AppendConnack appends a CONNACK.
func (p Peer) AppendConnack(b []byte, c *Connack) []byte { panic("BUG: not written yet") }

// AppendPuback appends a PUBACK.
func (p Peer) AppendPuback(b []byte, id uint16, reason byte, text string) []byte {
	panic("BUG: not written yet")
}

// AppendPubrec appends a PUBREC.
func (p Peer) AppendPubrec(b []byte, id uint16, reason byte, text string) []byte {
	panic("BUG: not written yet")
}

// AppendPubrel appends a PUBREL.
func (p Peer) AppendPubrel(b []byte, id uint16, reason byte, text string) []byte {
	panic("BUG: not written yet")
}

// AppendPubcomp appends a PUBCOMP.
func (p Peer) AppendPubcomp(b []byte, id uint16, reason byte, text string) []byte {
	panic("BUG: not written yet")
}

// AppendSuback appends a SUBACK with one reason code per filter. For 3.1.1 every code from 0x80 up is sent as 0x80.
func (p Peer) AppendSuback(b []byte, id uint16, reasons []byte, text string) []byte {
	panic("BUG: not written yet")
}

// AppendUnsuback appends an UNSUBACK with one reason code per filter.
func (p Peer) AppendUnsuback(b []byte, id uint16, reasons []byte, text string) []byte {
	panic("BUG: not written yet")
}

// AppendPingresp appends a PINGRESP.
func (p Peer) AppendPingresp(b []byte) []byte { panic("BUG: not written yet") }

// AppendDisconnect appends a DISCONNECT; nothing for 3.1.1.
func (p Peer) AppendDisconnect(b []byte, d *Disconnect) []byte { panic("BUG: not written yet") }

// AppendAuth appends an AUTH; nothing for 3.1.1.
func (p Peer) AppendAuth(b []byte, a *Auth) []byte { panic("BUG: not written yet") }

// PublishSize returns the size of m as a packet. It must not be sent when it is above MaxPacket (MQTT 5, 3.1.2-24).
func (p Peer) PublishSize(m *Publish) int { panic("BUG: not written yet") }

// AppendPublish appends m. id is where m's packet identifier stands, counted from the packet's first byte (which is
// len(b) on entry), for PatchPublish; it is 0 when m has none.
func (p Peer) AppendPublish(b []byte, m *Publish) (packet []byte, id int) {
	panic("BUG: not written yet")
}

// PatchPublish gives an encoded PUBLISH another packet identifier and DUP flag. id is what AppendPublish returned.
func PatchPublish(packet []byte, id int, packetID uint16, dup bool) { panic("BUG: not written yet") }

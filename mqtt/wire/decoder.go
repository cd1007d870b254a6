package wire

import "io"

// Limits bound what a client may send. Sizes are those of whole packets, fixed header included.
type Limits struct {
	Connect uint32 // largest CONNECT; small, because nobody is authenticated yet
	Packet  uint32 // largest packet after the CONNECT: the Maximum Packet Size of the CONNACK
}

// Decoder reads a client's packets from a connection.
type Decoder struct {
	r io.Reader
	l Limits
}

// NewDecoder returns a Decoder that expects a CONNECT first.
func NewDecoder(r io.Reader, l Limits) *Decoder { return &Decoder{r: r, l: l} }

// Read returns the next packet. The version is taken from the CONNECT; a second one is an error. After an error of any
// kind Read must not be called again.
func (d *Decoder) Read() (Packet, error) { panic("BUG: not written yet") }

// SetLimit changes the largest packet that is accepted from now on.
func (d *Decoder) SetLimit(packet uint32) { d.l.Packet = packet }

// Buffered returns how many bytes were read from the connection and not yet returned: 0 means that the next Read may block.
func (d *Decoder) Buffered() int { return 0 }

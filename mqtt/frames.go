package mqtt

// packetCutter finds the ends of packets in what is written to a connection, in whatever pieces that comes.
type packetCutter struct {
	typed bool // the first byte of the present packet has passed
	shift int  // bits of its Remaining Length that have passed
	size  int  // their value
	left  int  // bytes of its body that have not passed, when the length is known
}

// next returns how many bytes of b belong to the present packet.
func (c *packetCutter) next(b []byte) int {
	for i := 0; i < len(b); {
		switch {
		case c.left > 0:
			n := min(c.left, len(b)-i)
			c.left -= n
			i += n
			if c.left == 0 {
				return i
			}
		case !c.typed:
			c.typed = true
			i++
		default:
			c.size |= int(b[i]&0x7F) << c.shift
			c.shift += 7
			i++
			if b[i-1] < 0x80 {
				*c = packetCutter{left: c.size}
				if c.left == 0 {
					return i
				}
			}
		}
	}
	return len(b)
}

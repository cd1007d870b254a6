package fleet

// bitmap is a growing set of small numbers: one bit for each message of a device.
type bitmap []uint64

// has reports whether n is in the set.
func (b bitmap) has(n int) bool {
	w := n >> 6
	return w < len(b) && b[w]&(1<<(n&63)) != 0
}

// set adds n and reports whether it was new.
func (b *bitmap) set(n int) bool {
	w, bit := n>>6, uint64(1)<<(n&63)
	for w >= len(*b) {
		*b = append(*b, 0)
	}
	fresh := (*b)[w]&bit == 0
	(*b)[w] |= bit
	return fresh
}

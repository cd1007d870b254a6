package kafka

// PartitionFor is the partition of n that a key belongs to: what Kafka's own clients choose, so that another producer of
// the same topic agrees. It is murmur2 as in org.apache.kafka.common.utils.Utils, the sign bit off, modulo n.
func PartitionFor(key string, n int32) int32 {
	const (
		seed uint32 = 0x9747b28c
		m    uint32 = 0x5bd1e995
	)
	h := seed ^ uint32(len(key))
	for len(key) >= 4 {
		k := uint32(key[3])<<24 | uint32(key[2])<<16 | uint32(key[1])<<8 | uint32(key[0])
		k *= m
		k ^= k >> 24
		h = h*m ^ k*m
		key = key[4:]
	}
	switch len(key) {
	case 3:
		h ^= uint32(key[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(key[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(key[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return int32(h&0x7fffffff) % n
}

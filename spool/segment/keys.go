package segment

import "encoding/binary"

const (
	dataKeySize = 10
	timeKeySize = 18
)

// dataKey sorts batches by partition, then base.
func dataKey(partition uint16, base uint64) []byte {
	k := binary.BigEndian.AppendUint16(make([]byte, 0, dataKeySize), partition)
	return binary.BigEndian.AppendUint64(k, base)
}

func parseDataKey(k []byte) (r Ref, err error) {
	if len(k) != dataKeySize {
		return r, damaged("key of %d bytes in the batches", len(k))
	}
	return Ref{Partition: binary.BigEndian.Uint16(k), Base: binary.BigEndian.Uint64(k[2:])}, nil
}

// timeKey sorts by partition, then time; the sign bit is turned so that times before 1970 come first.
func timeKey(partition uint16, t int64, base uint64) []byte {
	k := binary.BigEndian.AppendUint16(make([]byte, 0, timeKeySize), partition)
	k = binary.BigEndian.AppendUint64(k, uint64(t)^1<<63)
	return binary.BigEndian.AppendUint64(k, base)
}

func parseTimeKey(k []byte) (r Ref, t int64, err error) {
	if len(k) != timeKeySize {
		return r, 0, damaged("key of %d bytes in the times", len(k))
	}
	t = int64(binary.BigEndian.Uint64(k[2:]) ^ 1<<63)
	return Ref{Partition: binary.BigEndian.Uint16(k), Base: binary.BigEndian.Uint64(k[10:])}, t, nil
}

// indexKey sorts blocks of the index by kind, then number.
func indexKey(kind Kind, block uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{byte(kind)}, block)
}

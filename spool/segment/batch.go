package segment

// Batch is a body and what the segment knows about it without looking inside.
type Batch struct {
	Partition uint16
	Base      uint64 // the batch speaks for the offsets [Base, Next)
	Next      uint64
	Count     uint32 // records in the body; fewer than Next-Base when offsets were left out; 0 with an empty Body is a hole that is no loss

	MinTime, MaxTime     int64  // receive times of the records, Unix nanoseconds
	MinExpiry, MaxExpiry int64  // earliest and latest expiry among the records that have one, Unix nanoseconds; 0 when none has
	Never                uint32 // records without expiry

	// Body is the raw body. From Read it is the receiver's own copy.
	Body []byte

	// Expiries are the expiry times of the records, 0 for never, in any order: they feed the expiry histogram and are
	// not stored. When nil, all records with an expiry are counted under MaxExpiry. Read leaves it nil.
	Expiries []int64

	// StoredBytes, Codec and KeyID (0: not encrypted) say how the body is stored. Set by Read and Headers, ignored by Write.
	StoredBytes int
	Codec       Codec
	KeyID       uint32
}

// Ref names a batch.
type Ref struct {
	Partition uint16
	Base      uint64
}

// MaxBody is the largest raw body that a batch may have.
const MaxBody = 32 << 20 // the largest MQTT packet (16 MiB by default) and a batch beside it: a damaged length cannot make us allocate more

package spool

// Stats is a snapshot of counters and sizes.
type Stats struct {
	BytesOnDisk   int64 // journal, segments, meta database, files that wait for their removal
	MaxSize       int64
	DiskFree      int64
	Full          bool
	QueueBytes    int64 // memory of records that wait for the journal
	TailBytes     int64 // memory of the newest records
	Unmaterialised int64 // memory of records that are in the journal only
	Groups        uint64
	JournalBytes  int64
	Quarantined   int // files set aside since the directory was made
	Streams       []StreamStats
}

// StreamStats are one stream's.
type StreamStats struct {
	Name       string
	Bytes      int64 // on disk
	Segments   int
	Partitions []PartitionStats
	Appended   uint64            // records made durable by this process
	Expired    uint64            // records left out or removed because their time was over
	Dropped    map[string]uint64 // by reason: the Gap reasons, and drop_new
}

// PartitionStats are one partition's.
type PartitionStats struct {
	Start, End Offset
	Records    uint64 // offsets kept
	Bytes      int64  // raw bytes appended by this process
}

// Stats takes a snapshot.
func (s *Spool) Stats() Stats { return Stats{} }

// Health is nil, or says what is wrong and what to do about it.
func (s *Spool) Health() error { return nil }

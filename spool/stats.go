package spool

import "math"

// Stats is a snapshot of counters and sizes.
type Stats struct {
	BytesOnDisk    int64 // journal, segments, meta database, quarantine, files that wait for their removal
	MaxSize        int64
	DiskFree       int64 // when it was last looked at
	MinFree        int64 // of it that is left alone
	Full           bool
	QueueBytes     int64 // memory of records that wait for the journal
	TailBytes      int64 // memory of the newest records
	UnappliedBytes int64 // memory of what is in the journal only
	Groups         uint64
	JournalBytes   int64
	Quarantined    int // files set aside since the directory was made
	Streams        []StreamStats
}

// StreamStats are one stream's.
type StreamStats struct {
	Name       string
	Bytes      int64 // on disk
	Segments   int
	Full       bool
	Partitions []PartitionStats
	Hottest    int               // the partition that got most bytes in the last minute
	HotShare   float64           // its share of them, 0 when none came
	Appended   uint64            // records made durable by this process
	Expired    uint64            // records that left the disk with their time over, each once
	Skipped    uint64            // records left out for a reader because their time was over, for each reader
	Dropped    map[string]uint64 // by reason: drop_oldest, drop_new, damaged, journal_failed; rejected ones were never taken
}

// PartitionStats are one partition's.
type PartitionStats struct {
	Start, End Offset
	Records    uint64 // offsets kept

	// What this process has appended, and how much a second over the last minute. Bytes are the size of records in memory.
	Appended   uint64
	Bytes      int64
	RecordRate float64
	ByteRate   float64
}

// Stats takes a snapshot.
func (s *Spool) Stats() Stats {
	st := Stats{
		BytesOnDisk:  s.diskUsed(),
		MaxSize:      int64(s.cfg.MaxSize),
		DiskFree:     s.diskFree.Load(),
		MinFree:      int64(s.cfg.MinFree),
		Full:         s.full.Load(),
		JournalBytes: s.journalBytes(),
		Quarantined:  int(s.quarantined.Load()),
	}
	s.mu.Lock()
	st.QueueBytes, st.UnappliedBytes, st.Groups = s.queued, s.unapplied, s.groups
	s.mu.Unlock()
	s.tail.mu.Lock()
	st.TailBytes = s.tail.bytes
	s.tail.mu.Unlock()
	for _, stream := range s.streams {
		st.Streams = append(st.Streams, stream.stats())
	}
	return st
}

// Groups is how many groups of records have been made durable: who uses the disk in the background sees by it whether somebody waits
// for the journal.
func (s *Spool) Groups() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.groups
}

func (st *stream) stats() StreamStats {
	ss := StreamStats{
		Name: st.name, Bytes: st.bytes.Load(), Segments: len(st.segments()), Full: st.full.Load(),
		Hottest: int(st.hottest.Load()), HotShare: math.Float64frombits(st.hotShare.Load()), Appended: st.appended.Load(), Expired: st.expired.Load(), Skipped: st.skipped.Load(), Dropped: make(map[string]uint64),
	}
	for reason, name := range dropReasons {
		ss.Dropped[name] = st.dropped[reason].Load()
	}
	for _, p := range st.parts {
		p.mu.RLock()
		ss.Partitions = append(ss.Partitions, PartitionStats{
			Start: p.start, End: p.end, Records: uint64(p.end - p.start),
			Appended: p.load.records, Bytes: p.load.bytes, RecordRate: p.recordRate, ByteRate: p.byteRate,
		})
		p.mu.RUnlock()
	}
	return ss
}

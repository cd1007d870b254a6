package journal

// Stats is what the journal counted since Open, and where it stands.
type Stats struct {
	Groups, Frames uint64 // acknowledged
	Bytes          uint64 // payload of them
	Writes         uint64 // on the acknowledgement path, as the next two
	BytesWritten   uint64
	Syncs          uint64
	Switches       uint64 // files begun
	Recycled       uint64 // files marked free
	Created        uint64
	Removed        uint64
	Full           uint64 // Append returned ErrFull
	FileErrors     uint64 // files given up after a write or a sync failed
	Rescues        uint64 // groups rewritten to a fresh file after that
	RecycleErrors  uint64
	CreateErrors   uint64

	Room     int64 // as Room
	Files    int   // in rotation
	Retired  int   // of them, waiting for Release
	Last     LSN
	Durable  LSN
	Released LSN
}

// Stats returns the counters. It never waits for the disk.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.stats
	s.Room, s.Files, s.Retired = j.roomLocked(), j.liveLocked(), len(j.retired)
	s.Last, s.Durable, s.Released = j.next-1, j.synced, j.freed
	return s
}

package spool

// NoOffset is the offset of a record that the stream's policy dropped instead of storing it.
const NoOffset = ^Offset(0)

// Batch is what a reader gets in one piece: consecutive offsets of one partition.
type Batch struct {
	Stream    string
	Partition int

	// The batch speaks for the offsets [First, Next): those of Records, of records whose time was over, and of records
	// that a rewrite of their segment left out because their time was over. Committing Next is right after all of Records
	// are dealt with.
	First, Next Offset

	// Records are the ones to deal with, ascending, none expired. They are shared with other readers: read-only. It may
	// be empty.
	Records []Record

	// Expired is how many records were left out because their time was over.
	Expired int

	// Gap is not nil when offsets right before First are gone that the reader has not read.
	Gap *Gap
}

// Gap says that the offsets [From, To) are gone without having been read by the one who is told.
type Gap struct {
	From, To Offset
	Reason   string // one of the Gap reasons
}

// The reasons of a Gap.
const (
	GapRetention = "retention" // retention or the disk limit removed them
	GapDropped   = "dropped"   // policy drop_oldest removed them
	GapDamaged   = "damaged"   // their file was damaged or missing

	// GapNotStored is what a size limit removed before it was stored elsewhere, although it should have been.
	GapNotStored = "not_stored"
)

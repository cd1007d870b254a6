// Package spool is the durable, partitioned log between the devices and everything that reads them.
//
// A record goes: Append, the pending group (memory), the journal (one write and one sync for a whole group), the tail
// (memory, from which live readers are fed), a segment (a bbolt file of one stream), retention. A completion runs when
// the journal has it. State of other parts (Change) and cursors travel in the same journal and live in meta.db.
//
// # Words
//
// A stream is a named log with its own partitions, retention, time to live and full-policy. An offset is a record's
// place in its partition: dense, rising, never reused. Durable is what the journal has synced: nothing else is shown to
// a reader. A segment is active (one per stream) or sealed (never changed). Materialise is to move records from the
// journal's care into segments. A cursor is a consumer's durable position; a protected one holds segments. A gap names
// offsets that are gone before a reader came to them.
//
// # Files
//
//	LOCK         held while the spool is open
//	journal/     recycled files, see package journal
//	meta.db      catalog of segments, cursors, state of other parts, how far all of that is applied
//	seg/STREAM/  segments, see package segment
//	quarantine/  what was damaged, for a human
package spool

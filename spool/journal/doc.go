// Package journal is the log that makes an acknowledgement true: a group of opaque payloads is acknowledged after one
// write and one fdatasync of a pre-zeroed, recycled file. It knows nothing of records, streams or sessions.
//
// # Words
//
// A payload becomes a frame, which carries a log sequence number (LSN): dense, rising, never given to two payloads that
// were both acknowledged. The frames of one Append are a group. A frame is atomic: after a crash it is there or not. A
// group is not: a crash before its acknowledgement may leave any first part of it. A file is free, active (frames go
// there) or retired (full, or given up); a retired file is recycled once Release has passed its last LSN.
//
// # What a file looks like
//
//	+--------+---------------+---------+-------------------------------+
//	| header | frame 17      | frame18 | zeros, or frames of older use |
//	+--------+---------------+---------+-------------------------------+
//	0      4096   each frame padded to 4096
//
// The header names a generation (files are read in this order), the first LSN, and a random epoch, new at each use. The
// epoch seeds the checksum of every frame, so a frame of an older use of the same file can never be taken for one of
// this use. Frames are padded to 4 KiB, so that no later write touches a sector of an acknowledged frame.
//
// Files are filled with zeros once and then overwritten in place: no block is allocated, no metadata changes, and the
// fdatasync needs no journal commit of the file system (1.3 to 1.6 times faster than a growing file on ext4). The
// header of a new use travels in the same write and sync as its first group, so even the switch to the next file costs
// one fdatasync.
//
// # What is durable, what is lost
//
// In mode sync, Append returns after the fdatasync. In mode interval it returns after the write; a background
// goroutine syncs SyncInterval after the first unsynced write, or sooner when 4 MiB wait. A power cut then loses at
// most the groups that were appended within SyncInterval plus the duration of one sync; a kill of the process alone
// loses none.
//
// # Failure
//
// A file whose write or sync failed is never written again: the kernel reports a failed write-back once and then calls
// the pages clean, so a second sync that succeeds says nothing. The group (in mode interval: all that is not synced)
// is written again, with the same LSNs, to a fresh file. If that fails too, the journal is failed for ever (ErrFailed):
// what is on the disk stays readable. Lack of space is not failure: ErrFull, and Append works again when there is room.
//
// # Recovery
//
// Each frame says how far the journal was known to be durable when the frame was written, and the header of each file
// says that all below its first LSN was. The highest of these is the proven LSN. A hole above it is a torn tail,
// normal after a crash: recovery stops there. A hole below it is damage: those frames were acknowledged. Recovery
// goes on behind it, and Replay names the lost LSNs in a *LossError. Damage to the very last group cannot be told
// from a torn write; that is the limit of the proof.
//
// Frames above the proven LSN are real but perhaps not on the disk: the process may have been killed between write and
// sync, or a sync may have failed and left them in the page cache only. Before anybody sees them they are written again
// to a fresh file and synced. See settle for the order of files that hold the same LSN.
package journal

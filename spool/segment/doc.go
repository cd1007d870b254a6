// Package segment is one segment of one stream: a bbolt file that holds the batches of all partitions of the stream for
// a span of offsets, with the journal position it covers, a time index, and, once sealed, an index of topics and clients.
//
// # Words
//
// A batch is an opaque body with the range of offsets it speaks for, [Base, Next). Applied is the journal position up to
// which everything for this segment is in it; it changes in the transaction that writes the batches, so that a replay
// after a crash knows exactly what is missing. A segment is active until Seal; sealed never changes.
//
// # Guarantees
//
//   - Write is one transaction: all of it is durable when Write returns nil, none of it is visible otherwise. A batch
//     that starts below its partition's next offset is refused, so that nothing is stored twice.
//   - Bodies come out byte for byte as they went in, or not at all: a CRC32C covers header and stored bytes.
//   - Damage of any kind is a *CorruptionError that names file, partition and batch, never a dead process and never a
//     silent loss. An unknown version, codec or cipher in an intact file is ErrUnsupported.
//   - No space left is an error of one Write. The segment stays readable and the next Write may work.
//
// # Inside the file
//
//	m  "format"  magic, format version, stream, sequence number, creation time
//	   "state"   applied position, sealed mark, per partition offsets, counts, bytes and times, expiry histogram
//	d  partition u16, base u64                  -> batch (a nested bucket {00: batch} from 2 KiB on)
//	t  partition u16, latest time so far, base  -> empty
//	x  kind u8, block u32                       -> block of the index, in the format of a batch
//
// All integers of keys are big-endian, those inside values little-endian or varints. A batch of its own page run (the
// nested bucket) is never copied again by later transactions; a plain value would be rewritten with its leaf page 3 to 5
// times. Nothing is ever deleted inside a file: segments are removed or rewritten whole.
//
// # Why reading is guarded
//
// bbolt trusts its file. On a damaged one it may panic, touch memory beyond the end of the file, or descend for ever. So
// the page tree is checked with plain reads before bbolt sees it (check.go), every call into bbolt runs with
// debug.SetPanicOnFault and recover, and opening is abandoned after a time limit.
//
// # Other processes
//
// bbolt locks its file: one process read-write, or many read-only. Open and VerifyFile of an active segment while the
// gateway runs return ErrLocked; tools skip such files or ask the gateway. Sealed segments are opened read-only by
// everybody and can be read side by side.
package segment

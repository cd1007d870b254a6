// Package tiering keeps sealed segments in object storage, and reads them from there as if they were local.
//
// A segment goes up in parts, each read back and compared; then its entry, then the manifest of its stream name it. Only from then on
// may the local copy go: spool.Options.Keep asks Tier.Keep before any retention removes a file. A store that cannot be reached holds
// uploads and nothing else: publishers do not notice before the spool's own limits do.
//
// Reading goes the other way: Reader and Dump go through the manifest, fetch only the segments whose offsets, times and topics can
// matter, check their SHA-256, and go over to the spool where the local log begins. The segments of a directory are not fetched: they
// are read where they lie. Segments of an encrypted spool are stored as they are on the disk.
//
// Words: what is stored is cold, what is in the spool is local; behind is what should be stored and is not.
package tiering

// Package manifest says which segments of a stream a store holds, and who owns them.
//
//	PREFIX/OWNER.json                             who writes below PREFIX
//	PREFIX/STREAM/seg/0000000000000001.db.0000    a segment's file in parts, one after the other the file as it is on the disk
//	PREFIX/STREAM/seg/0000000000000001.json       its entry, written once the parts were verified: it makes the segment count
//	PREFIX/STREAM/manifest/0000000000000012.json  all entries; the highest generation counts
//
// A generation is made once and never changed, so that of two writers who make the same one the second is told. The manifest can be
// lost: Rebuild makes it again from the entries, and from the segments themselves where an entry is lost too. Everything is JSON of a
// Version; an unknown one is ErrUnsupported, and nothing is touched.
//
// What topics a segment has is a list or a Bloom filter of bounded size; that of an encrypted segment is encrypted with its key.
package manifest

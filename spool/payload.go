package spool

import (
	"encoding/binary"
	"fmt"
)

// The payload of a journal frame: what became durable in one atomic piece.
//
//	u8       version, 1
//	section  u8 kind, u32 length of what follows, and then:
//	  'r'  records: string stream, uvarint partition, uvarint base offset, uvarint count, concatenated records
//	  's'  state: any number of: u8 0 delete or 1 set, string space, string key, [string value]; cursors are in a space
//
// Sections of the same partition come in offset order. An unknown version or kind is a newer format, not damage: the
// frame's checksum has been checked before.
const (
	payloadVersion = 1

	sectionRecords = 'r'
	sectionState   = 's'

	sectionHead = 5 // kind and length
)

// beginSection appends the head of a section; endSection fills in its length.
func beginSection(b []byte, kind byte) (_ []byte, at int) {
	at = len(b)
	return append(b, kind, 0, 0, 0, 0), at
}

func endSection(b []byte, at int) {
	binary.LittleEndian.PutUint32(b[at+1:], uint32(len(b)-at-sectionHead))
}

func appendRecordsSection(b []byte, stream string, partition int, base Offset, count int, body []byte) []byte {
	b, at := beginSection(b, sectionRecords)
	b = appendString(b, stream)
	b = binary.AppendUvarint(b, uint64(partition))
	b = binary.AppendUvarint(b, uint64(base))
	b = binary.AppendUvarint(b, uint64(count))
	b = append(b, body...)
	endSection(b, at)
	return b
}

func appendChange(b []byte, space, key string, value []byte) []byte {
	if value == nil {
		b = append(b, 0)
	} else {
		b = append(b, 1)
	}
	b = appendString(b, space)
	b = appendString(b, key)
	if value != nil {
		b = binary.AppendUvarint(b, uint64(len(value)))
		b = append(b, value...)
	}
	return b
}

// changeSize is the number of bytes that appendChange appends.
func changeSize(c *Change) int {
	n := 1 + stringLen(len(c.Space)) + stringLen(len(c.Key))
	if c.Value != nil {
		n += stringLen(len(c.Value))
	}
	return n
}

// decodeChanges calls fn for each change. key and value point into b.
func decodeChanges(b []byte, fn func(space, key string, value []byte) error) error {
	for d := (decoder{b: b}); d.left() > 0; {
		at, op := d.at, d.u8()
		space, key := d.string(), d.string()
		var value []byte
		switch op {
		case 0:
		case 1:
			value = d.bytes(d.uvarint())
			if value == nil {
				value = []byte{}
			}
		default:
			d.fail(fmt.Errorf("operation %d", op))
		}
		if d.err != nil {
			return &CorruptionError{Where: "state section", At: at, Detail: d.err.Error()}
		}
		if err := fn(space, key, value); err != nil {
			return err
		}
	}
	return nil
}

// payloadVisitor gets the sections of a frame in order. All of it points into the payload.
type payloadVisitor struct {
	records func(stream string, partition int, base Offset, count int, body []byte) error
	changes func(b []byte) error // for decodeChanges
}

func decodePayload(b []byte, v payloadVisitor) error {
	d := decoder{b: b}
	if version := d.u8(); version != payloadVersion && d.err == nil {
		return fmt.Errorf("journal payload version %d: %w", version, ErrUnsupported)
	}
	for d.err == nil && d.left() > 0 {
		kind := d.u8()
		var n uint64
		if l := d.bytes(4); l != nil {
			n = uint64(binary.LittleEndian.Uint32(l))
		}
		body := d.bytes(n)
		if d.err != nil {
			break
		}
		var err error
		switch kind {
		case sectionRecords:
			err = decodeRecordsSection(body, v.records)
		case sectionState:
			err = v.changes(body)
		default:
			err = fmt.Errorf("journal section %q: %w", kind, ErrUnsupported)
		}
		if err != nil {
			return err
		}
	}
	if d.err != nil {
		return &CorruptionError{Where: "journal payload", At: d.at, Detail: d.err.Error()}
	}
	return nil
}

func decodeRecordsSection(b []byte, fn func(string, int, Offset, int, []byte) error) error {
	d := decoder{b: b}
	stream := d.string()
	partition, base, count := d.uvarint(), d.uvarint(), d.uvarint()
	if d.err == nil && (partition >= maxPartitions || count > uint64(d.left()) || base+count < base) {
		d.fail(fmt.Errorf("partition %d, base %d, count %d", partition, base, count))
	}
	if d.err != nil {
		return &CorruptionError{Where: "records section", At: d.at, Detail: d.err.Error()}
	}
	return fn(stream, int(partition), Offset(base), int(count), d.b[d.at:])
}

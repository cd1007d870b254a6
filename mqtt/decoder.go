package mqtt

import (
	"encoding/binary"
	"fmt"

	"github.com/forebay-gateway/forebay/spool"
)

// decoder reads a value; the first fault stays in err.
type decoder struct {
	b   []byte
	err error
}

// openState checks the version of a value.
func openState(value []byte) *decoder {
	d := &decoder{b: value}
	if v := d.byte(); d.err == nil && v != stateVersion {
		d.err = fmt.Errorf("value of version %d: %w", v, spool.ErrUnsupported)
	}
	return d
}

func (d *decoder) byte() byte {
	if d.err != nil || len(d.b) == 0 {
		d.fail()
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if d.err != nil || n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if d.err != nil || n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// bytes returns a copy: values passed to Load are only lent.
func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if d.err != nil || n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	v := append([]byte{}, d.b[:n]...)
	d.b = d.b[n:]
	return v
}

func (d *decoder) string() string { return string(d.bytes()) }

func (d *decoder) fail() {
	if d.err == nil {
		d.err = errShortState
	}
	d.b = nil
}

func appendBytes(b []byte, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

func appendString(b []byte, v string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

package journal

import (
	"encoding/binary"
	"errors"
)

// Sealer encrypts payloads. The journal knows no keys: it keeps in the header of a file what the Sealer gives it for one
// use of the file, and gives each payload its LSN, which comes once in one use. Scans need no Sealer: checksums cover what
// is stored.
type Sealer interface {
	// Overhead is how much longer a payload gets; 0 means that new files are not encrypted, old ones still can be read.
	Overhead() int

	// Begin is the cipher for one more use of a file, never the same one twice, and at most 128 bytes with which Resume finds
	// it again. It is only called when Overhead is not 0.
	Begin() (c Cipher, params []byte)

	// Resume is the cipher that Begin gave out with params. An error that is about the key, and not about the file, is what
	// Replay ends with.
	Resume(params []byte) (Cipher, error)
}

// Cipher encrypts the payloads of one use of a file.
type Cipher interface {
	// SealAt appends plain, encrypted and longer by Overhead, to dst, which is plain[:0]. number is used once. aad is bound to it.
	SealAt(dst []byte, number uint64, plain, aad []byte) []byte

	// OpenAt appends what SealAt was given to dst, which is sealed[:0].
	OpenAt(dst []byte, number uint64, sealed, aad []byte) ([]byte, error)
}

const maxSeal = 128 // bytes of params: they fit the header's sector with room to spare

// ErrSealed is returned by Replay for files that are encrypted when there is no Sealer. They are not touched.
var ErrSealed = errors.New("journal is encrypted and no key is given")

// sealed is buf with its frames encrypted for f; the frames have room for that. buf keeps what is in the clear: after a
// failed write it is encrypted again, for another file.
func (j *Journal) sealed(c Cipher, buf []byte) []byte {
	if cap(j.enc) > keepBuffer {
		j.enc = nil
	}
	j.enc = append(j.enc[:0], buf...)
	for b := j.enc[headerSize:]; len(b) > 0; {
		n := int(binary.LittleEndian.Uint32(b))
		payload := b[frameHeader : frameHeader+n]
		c.SealAt(payload[:0], binary.LittleEndian.Uint64(b[8:]), payload[:n-j.room], bound(b))
		b = b[span(n):]
	}
	return j.enc
}

// bound is the header of a frame without its checksum.
func bound(b []byte) []byte {
	return append(append(make([]byte, 0, frameHeader-4), b[:4]...), b[8:frameHeader]...)
}

// unseal decrypts the payload of a frame in place. raw are the frame's bytes.
func unseal(c Cipher, fr frame, raw []byte) ([]byte, error) {
	if c == nil {
		return fr.payload, nil
	}
	return c.OpenAt(fr.payload[:0], uint64(fr.lsn), fr.payload, bound(raw))
}

// resume is the cipher of a file with this header, nil when it is not encrypted.
func resume(s Sealer, h header) (Cipher, error) {
	switch {
	case h.seal == "":
		return nil, nil
	case s == nil:
		return nil, ErrSealed
	}
	return s.Resume([]byte(h.seal))
}

// cipherOf is f's cipher.
func (j *Journal) cipherOf(f *file) (Cipher, error) {
	if f.cipher == nil {
		var err error
		if f.cipher, err = resume(j.opts.Sealer, f.header); err != nil {
			return nil, err
		}
	}
	return f.cipher, nil
}

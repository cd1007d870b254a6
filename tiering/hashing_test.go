package tiering

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"testing"
)

// What a library still reads of an upload that it has given up is not hashed, and is nobody's panic.
func TestReadBehindTheEndOfAnUploadIsRefused(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 1000)
	for _, y := range []*yield{nil, {groups: func() uint64 { return 0 }}} {
		u := &uploader{yield: y}
		whole := sha256.New()
		src, done := u.hashing(bytes.NewReader(data), whole)
		if n, err := io.ReadFull(src, make([]byte, 5000)); err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		done()
		if want := sha256.Sum256(data[:5000]); !bytes.Equal(whole.Sum(nil), want[:]) {
			t.Error("it is the hash of something else")
		}
		if n, err := src.Read(make([]byte, 100)); n != 0 || !errors.Is(err, errEnded) {
			t.Errorf("%d bytes, %v", n, err)
		}
		if want := sha256.Sum256(data[:5000]); !bytes.Equal(whole.Sum(nil), want[:]) {
			t.Error("what was read behind the end is hashed")
		}
	}
}

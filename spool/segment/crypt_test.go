package segment

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/spool/crypt"
)

// keyring has the keys of these IDs, the first of which is active.
func keyring(t testing.TB, ids ...uint32) *crypt.Keyring {
	t.Helper()
	var files []crypt.KeyFile
	for _, id := range ids {
		path := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(path, fmt.Appendf(nil, "%064x", id), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, crypt.KeyFile{ID: id, Path: path})
	}
	k, err := crypt.Load(files, ids[0])
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// secretBatch is a batch whose body is words that must not be found in the file.
func secretBatch(base uint64) Batch {
	body := bytes.Repeat(fmt.Appendf(nil, "SECRET-%d ", base), 200)
	return Batch{Base: base, Next: base + 2, Count: 2, Never: 2, MinTime: int64(base), MaxTime: int64(base) + 1, Body: body}
}

func secretIndex(body []byte, yield func(Kind, []byte)) error {
	word, _, _ := bytes.Cut(body, []byte(" "))
	yield(KindTopic, append([]byte("topic/"), word...))
	yield(KindClient, append([]byte("client/"), word...))
	return nil
}

func sealSecret(t testing.TB, path string, o Options) *Segment {
	t.Helper()
	s, err := Create(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for i := range uint64(10) {
		if err := s.Write(i, []Batch{secretBatch(2 * i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Seal(t.Context(), secretIndex); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEncryptedSegmentHidesWhatIsInIt(t *testing.T) {
	for _, codec := range []Codec{CodecNone, CodecS2, CodecZstd} {
		path := filepath.Join(t.TempDir(), "1.db")
		o := Options{Stream: "plant", Codec: codec, Keys: keyring(t, 7)}
		s := sealSecret(t, path, o)
		if in := s.Info(); in.KeyID != 7 || in.Topics != 10 {
			t.Errorf("info: %+v", in)
		}
		if err := errors.Join(s.Verify(t.Context()), s.Close()); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("SECRET")) || bytes.Contains(b, []byte("topic/")) || bytes.Contains(b, []byte("client/")) {
			t.Errorf("%v: the file shows what is in it", codec)
		}
		if s, err = Open(path, o); err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		at := uint64(0)
		if _, err := s.Read(0, 0, 1<<20, func(b Batch) error {
			if want := secretBatch(at); !bytes.Equal(b.Body, want.Body) || b.KeyID != 7 {
				t.Errorf("batch %d: key %d, %.20q", at, b.KeyID, b.Body)
			}
			at = b.Next
			return nil
		}); err != nil || at != 20 {
			t.Errorf("read up to %d: %v", at, err)
		}
		refs, err := s.Lookup(KindTopic, func(k string) bool { return k == "topic/SECRET-8" })
		if err != nil || len(refs) != 1 || refs[0].Base != 8 {
			t.Errorf("lookup: %v %v", refs, err)
		}
	}
}

func TestMissingAndWrongKeyAreNoDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "1.db")
	sealSecret(t, path, Options{Keys: keyring(t, 1)}).Close()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(wrong, crypt.NewKey(), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := crypt.Load([]crypt.KeyFile{{ID: 1, Path: wrong}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	f := func(keys *crypt.Keyring, want string) {
		t.Helper()
		for _, readOnly := range []bool{true, false} {
			s, err := Open(path, Options{Keys: keys, ReadOnly: readOnly})
			if err == nil {
				s.Close()
			}
			var ce *CorruptionError
			if !errors.Is(err, crypt.ErrKey) || errors.As(err, &ce) || !strings.Contains(fmt.Sprint(err), want) || !strings.Contains(fmt.Sprint(err), path) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	}
	f(nil, "encrypted with key 1: spool.encryption.keys does not list it")
	f(keyring(t, 2), "encrypted with key 1: spool.encryption.keys does not list it")
	f(other, "encrypted with key 1 ("+wrong+"): the file holds another key")
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed, %v", err)
	}
}

func TestRewriteTakesTheActiveKey(t *testing.T) {
	dir := t.TempDir()
	s := sealSecret(t, filepath.Join(dir, "1.db"), Options{Keys: keyring(t, 1)})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	both := keyring(t, 2, 1)
	s, err := Open(filepath.Join(dir, "1.db"), Options{Keys: both})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	keep := func(b Batch) (Batch, bool, error) { return b, b.Base%4 == 0, nil }
	if _, err := s.Rewrite(t.Context(), filepath.Join(dir, "2.db"), Options{Keys: both}, secretIndex, keep); err != nil {
		t.Fatal(err)
	}
	n, err := Open(filepath.Join(dir, "2.db"), Options{Keys: keyring(t, 2)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.Verify(t.Context()); err != nil || n.Info().KeyID != 2 || n.Info().Records != 10 {
		t.Errorf("%+v %v", n.Info(), err)
	}
}

// Whoever can write to the file can repair a CRC, but not what the key protects.
func TestChangedBytesAreFound(t *testing.T) {
	seal, _ := keyring(t, 1).New("test")
	b := batch(rand.New(rand.NewPCG(1, 1)), 2, 17, 20)
	v := appendStored(nil, &b, CodecZstd, seal, inData)
	if _, err := decodeStored(v, seal, inData); err != nil {
		t.Fatal(err)
	}
	for at := range v {
		if at >= 4 && at < 8 {
			continue
		}
		changed := bytes.Clone(v)
		changed[at] ^= 1 << (at % 8)
		if _, err := decodeStored(changed, seal, inData); err == nil {
			t.Fatalf("byte %d: a flip was not found", at)
		}
		le.PutUint32(changed[4:], storedCRC(changed))
		if got, err := decodeStored(changed, seal, inData); err == nil {
			t.Fatalf("byte %d: a change with a good CRC was not found: %+v", at, got)
		}
	}
	if _, err := decodeStored(v, seal, inIndex); err == nil {
		t.Error("a batch passes for a block of the index")
	}
	plain := appendStored(nil, &b, CodecZstd, nil, inData)
	if _, err := decodeStored(plain, seal, inData); err == nil {
		t.Error("a plain batch passes in an encrypted file")
	}
	if again := appendStored(nil, &b, CodecZstd, seal, inData); bytes.Equal(again, v) {
		t.Error("the same nonce twice")
	}
}

func BenchmarkStoredEncrypted(b *testing.B) {
	seal, _ := keyring(b, 1).New("test")
	raw := Batch{Base: 1, Next: 501, Count: 500, Body: bytes.Repeat([]byte(`{"device":5,"seq":0,"temperature":26.15,"voltage":228.6,"status":"ok","pad":"abcdefghijklmnopqrstuvwxyz"}`), 1200)}
	for name, c := range map[string]*crypt.Cipher{"plain": nil, "encrypted": seal} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw.Body)))
			for b.Loop() {
				v := appendStored(nil, &raw, CodecNone, c, inData)
				if _, err := decodeStored(v, c, inData); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package crypt

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func keyFile(t testing.TB, content []byte, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, content, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return path
}

func TestKeyFiles(t *testing.T) {
	raw := []byte("0123456789abcdef0123456789\x00\xff\n\t\r ")
	f := func(content []byte, mode os.FileMode, want string) {
		t.Helper()
		k, err := Load([]KeyFile{{ID: 3, Path: keyFile(t, content, mode)}}, 3)
		if want != "" {
			if !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: got %v, want %q", content, err, want)
			}
			if err != nil && len(content) > 20 && strings.Contains(err.Error(), string(content[:20])) {
				t.Errorf("the error shows the key: %v", err)
			}
			return
		}
		if err != nil || !bytes.Equal(k.keys[3].key, raw) {
			t.Errorf("%q: %x %v", content, k, err)
		}
	}
	f(raw, 0o600, "")
	f([]byte(hex.EncodeToString(raw)), 0o600, "")
	f([]byte("  "+strings.ToUpper(hex.EncodeToString(raw))+"\r\n"), 0o640, "")
	f([]byte(base64.StdEncoding.EncodeToString(raw)+"\n"), 0o400, "")
	f([]byte(base64.RawURLEncoding.EncodeToString(raw)), 0o600, "")
	f(raw, 0o644, "mode 0644 lets everybody")
	f(raw, 0o602, "mode 0602 lets everybody")
	f(nil, 0o600, "is empty")
	f(raw[:31], 0o600, "31 bytes are no key")
	f([]byte(hex.EncodeToString(raw[:16])), 0o600, "32 bytes are no key") // 128 bits only
	f([]byte(hex.EncodeToString(raw)+"00"), 0o600, "are no key")
	f([]byte("correct horse battery staple correct horse"), 0o600, "are no key")
}

func TestNewKeyIsReadBack(t *testing.T) {
	a, b := NewKey(), NewKey()
	if key, err := parseKey(a); err != nil || len(key) != KeySize || bytes.Equal(a, b) {
		t.Errorf("%q %q %v", a, b, err)
	}
}

func TestLoadTellsWhichKey(t *testing.T) {
	if _, err := Load([]KeyFile{{ID: 9, Path: "/no/such"}}, 9); !errors.Is(err, ErrKey) || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "key 9: open /no/such") {
		t.Errorf("got %v", err)
	}
	if _, err := Load(nil, 2); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), "key 2 is active and not listed") {
		t.Errorf("got %v", err)
	}
	k, err := Load(nil, 0)
	if c, _ := k.New("x"); err != nil || c != nil || k.Active() != 0 || c.KeyID() != 0 {
		t.Errorf("%v %v", c, err)
	}
	var none *Keyring
	if c, _ := none.New("x"); c != nil {
		t.Error("a cipher without a key")
	}
}

func ring(t testing.TB, id uint32) *Keyring {
	t.Helper()
	k, err := Load([]KeyFile{{ID: id, Path: keyFile(t, NewKey(), 0o600)}}, id)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestFilesHaveKeysOfTheirOwn(t *testing.T) {
	k := ring(t, 1)
	c, p := k.New("segment")
	stored := p.Append([]byte("before"))[6:]
	again, err := ParseParams(stored)
	if err != nil || again != p {
		t.Fatalf("%+v %v", again, err)
	}
	sealed := c.Seal(nil, []byte("text"), []byte("aad"))
	if bytes.Contains(sealed, []byte("text")) || len(sealed) != 4+Overhead {
		t.Errorf("sealed: %q", sealed)
	}
	d, err := k.Open("segment", p)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := d.Open([]byte("a "), sealed, []byte("aad")); err != nil || string(out) != "a text" {
		t.Errorf("%q %v", out, err)
	}
	for what, bad := range map[string]func() error{
		"other aad":  func() error { _, err := d.Open(nil, sealed, []byte("other")); return err },
		"cut":        func() error { _, err := d.Open(nil, sealed[:20], []byte("aad")); return err },
		"other file": func() error { o, _ := k.New("segment"); _, err := o.Open(nil, sealed, []byte("aad")); return err },
	} {
		if err := bad(); !errors.Is(err, ErrAuth) {
			t.Errorf("%s: %v", what, err)
		}
	}
	var ke *KeyError
	if _, err := k.Open("journal", p); !errors.As(err, &ke) {
		t.Errorf("the key of another kind of file: %v", err)
	}
	if _, err := ring(t, 1).Open("segment", p); !errors.As(err, &ke) || ke.File == "" {
		t.Errorf("another key of the same ID: %v", err)
	}
	if _, err := ring(t, 2).Open("segment", p); !errors.As(err, &ke) || ke.File != "" || ke.ID != 1 {
		t.Errorf("a key that is not listed: %v", err)
	}
	for _, b := range [][]byte{nil, stored[:27], make([]byte, ParamsSize)} {
		if _, err := ParseParams(b); err == nil {
			t.Errorf("params %x were taken", b)
		}
	}
}

func TestNoncesDoNotRepeat(t *testing.T) {
	k := ring(t, 1)
	c, p := k.New("x")
	seen := map[string]bool{}
	use := func(c *Cipher, n int) {
		t.Helper()
		for range n {
			if n := c.nonce(); seen[string(n[:])] {
				t.Fatal("a nonce came twice")
			} else {
				seen[string(n[:])] = true
			}
		}
	}
	use(c, 1000)
	for range 50 { // opened again and again, as after crashes
		d, err := k.Open("x", p)
		if err != nil {
			t.Fatal(err)
		}
		use(d, 10)
	}
	c.counter = ^uint32(0) - 2
	before := c.prefix
	use(c, 10)
	if c.prefix == before {
		t.Error("the counter went round with the same random part")
	}
}

func TestNumberedNonces(t *testing.T) {
	k := ring(t, 1)
	c, p := k.New("journal")
	buf := append(make([]byte, 0, 64), "payload"...)
	sealed := c.SealAt(buf[:0], 7, buf, []byte("h"))
	if len(sealed) != 7+OverheadAt || bytes.Contains(sealed, []byte("payload")) {
		t.Errorf("%q", sealed)
	}
	d, err := k.Open("journal", p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.OpenAt(nil, 8, sealed, []byte("h")); !errors.Is(err, ErrAuth) {
		t.Errorf("another number: %v", err)
	}
	if out, err := d.OpenAt(sealed[:0], 7, sealed, []byte("h")); err != nil || string(out) != "payload" {
		t.Errorf("%q %v", out, err)
	}
}

func BenchmarkSeal128KiB(b *testing.B) {
	c, _ := ring(b, 1).New("x")
	plain, dst := make([]byte, 128<<10), make([]byte, 0, 129<<10)
	b.SetBytes(int64(len(plain)))
	for b.Loop() {
		c.Seal(dst, plain, nil)
	}
}

package crypt

import (
	"bytes"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
)

// KeySize is the length of a master key.
const KeySize = 32

// ErrKey means that a key is missing or is not the one that a file was written with. The file is not damaged.
var ErrKey = errors.New("encryption key")

// KeyError says which key is wrong, or missing.
type KeyError struct {
	ID     uint32
	File   string // of the key; empty: the configuration does not list it
	Reason string
}

func (e *KeyError) Error() string {
	if e.File == "" {
		return fmt.Sprintf("encrypted with key %d: %s", e.ID, e.Reason)
	}
	return fmt.Sprintf("encrypted with key %d (%s): %s", e.ID, e.File, e.Reason)
}

// Is makes a KeyError an ErrKey.
func (e *KeyError) Is(target error) bool { return target == ErrKey }

// KeyFile names a key and its file.
type KeyFile struct {
	ID   uint32
	Path string
}

// Keyring is the keys that a spool may use. The nil Keyring has none.
type Keyring struct {
	active uint32
	keys   map[uint32]masterKey
}

type masterKey struct {
	file string
	key  []byte
}

// Load reads the key files. active is the ID of the key for new files, 0 when these are not encrypted.
func Load(files []KeyFile, active uint32) (*Keyring, error) {
	k := &Keyring{active: active, keys: make(map[uint32]masterKey)}
	for _, f := range files {
		key, err := readKey(f.Path)
		if err != nil {
			return nil, fmt.Errorf("%w %d: %w", ErrKey, f.ID, err)
		}
		k.keys[f.ID] = masterKey{f.Path, key}
	}
	if _, ok := k.keys[active]; active != 0 && !ok {
		return nil, fmt.Errorf("%w %d is active and not listed", ErrKey, active)
	}
	return k, nil
}

// readKey reads 32 bytes, as they are, in hexadecimal digits or in base64. A file that everybody may read keeps no secret.
func readKey(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if fi.Mode().IsRegular() && fi.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("%s: mode %04o lets everybody on the machine use it: chmod 0640 or less", path, fi.Mode().Perm())
	}
	b := make([]byte, 256)
	n, err := readFull(f, b)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(b[:n])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

func readFull(f *os.File, b []byte) (n int, err error) {
	for n < len(b) {
		m, err := f.Read(b[n:])
		if n += m; m == 0 || err != nil {
			break
		}
	}
	if n == 0 {
		return 0, fmt.Errorf("%s: is empty", f.Name())
	}
	return n, nil
}

func parseKey(b []byte) ([]byte, error) {
	if len(b) == KeySize && !printable(b) {
		return bytes.Clone(b), nil
	}
	text := string(bytes.TrimSpace(b))
	if key, err := hex.DecodeString(text); err == nil && len(key) == KeySize {
		return key, nil
	}
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		if key, err := enc.DecodeString(text); err == nil && len(key) == KeySize {
			return key, nil
		}
	}
	return nil, fmt.Errorf("%d bytes are no key: want 32 bytes, as they are, as 64 hexadecimal digits or in base64", len(b))
}

// printable tells whether b is text: 16 bytes in hexadecimal digits, or a passphrase, are not a key of 32 random bytes, which
// is printable once in 10^14.
func printable(b []byte) bool {
	for _, c := range b {
		if c < 0x20 || c > 0x7e {
			return false
		}
	}
	return true
}

// NewKey is a new master key as a key file has it.
func NewKey() []byte {
	var b [KeySize]byte
	_, _ = rand.Read(b[:]) // never fails
	return append(hex.AppendEncode(nil, b[:]), '\n')
}

// Active is the ID of the key for new files, 0 when they are not encrypted.
func (k *Keyring) Active() uint32 {
	if k == nil {
		return 0
	}
	return k.active
}

// Params is what a file keeps in the clear so that its key can be derived again.
//
//	key ID u32 | salt, 16 random bytes | check, 8 bytes
type Params struct {
	KeyID uint32
	Salt  [16]byte
	Check [8]byte
}

// ParamsSize is the length of stored Params.
const ParamsSize = 4 + 16 + 8

// Append appends the stored form, little-endian.
func (p Params) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, p.KeyID)
	b = append(b, p.Salt[:]...)
	return append(b, p.Check[:]...)
}

// ParseParams reads the stored form.
func ParseParams(b []byte) (p Params, err error) {
	if len(b) != ParamsSize {
		return p, fmt.Errorf("encryption parameters of %d bytes", len(b))
	}
	p.KeyID = binary.LittleEndian.Uint32(b)
	copy(p.Salt[:], b[4:])
	copy(p.Check[:], b[20:])
	if p.KeyID == 0 {
		return p, errors.New("encryption parameters name key 0")
	}
	return p, nil
}

// New is the cipher for a new file, with the parameters to keep in it; nil when new files are not encrypted. purpose keeps
// the keys of different kinds of files apart.
func (k *Keyring) New(purpose string) (*Cipher, Params) {
	if k.Active() == 0 {
		return nil, Params{}
	}
	p := Params{KeyID: k.active}
	_, _ = rand.Read(p.Salt[:]) // never fails
	key, check := derive(k.keys[k.active].key, p.Salt[:], purpose)
	p.Check = check
	return newCipher(p.KeyID, key), p
}

// Open is the cipher for a file that has these parameters. The error is a *KeyError when the key is not listed, or is not
// the one that the file was written with.
func (k *Keyring) Open(purpose string, p Params) (*Cipher, error) {
	var m masterKey
	if k != nil {
		m = k.keys[p.KeyID]
	}
	if m.key == nil {
		return nil, &KeyError{ID: p.KeyID, Reason: "spool.encryption.keys does not list it; list it again, with its file: nothing is damaged"}
	}
	key, check := derive(m.key, p.Salt[:], purpose)
	if subtle.ConstantTimeCompare(check[:], p.Check[:]) != 1 {
		return nil, &KeyError{ID: p.KeyID, File: m.file, Reason: "the file holds another key than the one that this was written with: nothing is damaged"}
	}
	return newCipher(p.KeyID, key), nil
}

// derive is the key of one file, and its check value.
func derive(master, salt []byte, purpose string) (key []byte, check [8]byte) {
	out, err := hkdf.Key(sha256.New, master, salt, "forebay spool 1 "+purpose, KeySize+len(check))
	if err != nil {
		panic("BUG: crypt: " + err.Error()) // only lengths can be wrong
	}
	copy(check[:], out[KeySize:])
	return out[:KeySize], check
}

package crypt

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
)

// DataKey encrypts a file that lives as long as the spool: its values one by one, and the names that they are found by. It is
// random and kept in the file, wrapped by the active master key, so that a new master key means to write the wrapping again
// and not the file.
type DataKey struct {
	key    []byte
	cipher *Cipher
	names  []byte // key of Name
}

func newDataKey(key []byte) *DataKey {
	enc, _ := derive(key, nil, "values")
	names, _ := derive(key, nil, "names")
	return &DataKey{key: key, cipher: newCipher(0, enc), names: names}
}

// NewDataKey is a random one; nil when new files are not encrypted.
func (k *Keyring) NewDataKey() *DataKey {
	if k.Active() == 0 {
		return nil
	}
	key := make([]byte, KeySize)
	_, _ = rand.Read(key) // never fails
	return newDataKey(key)
}

// Wrap is the data key for its file, encrypted with the active master key.
func (k *Keyring) Wrap(purpose string, d *DataKey) []byte {
	c, p := k.New(purpose)
	if c == nil {
		panic("BUG: crypt: wrap without an active key")
	}
	return c.Seal(p.Append(nil), d.key, nil)
}

// Unwrap reads what Wrap wrote, and tells which master key it is wrapped by. Its error is a *KeyError when that one is
// missing or wrong; any other means damage.
func (k *Keyring) Unwrap(purpose string, wrapped []byte) (d *DataKey, by uint32, err error) {
	if len(wrapped) < ParamsSize {
		return nil, 0, ErrAuth
	}
	p, err := ParseParams(wrapped[:ParamsSize])
	if err != nil {
		return nil, 0, err
	}
	c, err := k.Open(purpose, p)
	if err != nil {
		return nil, p.KeyID, err
	}
	key, err := c.Open(nil, wrapped[ParamsSize:], nil)
	if err != nil || len(key) != KeySize {
		return nil, p.KeyID, ErrAuth
	}
	return newDataKey(key), p.KeyID, nil
}

// NameSize is the length of a Name.
const NameSize = 16

// Name is what stands in a file for the name of a value: the same name always gives the same 16 bytes, which say nothing.
func (d *DataKey) Name(space, name string) []byte {
	h := hmac.New(sha256.New, d.names)
	h.Write([]byte(space))
	h.Write([]byte{0})
	h.Write([]byte(name))
	return h.Sum(nil)[:NameSize]
}

// Seal is Cipher.Seal with the key of the values.
func (d *DataKey) Seal(dst, plain, aad []byte) []byte { return d.cipher.Seal(dst, plain, aad) }

// Open is Cipher.Open with the key of the values.
func (d *DataKey) Open(dst, sealed, aad []byte) ([]byte, error) {
	return d.cipher.Open(dst, sealed, aad)
}

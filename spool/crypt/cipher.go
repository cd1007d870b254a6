package crypt

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"sync"
)

const (
	nonceSize = 12
	tagSize   = 16

	// Overhead is how much longer Seal makes something: nonce and tag. SealAt stores no nonce.
	Overhead   = nonceSize + tagSize
	OverheadAt = tagSize
)

// ErrAuth means that something was changed after it was encrypted: the key is right, the bytes are not.
var ErrAuth = errors.New("authentication failed: encrypted bytes were changed")

// Cipher encrypts with the key of one file. Its methods may be called by many goroutines.
type Cipher struct {
	id   uint32
	aead cipher.AEAD

	mu      sync.Mutex
	prefix  [8]byte
	counter uint32
}

func newCipher(id uint32, key []byte) *Cipher {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic("BUG: crypt: " + err.Error()) // the key has 32 bytes
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic("BUG: crypt: " + err.Error())
	}
	return &Cipher{id: id, aead: aead}
}

// KeyID is the ID of the master key; 0 of the nil Cipher.
func (c *Cipher) KeyID() uint32 {
	if c == nil {
		return 0
	}
	return c.id
}

// nonce is one that this Cipher has not used, nor, by its random part, any other of the same key.
func (c *Cipher) nonce() (n [nonceSize]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counter == 0 { // first use, or after 2^32
		_, _ = rand.Read(c.prefix[:]) // never fails
	}
	c.counter++
	copy(n[:], c.prefix[:])
	binary.BigEndian.PutUint32(n[8:], c.counter-1)
	return n
}

// Seal appends nonce, encrypted plain and tag to dst. aad is bound to it and stays readable. dst and plain do not overlap.
func (c *Cipher) Seal(dst, plain, aad []byte) []byte {
	n := c.nonce()
	dst = append(dst, n[:]...)
	return c.aead.Seal(dst, n[:], plain, aad)
}

// Open appends what Seal was given to dst, which does not overlap sealed.
func (c *Cipher) Open(dst, sealed, aad []byte) ([]byte, error) {
	if len(sealed) < Overhead {
		return dst, ErrAuth
	}
	out, err := c.aead.Open(dst, sealed[:nonceSize], sealed[nonceSize:], aad)
	if err != nil {
		return dst, ErrAuth
	}
	return out, nil
}

// SealAt is Seal with a number that the caller uses once for each key. dst may be plain[:0].
func (c *Cipher) SealAt(dst []byte, number uint64, plain, aad []byte) []byte {
	n := numbered(number)
	return c.aead.Seal(dst, n[:], plain, aad)
}

// OpenAt appends what SealAt was given to dst, which may be sealed[:0].
func (c *Cipher) OpenAt(dst []byte, number uint64, sealed, aad []byte) ([]byte, error) {
	n := numbered(number)
	out, err := c.aead.Open(dst, n[:], sealed, aad)
	if err != nil {
		return dst, ErrAuth
	}
	return out, nil
}

// numbered is the nonce of a number. A key is used with Seal or with SealAt, never with both.
func numbered(number uint64) (n [nonceSize]byte) {
	binary.BigEndian.PutUint64(n[4:], number)
	return n
}

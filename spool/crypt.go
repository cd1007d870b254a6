package spool

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/forebay-gateway/forebay/spool/crypt"
	"github.com/forebay-gateway/forebay/spool/journal"
)

// ErrKey means that a file is encrypted with a key that the configuration does not list, or that the key's file holds
// another one. It is not damage: nothing was touched.
var ErrKey = crypt.ErrKey

// loadKeys reads the keys of the configuration.
func loadKeys(cfg EncryptionConfig) (*crypt.Keyring, error) {
	var files []crypt.KeyFile
	for _, k := range cfg.Keys {
		files = append(files, crypt.KeyFile{ID: uint32(k.ID), Path: k.File})
	}
	keys, err := crypt.Load(files, uint32(cfg.Active))
	if err != nil {
		return nil, fmt.Errorf("encryption: %w", err)
	}
	return keys, nil
}

// journalSealer encrypts journal frames: a key for each use of a file, the LSN as the number.
type journalSealer struct{ keys *crypt.Keyring }

var _ journal.Sealer = journalSealer{}

const (
	journalPurpose = "journal"
	metaPurpose    = "meta"
)

func (s journalSealer) Overhead() int {
	if s.keys.Active() == 0 {
		return 0
	}
	return crypt.OverheadAt
}

func (s journalSealer) Begin() (journal.Cipher, []byte) {
	c, p := s.keys.New(journalPurpose)
	return c, p.Append(nil)
}

func (s journalSealer) Resume(params []byte) (journal.Cipher, error) {
	p, err := crypt.ParseParams(params)
	if err != nil {
		return nil, err
	}
	c, err := s.keys.Open(journalPurpose, p)
	if err != nil {
		return nil, err // not c: a nil *Cipher in an interface is not nil
	}
	return c, nil
}

// sealKeyOf is the ID of the key that a journal file is encrypted with.
func sealKeyOf(params []byte) uint32 {
	if p, err := crypt.ParseParams(params); err == nil {
		return p.KeyID
	}
	return 0
}

// An encrypted key and value in a space of meta.db:
//
//	key    16 bytes, a keyed hash of space and key
//	value  nonce (12), encrypted: uvarint length of the key, key, value; tag (16); bound to the space and the hash
//
// Spaces keep their names.
func sealValue(d *crypt.DataKey, space, key string, value []byte) (name, sealed []byte) {
	name = d.Name(space, key)
	plain := binary.AppendUvarint(make([]byte, 0, 5+len(key)+len(value)), uint64(len(key)))
	plain = append(append(plain, key...), value...)
	return name, d.Seal(make([]byte, 0, len(plain)+crypt.Overhead), plain, valueAAD(space, name))
}

func openValue(d *crypt.DataKey, space string, name, sealed []byte) (key string, value []byte, err error) {
	plain, err := d.Open(nil, sealed, valueAAD(space, name))
	if err != nil {
		return "", nil, &CorruptionError{Where: "meta.db space " + space, Detail: err.Error()}
	}
	dec := decoder{b: plain}
	k := dec.bytes(dec.uvarint())
	if dec.err != nil {
		return "", nil, &CorruptionError{Where: "meta.db space " + space, Detail: dec.err.Error()}
	}
	return string(k), plain[dec.at:], nil
}

func valueAAD(space string, name []byte) []byte {
	return slices.Concat([]byte(space), []byte{0}, name)
}

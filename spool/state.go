package spool

import (
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// Change sets or deletes one key in a small durable key-value space of another part: sessions, QoS 2 identifiers,
// retained messages. Changes travel in the journal with the records, live in meta.db, and are not kept in memory.
type Change struct {
	Space, Key string
	Value      []byte // nil deletes; empty but not nil is a value
}

// Load reads all keys of a space in order. It sees every change that was durable when it was called. key and value are
// the caller's.
func (s *Spool) Load(space string, fn func(key string, value []byte) error) error {
	if err := s.materialise(true); err != nil {
		return fmt.Errorf("spool: load %s: %w", space, err)
	}
	return s.meta.load(space, fn)
}

const loadAtOnce = 1000 // keys of one read transaction: a long one would keep the pages of all later changes

func (m *meta) load(space string, fn func(key string, value []byte) error) error {
	if m.key != nil {
		err := m.loadSealed(space, fn)
		if errors.Is(err, errStop) {
			return nil
		}
		return err
	}
	type pair struct {
		key   string
		value []byte
	}
	var pairs []pair
	after := ""
	for first := true; first || len(pairs) == loadAtOnce; first = false {
		pairs = pairs[:0]
		err := m.view(func(tx *bolt.Tx) error {
			b := tx.Bucket(bucketSpaces).Bucket([]byte(space))
			if b == nil {
				return nil
			}
			c := b.Cursor()
			k, v := c.Seek([]byte(after))
			if !first && string(k) == after {
				k, v = c.Next()
			}
			for ; k != nil && len(pairs) < loadAtOnce; k, v = c.Next() {
				pairs = append(pairs, pair{string(k), append([]byte{}, v...)})
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("spool: load %s: %w", space, err)
		}
		for _, p := range pairs {
			if err := fn(p.key, p.value); err != nil {
				if errors.Is(err, errStop) {
					return nil
				}
				return err
			}
			after = p.key
		}
	}
	return nil
}

package spool

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

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
	err := s.materialise(true)
	if err == nil {
		return s.meta.load(space, fn)
	}
	// A full disk must not keep a gateway from starting: what could not be written is laid over what meta.db has.
	s.materialiseFailed(err)
	return s.loadOver(space, fn)
}

// loadOver is Load for a meta.db that does not have everything yet.
func (s *Spool) loadOver(space string, fn func(key string, value []byte) error) error {
	over, err := s.unwritten(space)
	if err != nil {
		return fmt.Errorf("spool: load %s: %w", space, err)
	}
	if err = s.meta.load(space, over.before(fn)); err == nil {
		err = over.rest(fn)
	}
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// overlay are changes of one space that meta.db does not have yet: the last of each key.
type overlay struct {
	values map[string][]byte // nil is deleted
	keys   []string          // in order, those that are still to be told
	ended  bool              // the reader wants no more
}

// unwritten is what waits for meta.db.
func (s *Spool) unwritten(space string) (*overlay, error) {
	o := &overlay{values: make(map[string][]byte)}
	s.materialiseMu.Lock()
	defer s.materialiseMu.Unlock()
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	for _, changes := range [][]pendingChanges{s.metaChanges, s.tail.changes} {
		for _, c := range changes {
			if err := decodeChanges(c.b, func(sp, key string, value []byte) error {
				if sp == space {
					o.values[strings.Clone(key)] = bytes.Clone(value)
				}
				return nil
			}); err != nil {
				return nil, err
			}
		}
	}
	o.keys = slices.Sorted(maps.Keys(o.values))
	return o, nil
}

// before gives fn what meta.db has, with the overlay's keys in their places.
func (o *overlay) before(fn func(key string, value []byte) error) func(string, []byte) error {
	return func(key string, value []byte) error {
		for len(o.keys) > 0 && o.keys[0] < key {
			if err := o.next(fn); err != nil {
				return err
			}
		}
		if len(o.keys) > 0 && o.keys[0] == key {
			return o.next(fn)
		}
		return o.tell(fn, key, value)
	}
}

// rest gives fn the keys behind the last of meta.db.
func (o *overlay) rest(fn func(key string, value []byte) error) error {
	for len(o.keys) > 0 && !o.ended {
		if err := o.next(fn); err != nil {
			return err
		}
	}
	return nil
}

func (o *overlay) next(fn func(key string, value []byte) error) error {
	key := o.keys[0]
	o.keys = o.keys[1:]
	if value := o.values[key]; value != nil {
		return o.tell(fn, key, value)
	}
	return nil
}

func (o *overlay) tell(fn func(key string, value []byte) error, key string, value []byte) error {
	err := fn(key, value)
	o.ended = err != nil
	return err
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

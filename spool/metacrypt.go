package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/forebay-gateway/forebay/spool/crypt"
	"github.com/forebay-gateway/forebay/spool/vfs"
)

// keyCrypt is where bucket m of an encrypted meta.db keeps its data key, wrapped. The format version is then metaSealed.
var keyCrypt = []byte("crypt")

// unlock finds out whether meta.db is encrypted, and its key. Unless it is only read, it is then made what the keys want: a
// plain one is encrypted, an encrypted one is made plain when no key is active, and the wrapping follows the active key.
func (m *meta) unlock(keys *crypt.Keyring, readOnly bool) error {
	var wrapped []byte
	if err := m.view(func(tx *bolt.Tx) error {
		wrapped = slices.Clone(tx.Bucket(bucketMeta).Get(keyCrypt))
		return nil
	}); err != nil {
		return err
	}
	var by uint32
	if wrapped != nil {
		var err error
		m.key, by, err = keys.Unwrap(metaPurpose, wrapped)
		if err != nil && !errors.Is(err, ErrKey) {
			return &CorruptionError{Where: m.path, Detail: "data key: " + err.Error()}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
	}
	if readOnly {
		return nil
	}
	// A conversion that was interrupted: it may hold in the clear what must not be.
	if err := os.Remove(m.path + ".convert"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if by == keys.Active() {
		return nil
	}
	if wrapped != nil && keys.Active() != 0 {
		return m.update(func(tx *bolt.Tx) error {
			return tx.Bucket(bucketMeta).Put(keyCrypt, keys.Wrap(metaPurpose, m.key))
		})
	}
	return m.convert(keys)
}

// convert writes meta.db again, encrypted or plain, and takes the new file. The old one is there until that is durable.
func (m *meta) convert(keys *crypt.Keyring) error {
	tmp := m.path + ".convert"
	to, err := openMeta(tmp, false)
	if err != nil {
		return err
	}
	to.key = keys.NewDataKey()
	if err = errors.Join(m.copyTo(to, keys), to.close()); err != nil {
		return errors.Join(fmt.Errorf("%s: convert: %w", m.path, err), os.Remove(tmp))
	}
	if err := m.close(); err != nil {
		return err
	}
	if err := os.Rename(tmp, m.path); err != nil {
		return err
	}
	if err := vfs.OS.SyncDir(filepath.Dir(m.path)); err != nil {
		return err
	}
	fresh, err := openMeta(m.path, false)
	if err != nil {
		return err
	}
	m.db, m.raw, m.key = fresh.db, fresh.raw, to.key
	return nil
}

func (m *meta) copyTo(to *meta, keys *crypt.Keyring) error {
	if err := m.view(func(from *bolt.Tx) error {
		return to.update(func(tx *bolt.Tx) error {
			for _, name := range [][]byte{bucketMeta, bucketPartitions, bucketSegments} {
				b := tx.Bucket(name)
				if err := from.Bucket(name).ForEach(func(k, v []byte) error { return b.Put(k, v) }); err != nil {
					return err
				}
			}
			b := tx.Bucket(bucketMeta)
			if to.key == nil {
				return errors.Join(b.Delete(keyCrypt), b.Put(keyFormat, []byte{metaVersion}))
			}
			return errors.Join(b.Put(keyCrypt, keys.Wrap(metaPurpose, to.key)), b.Put(keyFormat, []byte{metaSealed}))
		})
	}); err != nil {
		return err
	}
	names, err := m.spaces()
	if err != nil {
		return err
	}
	for _, space := range names {
		var changes []byte
		flush := func() error {
			b := changes
			changes = nil
			return to.update(func(tx *bolt.Tx) error { return to.applyChanges(tx, b) })
		}
		if err := m.load(space, func(key string, value []byte) error {
			if changes = appendChange(changes, space, key, value); len(changes) < materialiseBytes {
				return nil
			}
			return flush()
		}); err != nil {
			return err
		}
		if err := flush(); err != nil {
			return err
		}
	}
	return nil
}

// spaces lists the names of the spaces.
func (m *meta) spaces() (names []string, err error) {
	err = m.view(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketSpaces).ForEachBucket(func(k []byte) error {
			names = append(names, string(k))
			return nil
		})
	})
	return names, err
}

// named is a key and where it stands.
type named struct{ key, name string }

// loadSealed is load for an encrypted meta.db: the order of keys is not that of the file, so the keys are read first. A value
// that was changed is left out and told.
func (m *meta) loadSealed(space string, fn func(key string, value []byte) error) error {
	keys, err := m.sealedKeys(space)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(keys, loadAtOnce) {
		values := make([][]byte, len(part))
		if err := m.view(func(tx *bolt.Tx) error {
			b := tx.Bucket(bucketSpaces).Bucket([]byte(space))
			for i, k := range part {
				if b != nil {
					values[i] = slices.Clone(b.Get([]byte(k.name)))
				}
			}
			return nil
		}); err != nil {
			return err
		}
		for i, k := range part {
			if values[i] == nil {
				continue // deleted meanwhile
			}
			_, value, err := openValue(m.key, space, []byte(k.name), values[i])
			if err != nil {
				m.tellDamage(space, err)
				continue
			}
			if err := fn(k.key, value); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *meta) sealedKeys(space string) (keys []named, err error) {
	after := []byte{}
	for more := true; more; {
		more = false
		type pair struct{ name, value []byte }
		var pairs []pair
		if err := m.view(func(tx *bolt.Tx) error {
			b := tx.Bucket(bucketSpaces).Bucket([]byte(space))
			if b == nil {
				return nil
			}
			c := b.Cursor()
			for k, v := c.Seek(after); k != nil; k, v = c.Next() {
				if string(k) == string(after) {
					continue
				}
				if more = len(pairs) == loadAtOnce; more {
					return nil
				}
				pairs = append(pairs, pair{slices.Clone(k), slices.Clone(v)})
			}
			return nil
		}); err != nil {
			return nil, err
		}
		for _, p := range pairs {
			after = p.name
			key, _, err := openValue(m.key, space, p.name, p.value)
			if err != nil {
				m.tellDamage(space, err)
				continue
			}
			keys = append(keys, named{key, string(p.name)})
		}
	}
	slices.SortFunc(keys, func(a, b named) int { return strings.Compare(a.key, b.key) })
	return keys, nil
}

func (m *meta) tellDamage(space string, err error) {
	if m.onDamage != nil {
		m.onDamage(space, err)
	}
}

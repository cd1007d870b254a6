package spool

import (
	"bytes"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// applyChanges puts what the changes of groups come to into their spaces: the last of each key, in the order in which bbolt has
// them. It splits a leaf only when a transaction ends: where a space gets ten thousands of keys and loses them again, all that are
// there were moved for each that goes, and a round of QoS 2 deliveries took seconds of a core.
func (m *meta) applyChanges(tx *bolt.Tx, groups ...[]byte) error {
	last, err := lastChanges(groups)
	if err != nil {
		return err
	}
	spaces := tx.Bucket(bucketSpaces)
	for _, space := range slices.Sorted(maps.Keys(last)) {
		b, err := spaces.CreateBucketIfNotExists([]byte(space))
		if err != nil {
			return err
		}
		for _, c := range m.stored(space, last[space]) {
			if c.value == nil {
				err = b.Delete(c.name)
			} else {
				err = b.Put(c.name, c.value)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// lastChanges is the last value of each key by space, nil where it is deleted. It points into groups.
func lastChanges(groups [][]byte) (map[string]map[string][]byte, error) {
	last := make(map[string]map[string][]byte)
	for _, b := range groups {
		if err := decodeChanges(b, func(space, key string, value []byte) error {
			keys := last[space]
			if keys == nil {
				keys = make(map[string][]byte)
				last[space] = keys
			}
			keys[key] = value
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return last, nil
}

// storedChange is a change as a bucket has it.
type storedChange struct{ name, value []byte }

// stored encrypts changes, if they are to be, and sorts them.
func (m *meta) stored(space string, keys map[string][]byte) []storedChange {
	list := make([]storedChange, 0, len(keys))
	for key, value := range keys {
		c := storedChange{name: []byte(key), value: value}
		switch {
		case m.key == nil:
		case value == nil:
			c.name = m.key.Name(space, key)
		default:
			c.name, c.value = sealValue(m.key, space, key, value)
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b storedChange) int { return bytes.Compare(a.name, b.name) })
	return list
}

package spool

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// Fork is where a spool that was restored from a backup leaves the history of the one that was backed up. What that one took after the
// backup has offsets that this one gives to other records: whoever looks for records by their offsets elsewhere has to tell them apart.
type Fork struct {
	ID   string              `json:"id"`   // made by the first start after the restore; no other restore has it
	Ends map[string][]Offset `json:"ends"` // of each stream's partitions: from there on offsets are the fork's
}

// End is the first offset of a partition that is the fork's: 0 of one that was made later.
func (f *Fork) End(stream string, partition int) Offset {
	if ends := f.Ends[stream]; partition < len(ends) {
		return ends[partition]
	}
	return 0
}

// Forks are the restores that this spool comes from, oldest first. The slice is not to be changed.
func (s *Spool) Forks() []Fork { return s.forks }

// ForkOf is the ID of the fork that an offset belongs to, "" when it is from before all of them.
func ForkOf(forks []Fork, stream string, partition int, o Offset) string {
	for i := range slices.Backward(forks) {
		if o >= forks[i].End(stream, partition) {
			return forks[i].ID
		}
	}
	return ""
}

var (
	keyRestored = []byte("restored") // 1: what opens this spool first begins a fork
	keyForks    = []byte("forks")
)

// MarkRestored has the next Open of a spool begin a fork: dir was copied from one that may have gone on since. Nobody may have it open.
func MarkRestored(dir string) error {
	m, err := openMeta(filepath.Join(dir, "meta.db"), false)
	if err != nil {
		return fmt.Errorf("spool: mark as restored: %w", err)
	}
	err = m.update(func(tx *bolt.Tx) error { return m.putNumber(tx, keyRestored, 1) })
	if err = errors.Join(err, m.close()); err != nil {
		return fmt.Errorf("spool: mark as restored: %w", err)
	}
	return nil
}

func (m *meta) forks(tx *bolt.Tx) (forks []Fork, err error) {
	if v := tx.Bucket(bucketMeta).Get(keyForks); v != nil {
		if err := json.Unmarshal(v, &forks); err != nil {
			return nil, &CorruptionError{Where: m.path, Detail: "forks: " + err.Error()}
		}
	}
	return forks, nil
}

// beginFork is called once the ends are what the directory has, and before anybody adds to them.
func (s *Spool) beginFork() error {
	f := Fork{ID: strings.ToLower(rand.Text()[:10]), Ends: make(map[string][]Offset, len(s.streams))}
	for _, st := range s.streams {
		for _, p := range st.parts {
			f.Ends[st.name] = append(f.Ends[st.name], p.end)
		}
	}
	s.forks = append(s.forks, f)
	s.log.Info("this spool was restored from a backup and goes its own way from here", "fork", f.ID)
	return s.meta.update(func(tx *bolt.Tx) error {
		if err := tx.Bucket(bucketMeta).Delete(keyRestored); err != nil {
			return err
		}
		return putJSON(tx.Bucket(bucketMeta), keyForks, s.forks)
	})
}

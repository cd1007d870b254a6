package spool

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// MetaQuery asks for meta.db.
type MetaQuery struct {
	Space string // its keys are listed
	After string // key
	Limit int
}

// MetaDetail is meta.db with what only the journal has of it.
type MetaDetail struct {
	Bytes       int64          `json:"bytes"`
	Format      int            `json:"format"`
	Encrypted   bool           `json:"encrypted"`
	Applied     uint64         `json:"applied_lsn"`
	Clock       time.Time      `json:"clock,omitzero"` // the latest time that the spool had seen when it was written
	Quarantined uint64         `json:"quarantined"`
	Catalog     int            `json:"catalog"` // segments
	Spaces      []SpaceListing `json:"spaces"`
	Pending     int            `json:"pending_changes"` // that only the journal has; of a running gateway they are not counted
	Keys        []KeyListing   `json:"keys"`
	More        bool           `json:"more"`
}

// SpaceListing is a space of state.
type SpaceListing struct {
	Name  string `json:"name"`
	Keys  int    `json:"keys"`
	Bytes int64  `json:"bytes"` // of keys and values
}

// KeyListing is a key of a space.
type KeyListing struct {
	Key   string `json:"key"`
	Bytes int    `json:"bytes"`
}

// InspectMeta looks at the running spool's meta.db.
func (s *Spool) InspectMeta(ctx context.Context, q MetaQuery) (MetaDetail, error) {
	return s.inspectMeta(ctx, q, nil, func(space string, fn func(string, []byte) error) error { return s.Load(space, fn) })
}

// InspectMeta looks at meta.db.
func (v *View) InspectMeta(ctx context.Context, q MetaQuery) (MetaDetail, error) {
	d, err := v.s.inspectMeta(ctx, q, sortedKeys(v.pending), func(space string, fn func(string, []byte) error) error {
		return v.space(ctx, space, fn)
	})
	d.Pending = v.changes
	return d, err
}

func (s *Spool) inspectMeta(ctx context.Context, q MetaQuery, more []string, load func(string, func(string, []byte) error) error) (MetaDetail, error) {
	d := MetaDetail{Spaces: []SpaceListing{}, Keys: []KeyListing{}}
	names, err := s.metaSpaces()
	if err != nil {
		return d, err
	}
	if s.meta != nil {
		d.Bytes, d.Encrypted = s.meta.size(), s.meta.key != nil
		if err := s.meta.view(func(tx *bolt.Tx) error {
			d.Format = int(tx.Bucket(bucketMeta).Get(keyFormat)[0])
			d.Applied, d.Quarantined = s.meta.number(tx, keyApplied), s.meta.number(tx, keyQuarantined)
			d.Clock = timeOf(int64(min(s.meta.number(tx, keyClock), math.MaxInt64)))
			d.Catalog = tx.Bucket(bucketSegments).Stats().KeyN
			return nil
		}); err != nil {
			return d, err
		}
	}
	for _, n := range more {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	for _, name := range names {
		sp := SpaceListing{Name: spaceName(name)}
		if err := load(name, func(key string, value []byte) error {
			sp.Keys++
			sp.Bytes += int64(len(key) + len(value))
			if sp.Name != q.Space || key <= q.After && q.After != "" {
				return ctx.Err()
			}
			if len(d.Keys) == limitOf(q.Limit) {
				d.More = true
				return nil
			}
			d.Keys = append(d.Keys, KeyListing{key, len(value)})
			return nil
		}); err != nil {
			return d, err
		}
		d.Spaces = append(d.Spaces, sp)
	}
	return d, nil
}

// spaceName is how a space is shown: the spool's own ones begin with a byte that cannot be typed.
func spaceName(name string) string {
	if own, ok := strings.CutPrefix(name, ownSpaces); ok {
		return "spool." + own
	}
	return name
}

func (s *Spool) metaSpaces() ([]string, error) {
	if s.meta == nil {
		return nil, nil
	}
	return s.meta.spaces()
}

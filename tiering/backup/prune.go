package backup

import (
	"context"
	"fmt"
	"slices"

	"github.com/forebay-gateway/forebay/tiering/store"
)

// Prune removes all but the newest backups, and the segments that none of those has. It keeps at least one, and those that have a name
// of people's. A backup that broke off goes once two newer ones are there; until then it may be one that is being made, which counts on
// segments that it found: then no segment is removed.
func Prune(ctx context.Context, st store.Store, keep int) (removed []string, err error) {
	c, err := list(ctx, st)
	if err != nil || len(c.complete) == 0 {
		return nil, err
	}
	n := max(len(c.complete)-max(keep, 1), 0)
	old, rest := c.complete[:n], c.complete[n:]
	used := map[string]bool{}
	for _, id := range slices.Concat(rest, c.named) { // one that cannot be read stops it: its segments are not known
		info, err := Read(ctx, st, id)
		if err != nil {
			return nil, fmt.Errorf("prune: %w; until it is whole or removed from %s, no backup is removed", err, st)
		}
		for _, s := range info.Segments {
			used[s.Key] = true
		}
	}
	for _, id := range old {
		if err := remove(ctx, st, id); err != nil {
			return removed, err
		}
		removed = append(removed, id)
	}
	running := false
	for _, id := range c.unfinished {
		if len(c.complete) >= 2 && id < c.complete[len(c.complete)-2] {
			if err := remove(ctx, st, id); err != nil {
				return removed, err
			}
			continue
		}
		running = true
	}
	if running {
		return removed, nil
	}
	var unused []string
	if err := st.List(ctx, "segments/", func(o store.Object) error {
		if !used[o.Key] {
			unused = append(unused, o.Key)
		}
		return nil
	}); err != nil {
		return removed, fmt.Errorf("prune: %w", err)
	}
	for _, key := range unused {
		if err := st.Delete(ctx, key); err != nil {
			return removed, fmt.Errorf("prune: %w", err)
		}
	}
	return removed, nil
}

// remove removes what belongs to one backup alone. Without backup.json it is no backup any more; what a kill then leaves is unfinished.
func remove(ctx context.Context, st store.Store, id string) error {
	for _, key := range []string{infoKey(id), metaKey(id), claimKey(id)} {
		if err := st.Delete(ctx, key); err != nil {
			return fmt.Errorf("prune: %w", err)
		}
	}
	return nil
}

package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// The objects of one backup. It counts once backup.json is there; the claim is there before everything else, and goes at the end.
func infoKey(id string) string  { return "backups/" + id + "/backup.json" }
func metaKey(id string) string  { return "backups/" + id + "/meta.db" }
func claimKey(id string) string { return "backups/" + id + "/claim" }

// idLayout is a time, to the millisecond.
const idLayout = "20060102T150405.000Z"

// catalog is what a store has. Other names than ours, of a backup that somebody has copied, are neither the newest nor removed.
type catalog struct {
	complete   []string // oldest first
	unfinished []string // without backup.json: one is being made, or broke off
	named      []string // by people
}

func list(ctx context.Context, st store.Store) (*catalog, error) {
	whole := map[string]bool{}
	if err := st.List(ctx, "backups/", func(o store.Object) error {
		if id, name, ok := strings.Cut(strings.TrimPrefix(o.Key, "backups/"), "/"); ok {
			whole[id] = whole[id] || name == "backup.json"
		}
		return nil
	}); err != nil {
		return nil, err
	}
	c := new(catalog)
	for id, whole := range whole {
		_, err := time.Parse(idLayout, id)
		switch {
		case err != nil && whole:
			c.named = append(c.named, id)
		case err != nil:
		case whole:
			c.complete = append(c.complete, id)
		default:
			c.unfinished = append(c.unfinished, id)
		}
	}
	slices.Sort(c.complete)
	slices.Sort(c.unfinished)
	slices.Sort(c.named)
	return c, nil
}

const claimTries = 10

// claim makes the ID of a new backup: its time, or what comes next behind the newest when the clock was set back.
func claim(ctx context.Context, st store.Store, at time.Time) (string, error) {
	for range claimTries {
		c, err := list(ctx, st)
		if err != nil {
			return "", err
		}
		id := at.UTC().Format(idLayout)
		for _, ids := range [][]string{c.complete, c.unfinished} {
			if len(ids) > 0 && ids[len(ids)-1] >= id {
				last, _ := time.Parse(idLayout, ids[len(ids)-1]) // list has parsed it
				id = last.Add(time.Millisecond).Format(idLayout)
			}
		}
		err = store.PutBytes(ctx, st, claimKey(id), []byte("a backup is being made, or broke off\n"), true)
		if !errors.Is(err, store.ErrExist) {
			return id, err
		}
	}
	return "", fmt.Errorf("%d other backups began meanwhile", claimTries)
}

// owned wants no segments of tiering there, and no backups but those of the same gateway: "latest" and Prune do not tell them apart. Of a stopped gateway that made
// its ID itself none is known: then it is that of the backups. A damaged one must not keep a good one from being made: those before it tell.
func owned(ctx context.Context, st store.Store, gateway string) (string, error) {
	if owner, err := manifest.ReadOwner(ctx, st); err == nil {
		return "", fmt.Errorf("%w: that of %q", ErrTiering, owner.Gateway)
	} else if !errors.Is(err, store.ErrNotExist) {
		return "", err
	}
	c, err := list(ctx, st)
	if err != nil {
		return "", err
	}
	for _, id := range slices.Backward(c.complete) {
		info, err := Read(ctx, st, id)
		switch {
		case errors.Is(err, ErrNone), errors.Is(err, ErrDamaged):
			continue
		case err != nil:
			return "", err
		case gateway == "":
			return info.Gateway, nil
		case info.Gateway != "" && info.Gateway != gateway:
			return "", fmt.Errorf("%w: %s is that of %q", ErrOther, id, info.Gateway)
		}
		break
	}
	return gateway, nil
}

// IDs are the backups in a store, oldest first; behind them those that people have given names.
func IDs(ctx context.Context, st store.Store) ([]string, error) {
	c, err := list(ctx, st)
	if err != nil {
		return nil, err
	}
	return append(c.complete, c.named...), nil
}

// Read reads what belongs to a backup; "" or "latest" is the newest, by the order in which they were made.
func Read(ctx context.Context, st store.Store, id string) (*Info, error) {
	if id == "" || id == "latest" {
		c, err := list(ctx, st)
		if err != nil {
			return nil, err
		}
		if len(c.complete) == 0 {
			return nil, fmt.Errorf("%s: %w", st, ErrNone)
		}
		id = c.complete[len(c.complete)-1]
	}
	b, err := store.ReadAll(ctx, st, infoKey(id), 64<<20)
	if errors.Is(err, store.ErrNotExist) {
		return nil, fmt.Errorf("%s in %s: %w", id, st, ErrNone)
	}
	if err != nil {
		return nil, err
	}
	body, sum, ok := strings.Cut(string(b), "\n}\n")
	body += "\n}"
	if got := sha256.Sum256([]byte(body)); !ok || strings.TrimSpace(sum) != hex.EncodeToString(got[:]) {
		return nil, fmt.Errorf("%s: backup.json: %w", id, ErrDamaged)
	}
	info := new(Info)
	if err := json.Unmarshal([]byte(body), info); err != nil {
		return nil, fmt.Errorf("%s: backup.json: %w: %w", id, ErrDamaged, err)
	}
	if info.Version > version {
		return nil, fmt.Errorf("%s: %w", id, ErrUnsupported)
	}
	info.ID, info.Meta.Key = id, metaKey(id) // of one that was copied to another name too
	if err := info.sound(); err != nil {
		return nil, fmt.Errorf("%s: backup.json: %w", id, err)
	}
	return info, nil
}

// sound tells of what no backup says: it may have been written by somebody else.
func (i *Info) sound() error {
	seen := make(map[string]bool, len(i.Segments))
	for _, s := range i.Segments {
		at := fmt.Sprintf("segment %d of %q", s.Sequence, s.Stream)
		rest, ok := strings.CutPrefix(s.Key, "segments/"+s.Stream+"/")
		switch {
		case !ok || rest == "" || strings.Contains(rest, "/"):
			return fmt.Errorf("%w: %s is stored as %q", ErrDamaged, at, s.Key)
		case s.Bytes < 0:
			return fmt.Errorf("%w: %s has %d bytes", ErrDamaged, at, s.Bytes)
		case seen[at]:
			return fmt.Errorf("%w: %s is there twice", ErrDamaged, at)
		}
		seen[at] = true
	}
	return nil
}

package manifest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/forebay-gateway/forebay/tiering/store"
)

// Owner marks a prefix: one gateway's data directory writes there and nobody else.
type Owner struct {
	Version  int       `json:"version"`
	Gateway  string    `json:"gateway"`  // its ID, for people
	Instance string    `json:"instance"` // random, made once in its data directory
	Since    time.Time `json:"since"`
}

const ownerKey = "OWNER.json"

// Claim marks the prefix as o's, or finds that it is already. ErrOwned says whose it is otherwise.
func Claim(ctx context.Context, s store.Store, o Owner) error {
	o.Version = Version
	b, err := seal(o)
	if err != nil {
		return err
	}
	if err := store.PutBytes(ctx, s, ownerKey, b, true); err == nil || !errors.Is(err, store.ErrExist) {
		return err
	}
	have, err := ReadOwner(ctx, s)
	if err != nil {
		return err
	}
	if have.Instance != o.Instance {
		return fmt.Errorf("%w: %s is that of %q since %s", ErrOwned, s, have.Gateway, have.Since.UTC().Format(time.RFC3339))
	}
	return nil
}

// Adopt marks the prefix as o's, whoever had it before. That one must not write any more.
func Adopt(ctx context.Context, s store.Store, o Owner) error {
	o.Version = Version
	b, err := seal(o)
	if err != nil {
		return err
	}
	return store.PutBytes(ctx, s, ownerKey, b, false)
}

// ReadOwner reads whose prefix it is; store.ErrNotExist when it is nobody's.
func ReadOwner(ctx context.Context, s store.Store) (o Owner, err error) {
	b, err := store.ReadAll(ctx, s, ownerKey, 64<<10)
	if err != nil {
		return o, err
	}
	if err := unseal(b, &o); err != nil {
		return o, fmt.Errorf("%s in %s: %w", ownerKey, s, err)
	}
	return o, nil
}

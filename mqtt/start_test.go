package mqtt

import (
	"context"
	"errors"
	"testing"

	"github.com/forebay-gateway/forebay/spool"
)

// noRoom is a log on a full disk: no cursor becomes durable.
type noRoom struct{ *fakeLog }

func (l noRoom) OpenCursor(ctx context.Context, _, _ string, _ spool.CursorOptions) (LogCursor, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Whoever is told to stop while the front waits for room on the disk does not wait for it.
func TestStartOnAFullDiskEndsWithItsContext(t *testing.T) {
	log := newFakeLog()
	defer log.close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(ctx, DefaultConfig(), Options{Log: noRoom{log}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

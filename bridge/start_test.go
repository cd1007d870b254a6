package bridge

import (
	"context"
	"errors"
	"testing"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/spool"
)

// stuckDisk is a log on a full disk: one of its cursors does not become durable, and no entry.
type stuckDisk struct {
	*memLog
	cursor string
}

func (l stuckDisk) OpenCursor(ctx context.Context, name, stream string, o spool.CursorOptions) (Cursor, error) {
	if name == l.cursor {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.memLog.OpenCursor(ctx, name, stream, o)
}

func (l stuckDisk) Append(ctx context.Context, e spool.Entry) error {
	if l.cursor == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	return l.memLog.Append(ctx, e)
}

// Whoever is told to stop while the bridge waits for room on the disk does not wait for it.
func TestStartOnAFullDiskEndsWithItsContext(t *testing.T) {
	for _, cursor := range []string{routeCursor("all"), keepCursor("all"), deadLetterCursor, ""} {
		ctx, cancel := context.WithCancel(t.Context())
		l := stuckDisk{newMemLog(map[string]int{"default": 1, "dead": 1}), cursor}
		told := make(chan error, 1)
		go func() {
			_, err := New(ctx, Config{
				Upstreams:        []kafka.Config{{Name: "main", Brokers: []string{"127.0.0.1:1"}}},
				Routes:           []RouteConfig{{Name: "all", Topic: "all", Delivery: ExactlyOnce}},
				DeadLetterStream: "dead",
			}, Options{Log: l, GatewayID: "gw"})
			told <- err
		}()
		cancel()
		if err := <-told; !errors.Is(err, context.Canceled) {
			t.Errorf("cursor %q: %v", cursor, err)
		}
	}
}

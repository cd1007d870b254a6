package mqtt

import (
	"context"
	"sync"
	"time"
)

// turns lets the CONNECTs of one client ID pass one after the other, from the look at the session to the CONNACK. Between
// the two is a wait for the disk; what a second one did meanwhile would be about a session, and a will, of a connection
// that is not accepted yet: its will was published without one, or overwritten and never published.
type turns struct {
	mu   sync.Mutex
	byID map[string]*turn
}

type turn struct {
	users int           // that hold or want it
	free  chan struct{} // holds a token while nobody has it
}

// take waits for the turn, at most for the timeout. leave ends it.
func (t *turns) take(ctx context.Context, id string, timeout time.Duration) (leave func(), err error) {
	t.mu.Lock()
	u := t.byID[id]
	if u == nil {
		u = &turn{free: make(chan struct{}, 1)}
		u.free <- struct{}{}
		if t.byID == nil {
			t.byID = make(map[string]*turn)
		}
		t.byID[id] = u
	}
	u.users++
	t.mu.Unlock()

	ctx, cancel := context.WithTimeoutCause(ctx, timeout, ErrServerBusy)
	defer cancel()
	select {
	case <-u.free:
		return func() {
			u.free <- struct{}{}
			t.drop(id, u)
		}, nil
	case <-ctx.Done():
		t.drop(id, u)
		return nil, context.Cause(ctx)
	}
}

func (t *turns) drop(id string, u *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.users--; u.users == 0 {
		delete(t.byID, id)
	}
}

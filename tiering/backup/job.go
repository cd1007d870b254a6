package backup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// Job runs one backup at a time for those who ask over the admin API.
type Job struct {
	mu     sync.Mutex
	status Status
	cancel context.CancelFunc
	wg     sync.WaitGroup
	closed bool
}

// Status is how the last backup is.
type Status struct {
	Running bool      `json:"running"`
	URL     string    `json:"url,omitempty"`
	Began   time.Time `json:"began,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	Done    int64     `json:"done_bytes"`
	Total   int64     `json:"total_bytes"`
	Error   string    `json:"error,omitempty"`
	Backup  *Info     `json:"backup,omitempty"`
	Removed []string  `json:"removed,omitempty"` // older ones, by Options.Keep
}

// ErrRunning means that another backup runs.
var ErrRunning = errors.New("a backup is running")

// Start begins a backup into the store of url, and removes what is older than o.Keep of them when it is made.
func (j *Job) Start(s *spool.Spool, url string, so store.Options, o Options) error {
	if err := store.CheckURL(url); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.status.Running || j.closed {
		return ErrRunning
	}
	ctx, cancel := context.WithCancel(context.Background())
	j.cancel = cancel
	j.status = Status{Running: true, URL: url, Began: time.Now().UTC()}
	o.Progress = func(done, total int64) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.status.Done, j.status.Total = done, total
	}
	j.wg.Go(func() {
		defer cancel()
		info, removed, err := run(ctx, s, url, so, o)
		j.mu.Lock()
		defer j.mu.Unlock()
		j.status.Running, j.status.Ended, j.status.Backup, j.status.Removed = false, time.Now().UTC(), info, removed
		if err != nil {
			j.status.Error = err.Error()
		}
	})
	return nil
}

func run(ctx context.Context, s *spool.Spool, url string, so store.Options, o Options) (info *Info, removed []string, err error) {
	if err := store.CheckParent(url); err != nil {
		return nil, nil, err
	}
	st, err := store.Open(ctx, url, so)
	if err != nil {
		return nil, nil, err
	}
	defer st.Close()
	return CreateAndPrune(ctx, s, st, o)
}

// CreateAndPrune makes a backup, and then removes all but o.Keep of the newest; info is that of a backup that was made, with an error too.
func CreateAndPrune(ctx context.Context, s *spool.Spool, st store.Store, o Options) (info *Info, removed []string, err error) {
	if info, err = Create(ctx, s, st, o); err != nil || o.Keep <= 0 {
		return info, nil, err
	}
	if removed, err = Prune(ctx, st, o.Keep); err != nil {
		err = fmt.Errorf("backup %s is made; older ones: %w", info.ID, err)
	}
	return info, removed, err
}

// Status is how it is.
func (j *Job) Status() Status {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.status
}

// Close ends a backup that runs and waits for it.
func (j *Job) Close() {
	j.mu.Lock()
	j.closed = true
	if j.cancel != nil {
		j.cancel()
	}
	j.mu.Unlock()
	j.wg.Wait()
}

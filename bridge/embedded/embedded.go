package embedded

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/forebay-gateway/forebay/spool/vfs"
)

// Options are what the program wires.
type Options struct {
	Logger *slog.Logger
}

// Upstream is a running broker.
type Upstream struct {
	cfg  Config
	log  *slog.Logger
	lock io.Closer
	quit chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	addr    string
	port    int
	cluster *kfake.Cluster // nil while it is stopped
	closed  bool
}

const retentionEvery = 30 * time.Second

// Start takes the directory and starts the broker.
func Start(cfg Config, opts Options) (*Upstream, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("embedded kafka: %w", err)
	}
	port, err := cfg.port()
	if err != nil {
		return nil, fmt.Errorf("embedded kafka: address: %w", err)
	}
	if cfg.Dir == "" {
		return nil, errors.New("embedded kafka: dir: no directory given")
	}
	u := &Upstream{cfg: cfg, log: opts.Logger, port: port, quit: make(chan struct{})}
	if u.log == nil {
		u.log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("embedded kafka: %w", err)
	}
	// Two brokers on one directory would damage each other's files.
	if u.lock, err = vfs.OS.Lock(filepath.Join(cfg.Dir, "LOCK")); err != nil {
		return nil, fmt.Errorf("embedded kafka: %w", err)
	}
	if err := u.Resume(); err != nil {
		u.lock.Close()
		return nil, err
	}
	u.done.Go(u.retain)
	u.log.Warn("embedded kafka broker is for demo and tests, not for production", "address", u.Addr(), "dir", cfg.Dir)
	return u, nil
}

// Addr is where it listens, host:port.
func (u *Upstream) Addr() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.addr
}

// Suspend stops the broker as if it had gone away, until Resume. For demo and tests.
func (u *Upstream) Suspend() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.cluster != nil {
		u.cluster.Close()
		u.cluster = nil
	}
}

// Resume starts the broker again, on the same address and data.
func (u *Upstream) Resume() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return errors.New("embedded kafka: closed")
	}
	if u.cluster != nil {
		return nil
	}
	cluster, err := kfake.NewCluster(
		kfake.Ports(u.port),
		kfake.ClusterID("forebay-embedded"),
		kfake.DataDir(filepath.Join(u.cfg.Dir, "data")), // without it the log is memory
		kfake.AllowAutoTopicCreation(),
		kfake.DefaultNumPartitions(u.cfg.Partitions),
		kfake.BrokerConfigs(map[string]string{
			"log.retention.ms":    strconv.FormatInt(u.cfg.Retention.Std().Milliseconds(), 10),
			"log.retention.bytes": strconv.FormatInt(int64(u.cfg.MaxPartitionSize), 10),
		}),
		kfake.WithLogger(logger{u.log}),
	)
	if err != nil {
		return fmt.Errorf("embedded kafka: listen on %s: %w", u.cfg.Address, err)
	}
	u.cluster = cluster
	u.addr = cluster.ListenAddrs()[0]
	if u.port == 0 { // it comes back at the same place
		_, port, _ := strings.Cut(u.addr, ":")
		if u.port, err = strconv.Atoi(port); err != nil {
			panic("BUG: embedded kafka listens on " + u.addr)
		}
	}
	return nil
}

// retain applies retention: kfake does so by itself only for topics that have a retention of their own.
func (u *Upstream) retain() {
	t := time.NewTicker(retentionEvery)
	defer t.Stop()
	for {
		select {
		case <-u.quit:
			return
		case <-t.C:
			u.mu.Lock()
			if u.cluster != nil {
				u.cluster.ApplyRetention()
			}
			u.mu.Unlock()
		}
	}
}

// Close stops the broker cleanly. It may be called twice.
func (u *Upstream) Close() error {
	u.Suspend()
	u.mu.Lock()
	again := u.closed
	u.closed = true
	u.mu.Unlock()
	if again {
		return nil
	}
	close(u.quit)
	u.done.Wait()
	return u.lock.Close()
}

// logger passes the broker's log on. What it calls info is about single requests.
type logger struct{ log *slog.Logger }

func (l logger) Logf(level kfake.LogLevel, msg string, args ...any) {
	switch level {
	case kfake.LogLevelError:
		l.log.Error("embedded kafka: " + fmt.Sprintf(msg, args...))
	case kfake.LogLevelWarn:
		l.log.Warn("embedded kafka: " + fmt.Sprintf(msg, args...))
	default:
		l.log.Debug("embedded kafka: " + fmt.Sprintf(msg, args...))
	}
}

package tiering

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/spool"
	"github.com/forebay-gateway/forebay/spool/crypt"
	"github.com/forebay-gateway/forebay/tiering/manifest"
	"github.com/forebay-gateway/forebay/tiering/store"
)

// Options are what the program wires.
type Options struct {
	Dir        string // of what the tier has to remember: its instance and copies of the manifests
	GatewayID  string
	Keys       *crypt.Keyring // of the spool
	Store      store.Store    // nil: that of Config.URL. The tier closes it
	Logger     *slog.Logger
	Registerer prometheus.Registerer

	// Parquet writes the records of an archive for the streams that want it; nil when none does.
	Parquet func(ctx context.Context, a *spool.Archive, path string) error
}

// Tier stores the sealed segments of one spool, and reads them back.
type Tier struct {
	cfg      Config
	o        Options
	log      *slog.Logger
	dir      string
	local    store.Store // of dir
	store    store.Store
	cache    *Cache
	uploader *uploader
	owner    manifest.Owner
	streams  []*tiered
	byName   map[string]*tiered
	pauses   []pause
	metrics  *metrics
	now      func() time.Time // the spool's, once there is one

	spool   *spool.Spool // set by Attach
	kick    chan struct{}
	claimed time.Time // when the owner marker was last seen to be ours; the loop's
	ours    atomic.Bool

	paused atomic.Bool

	mu      sync.Mutex
	problem error
	since   time.Time

	growth growth

	closeOnce sync.Once
	closed    chan struct{}
	done      chan struct{} // Run has returned
	running   atomic.Bool
}

// New prepares a tier and touches no network. Its Keep is for the spool, which is opened after it; Attach gives it the spool.
func New(ctx context.Context, cfg Config, o Options) (*Tier, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	t := &Tier{
		cfg: cfg, o: o, log: o.Logger, dir: o.Dir, store: o.Store, byName: map[string]*tiered{}, now: time.Now,
		kick: make(chan struct{}, 1), closed: make(chan struct{}), done: make(chan struct{}),
	}
	var err error
	if t.local, err = store.OpenDir(o.Dir); err != nil {
		return nil, fmt.Errorf("tiering: %w", err)
	}
	instance, err := instanceOf(ctx, o.Dir)
	if err != nil {
		return nil, fmt.Errorf("tiering: %w", err)
	}
	t.owner = manifest.Owner{Gateway: o.GatewayID, Instance: instance, Since: time.Now().UTC()}
	if t.store == nil {
		if t.store, err = store.Open(ctx, cfg.URL, store.Options{CredentialsFile: cfg.CredentialsFile}); err != nil {
			return nil, fmt.Errorf("tiering: %w", err)
		}
	}
	if t.cache, err = NewCache(cfg.CacheDir, int64(cfg.CacheSize), o.Keys, int64(cfg.Bandwidth)); err != nil {
		return nil, errors.Join(fmt.Errorf("tiering: cache_dir: %w", err), t.store.Close())
	}
	for _, p := range cfg.Pause {
		parsed, err := parsePause(p)
		if err != nil {
			return nil, fmt.Errorf("tiering: pause: %w", err)
		}
		t.pauses = append(t.pauses, parsed)
	}
	for _, sc := range cfg.Streams {
		st := &tiered{name: sc.Name, cfg: sc.WithDefaults(), tries: map[uint64]time.Time{}}
		if m := t.readLocalCopy(sc.Name); m != nil && t.sameStore() {
			st.m.Store(m)
		}
		t.streams = append(t.streams, st)
		t.byName[sc.Name] = st
	}
	t.uploader = &uploader{
		store: t.store, partSize: int64(cfg.PartSize), verify: cfg.Verify, keys: o.Keys, limit: t.cache.limit, log: t.log,
		now: func() time.Time { return t.now() }, sent: func(n int64) { t.metrics.sent.Add(float64(n)) },
	}
	t.metrics = newMetrics(o.Registerer, t)
	return t, nil
}

// instanceOf reads or makes the random name of a data directory.
func instanceOf(ctx context.Context, dir string) (string, error) {
	local, err := store.OpenDir(dir) // what it reads stays, also the name that a killed process has just given the file
	if err != nil {
		return "", err
	}
	b, err := store.ReadAll(ctx, local, "instance", 1<<10)
	if name := strings.TrimSpace(string(b)); err == nil && len(name) >= 16 {
		return name, nil
	}
	if err != nil && !errors.Is(err, store.ErrNotExist) {
		return "", err
	}
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	name := hex.EncodeToString(raw[:])
	return name, store.PutBytes(ctx, local, "instance", []byte(name+"\n"), false)
}

// Instance reads or makes the name under which the tier with this directory owns a prefix.
func Instance(ctx context.Context, dir string) (string, error) { return instanceOf(ctx, dir) }

// Keep is spool.Options.Keep.
func (t *Tier) Keep(id spool.SegmentID) spool.Keep {
	st := t.byName[id.Stream]
	switch {
	case st == nil || st.stored(id):
		return spool.KeepNot
	case st.cfg.WhenNotStored == NotStoredDrop:
		return spool.KeepForNow
	}
	return spool.KeepAlways
}

// Attach gives the tier its spool. Once, before Run and all that reads.
func (t *Tier) Attach(s *spool.Spool) {
	t.spool, t.now = s, s.Now
	t.uploader.yield = &yield{groups: s.Groups}
	s.OnSealed(t.Kick)
}

// Kick has the loop look now.
func (t *Tier) Kick() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

const (
	roundEvery = 5 * time.Second // how late age and watermark may be noticed
	retryMax   = time.Minute     // between two tries of a store that does not answer
	claimEvery = 10 * time.Minute
	callMax    = 10 * time.Minute // of one upload of a part and its reading back, at 30 KiB/s
)

// Run stores and removes until ctx ends or Close is called.
func (t *Tier) Run(ctx context.Context) error {
	t.running.Store(true)
	defer close(t.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-t.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	wait := roundEvery
	for {
		err := t.Round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		t.note(err)
		if err != nil {
			wait = min(2*wait, retryMax)
		} else {
			wait = roundEvery
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.kick:
			if err != nil { // sealing goes on while the store does not answer: it is not asked more often for that
				select {
				case <-timer.C:
				case <-ctx.Done():
				}
			}
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// note logs when the state of the store changes, and remembers it for health.
func (t *Tier) note(err error) {
	t.mu.Lock()
	before, _ := reason(t.problem)
	after, hint := reason(err)
	t.problem = err
	if before != after {
		t.since = t.now()
	}
	t.mu.Unlock()
	if err != nil {
		t.metrics.errors.WithLabelValues(after).Inc()
	}
	switch {
	case before == after:
	case err == nil:
		t.log.Info("store is well again", "store", t.store.String())
	default:
		t.log.Warn("segments cannot be stored; they wait in the spool", "store", t.store.String(), "reason", after, "err", err, "hint", hint)
	}
}

// Health is nil, or what somebody has to do something about.
func (t *Tier) Health() error {
	t.mu.Lock()
	err, since := t.problem, t.since
	t.mu.Unlock()
	var errs []error
	if err != nil && t.now().Sub(since) > healthPatience {
		errs = append(errs, problem(fmt.Sprintf("store %s: segments wait in the spool since %s", t.store, since.UTC().Format(time.RFC3339)), err))
	}
	for _, st := range t.streams {
		st.mu.Lock()
		err := st.problem
		st.mu.Unlock()
		if err != nil {
			errs = append(errs, problem("stream "+st.name, err))
		}
	}
	return errors.Join(errs...)
}

const healthPatience = 30 * time.Second // one try that failed is no news

// Close ends Run, waits for it, and closes store and cache. Readers end with ErrClosed.
func (t *Tier) Close(ctx context.Context) error {
	var err error
	t.closeOnce.Do(func() {
		close(t.closed)
		if t.running.Load() {
			select {
			case <-t.done:
			case <-ctx.Done():
				err = fmt.Errorf("tiering: %w", ctx.Err())
			}
		}
		t.metrics.unregister()
		err = errors.Join(err, t.cache.Close(), t.store.Close(), t.local.Close())
	})
	return err
}

package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/mqtt/audit"
)

// Options are what the program wires.
type Options struct {
	Listeners  map[string]ListenerConfig // by name
	Logger     *slog.Logger              // nil discards
	Audit      *audit.Recorder           // nil records nothing
	BanFile    string                    // of bans made while running when Config.Ban.File is empty; empty: they end with the process
	Registerer prometheus.Registerer     // nil is private
	Now        func() time.Time          // nil is time.Now
}

// method is one link of a chain. It accepts with an identity, passes on with errNext, and refuses for all with any other error.
type method interface {
	authenticate(ctx context.Context, r *Request) (*Identity, error)
}

// Auth answers who may come in and what they may do. Its methods may be called at the same time.
type Auth struct {
	cfg    Config
	log    *slog.Logger
	now    func() time.Time
	chains map[string][]method // by listener
	scram  map[string]bool     // listeners with the method scram
	open   bool                // nothing is configured

	users    *source[*Passwords] // nil without the methods password and scram
	acl      *source[*ACL]       // nil without an ACL
	audit    *audit.Recorder
	bans     *bans
	autoBan  *autoBan
	jwks     *source[*keySet] // nil without a file
	others   []file           // CAs and the token of what is asked over HTTP
	keyURL   *keyURL
	gate     *gate
	throttle *throttle
	password *passwords
	metrics  *metrics
	faults   faults

	generation atomic.Uint64

	logMu  sync.Mutex
	logged map[string]time.Time // last line of a kind that repeats
}

// New reads all files; a fault in one is an error here, and only here.
func New(cfg Config, opts Options) (*Auth, error) {
	var listeners []ListenerConfig
	for _, l := range opts.Listeners {
		listeners = append(listeners, l)
	}
	if err := cfg.Validate(listeners...); err != nil {
		return nil, err
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Registerer == nil {
		opts.Registerer = prometheus.NewRegistry()
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	a := &Auth{
		cfg: cfg, log: opts.Logger, now: opts.Now, chains: map[string][]method{}, scram: map[string]bool{},
		audit:    opts.Audit,
		bans:     newBans(opts.Now),
		autoBan:  newAutoBan(cfg.Ban.Auto),
		throttle: newThrottle(cfg.Throttle, opts.Now),
		gate:     newGate(uint32(cfg.Password.Memory>>10), cfg.Password.Parallel, cfg.Password.Queue, cfg.Password.QueueTimeout.Std()),
		logged:   map[string]time.Time{},
	}
	if err := a.files(listeners, opts.BanFile); err != nil {
		return nil, err
	}
	made, err := a.methods(listeners)
	if err != nil {
		return nil, err
	}
	a.open = len(cfg.Methods) == 0
	for name, l := range opts.Listeners {
		names := l.Methods
		if len(names) == 0 {
			names = cfg.Methods
		}
		a.open = a.open && len(names) == 0
		for _, n := range names {
			if Method(n) == MethodScram {
				a.scram[name] = true
				continue
			}
			a.chains[name] = append(a.chains[name], made[Method(n)])
		}
	}
	if a.metrics, err = newMetrics(a, opts.Registerer); err != nil {
		a.closeKeys()
		return nil, err
	}
	return a, nil
}

// files reads the files that are configured.
func (a *Auth) files(listeners []ListenerConfig, banFile string) (err error) {
	if a.cfg.uses(MethodPassword, listeners) || a.cfg.uses(MethodScram, listeners) {
		memory := uint32(a.cfg.Password.Memory >> 10)
		a.users, err = newSource(a.cfg.Password.File, func(name string, data []byte) (*Passwords, error) {
			return ParsePasswords(name, data, memory)
		})
		if err != nil {
			return fmt.Errorf("auth.password.file: %w", err)
		}
		a.warnOfReaders("password file can be read by others; chmod 600", a.cfg.Password.File)
	}
	if a.cfg.ACL.File != "" {
		if a.acl, err = newSource(a.cfg.ACL.File, ParseACL); err != nil {
			return fmt.Errorf("auth.acl.file: %w", err)
		}
	}
	if name := cmp.Or(a.cfg.Ban.File, banFile); name != "" {
		if err := a.bans.openFile(name, a.cfg.Ban.File == ""); err != nil {
			if _, damaged := errors.AsType[*FileError](err); damaged {
				return fmt.Errorf("auth.ban.file: %w: %q sets the lines aside that cannot be read, keeps the others, and shows both", err, "forebay ban mend "+name)
			}
			return fmt.Errorf("auth.ban.file: %w", err)
		}
	}
	return nil
}

// warnOfReaders warns of a secret that is not one.
func (a *Auth) warnOfReaders(message, name string) {
	if info, err := os.Stat(name); err == nil && info.Mode().Perm()&0o077 != 0 {
		a.log.Warn(message, "file", name)
	}
}

// methods makes what the chains are made of.
func (a *Auth) methods(listeners []ListenerConfig) (map[Method]method, error) {
	made := map[Method]method{MethodAnonymous: anonymous{}}
	if a.users != nil {
		a.password = &passwords{
			file: a.users, gate: a.gate, now: a.now,
			verified: newCache[digest, struct{}](throttleTable), ttl: a.cfg.Password.CacheTTL.Std(),
		}
		made[MethodPassword] = a.password
	}
	made[MethodCertificate] = &certificates{
		from: a.cfg.Certificate.Identity, users: a.cfg.Certificate.Users, only: a.cfg.Certificate.OnlyListed,
	}
	if a.cfg.uses(MethodJWT, listeners) {
		k, err := a.keys()
		if err != nil {
			return nil, err
		}
		made[MethodJWT] = newTokens(a.cfg.JWT, k, a.now)
	}
	if a.cfg.uses(MethodHTTP, listeners) {
		c := a.cfg.HTTP
		client, err := a.client("http_ca", c.Timeout.Std(), c.CAFile, c.MaxRequests)
		if err != nil {
			return nil, fmt.Errorf("auth.http.ca_file: %w", err)
		}
		token, err := a.bearer(c.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("auth.http.token_file: %w", err)
		}
		made[MethodHTTP] = newHook(c, client, token, a.now, func(err error) {
			a.metrics.hookDown.Inc()
			a.rarely("authentication hook does not answer", "url", c.URL, "when_down", c.WhenDown, "err", err)
		})
	}
	return made, nil
}

func (a *Auth) keys() (keys, error) {
	c := a.cfg.JWT
	if c.JWKSFile != "" {
		f, err := newSource(c.JWKSFile, parseKeys)
		if err != nil {
			return nil, fmt.Errorf("auth.jwt.jwks_file: %w", err)
		}
		a.jwks = f
		return &keyFile{f}, nil
	}
	client, err := a.client("jwt_ca", c.Timeout.Std(), c.CAFile, 2)
	if err != nil {
		return nil, fmt.Errorf("auth.jwt.ca_file: %w", err)
	}
	a.keyURL = newKeyURL(c, client, a.now, func(err error) {
		a.metrics.keysDown.Inc()
		a.rarely("keys for tokens do not come", "err", err)
	})
	return a.keyURL, nil
}

// rarely logs a line that repeats, once in a while.
func (a *Auth) rarely(message string, args ...any) {
	a.logMu.Lock()
	last, now := a.logged[message], a.now()
	quiet := now.Sub(last) < 30*time.Second
	if !quiet {
		a.logged[message] = now
	}
	a.logMu.Unlock()
	if !quiet {
		a.log.Warn(message, args...)
	}
}

// anonymous lets in who offers nothing. Who offers a name that nobody vouches for is not let in under it.
type anonymous struct{}

func (anonymous) authenticate(_ context.Context, r *Request) (*Identity, error) {
	if r.HasUser || r.HasPassword {
		return nil, errNext
	}
	return &Identity{Method: MethodAnonymous}, nil
}

// Close ends what runs beside. It may be called more than once.
func (a *Auth) Close() {
	a.closeKeys()
	a.metrics.unregister()
}

func (a *Auth) closeKeys() {
	if a.keyURL != nil {
		a.keyURL.close()
	}
}

// Open reports whether nothing is configured: everybody may come in.
func (a *Auth) Open() bool { return a.open }

// Authenticate decides about a CONNECT. It may take as long as the throttle and the methods let it, at most until ctx ends.
func (a *Auth) Authenticate(ctx context.Context, r *Request) (*Identity, error) {
	id, err := a.authenticate(ctx, r)
	return a.decided(r, id, err)
}

func (a *Auth) authenticate(ctx context.Context, r *Request) (*Identity, error) {
	if a.bans.banned(r.ClientID, r.User, r.Remote) {
		return nil, ErrBanned
	}
	if a.open {
		id := &Identity{Method: MethodAnonymous}
		if r.HasUser {
			id.User = r.User // nobody has vouched for it, and nobody was to
		}
		return id, nil
	}
	if err := a.throttle.admit(ctx, r.Remote, r.User); err != nil {
		return nil, err
	}
	for _, m := range a.chains[r.Listener] {
		id, err := m.authenticate(ctx, r)
		if err == nil {
			return id, nil
		}
		if !errors.Is(err, errNext) {
			return nil, err
		}
	}
	if !r.HasUser && !r.HasPassword {
		return nil, ErrNotAuthorized
	}
	return nil, ErrBadCredentials
}

// decided does what follows every decision about who a client is.
func (a *Auth) decided(r *Request, id *Identity, err error) (*Identity, error) {
	if err == nil {
		if id.Certificate == nil {
			id.Certificate = NewCertificateInfo(r.Certificate)
		}
		if id.User != r.User && a.bans.banned(r.ClientID, id.User, r.Remote) {
			err = ErrBanned
		} else if !id.ExpiresAt.IsZero() && !a.now().Before(id.ExpiresAt) {
			err = ErrBadCredentials
		} else {
			if id.User == r.User { // a name that was only claimed is not that of its owner: he would open it to guessing
				a.throttle.succeeded(r.Remote, r.User)
			}
			if !a.Permissions(Subject{ClientID: r.ClientID, Listener: r.Listener, Identity: id}).Connect() {
				err = ErrNotAuthorized
			}
		}
	} else if errors.Is(err, ErrBadCredentials) {
		a.throttle.failed(r.Remote, r.User)
		if b, ok := a.autoBan.failed(r.Remote, a.now()); ok {
			a.banAutomatically(b)
		}
	}
	if err != nil {
		if ctxErr := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded); ctxErr {
			err = ErrBusy
		}
		a.metrics.refused.WithLabelValues(reasonOf(err)).Inc()
		return nil, err
	}
	a.metrics.accepted.WithLabelValues(string(id.Method)).Inc()
	return id, nil
}

// Permissions resolves the ACL for a client.
func (a *Auth) Permissions(s Subject) *Permissions { return a.rules().For(s) }

// Explain answers for a client and says which rule decided.
func (a *Auth) Explain(q Question) Decision { return a.rules().Explain(q) }

func (a *Auth) rules() *ACL {
	if a.acl == nil {
		return nil
	}
	return a.acl.load()
}

// Generation changes whenever answers for clients that are in may have changed: permissions have to be resolved anew, and Still
// has to be asked.
func (a *Auth) Generation() uint64 { return a.generation.Load() }

// Still reports, for a client that is in, whether it would still be let in: nil, ErrBanned, or ErrNotAuthorized when its user
// is gone, its password is another one, its token has expired, or the ACL does not let it connect.
func (a *Auth) Still(s Subject, remote netip.Addr) error {
	id := s.Identity
	switch {
	case a.bans.ended(s.ClientID, id.User, remote):
		return ErrBanned
	case !id.ExpiresAt.IsZero() && !a.now().Before(id.ExpiresAt):
		return ErrNotAuthorized
	case id.stamp != "" && a.users != nil:
		if c := a.users.load().users[id.User]; c == nil || c.stamp != id.stamp {
			return ErrNotAuthorized
		}
	}
	if !a.Permissions(s).Connect() {
		return ErrNotAuthorized
	}
	return nil
}

// Ban keeps somebody out from now on; those who are in are for the caller of Still.
func (a *Auth) Ban(b Ban) error {
	if err := a.bans.add(b); err != nil {
		return err
	}
	a.generation.Add(1)
	a.audit.Record(audit.Event{Name: audit.Banned, What: b.String()})
	return nil
}

func (a *Auth) banAutomatically(b Ban) {
	if err := a.bans.add(b); err != nil {
		a.rarely("address is not banned", "err", err)
		return
	}
	a.metrics.autoBans.Inc()
	a.audit.Record(audit.Event{Name: audit.Banned, What: b.String(), Detail: "automatic"})
}

// Screen reports whether nobody is let in from an address, before anything is read from there: ErrBanned.
func (a *Auth) Screen(remote netip.Addr) error {
	if !a.bans.screened(remote) {
		return nil
	}
	a.metrics.refused.WithLabelValues(refusedBanned).Inc()
	return ErrBanned
}

// Unban takes bans away that have the conditions of b, and returns how many.
func (a *Auth) Unban(b Ban) (int, error) {
	n, err := a.bans.remove(b)
	if n > 0 {
		a.audit.Record(audit.Event{Name: audit.Unbanned, What: b.String()})
	}
	return n, err
}

// Bans lists what is in force.
func (a *Auth) Bans() []Ban { return a.bans.list() }

package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Pauses after a refused login. The first is short: a broker that has just started may not know its users yet.
const (
	firstLoginPause = 500 * time.Millisecond // then doubling
	maxLoginPause   = 30 * time.Second
)

// login keeps an upstream from being asked again and again with credentials that it refuses: each producer, reader and connection
// would try on its own, and a directory behind the brokers may lock the user out. Connections that are open are not touched.
type login struct {
	sasl   SASLConfig
	tokens *tokens
	now    func() time.Time
	tell   func(err error) // called once for each secret that is refused

	mu     sync.Mutex
	err    error  // the refusal; nil while logins succeed
	with   string // the secret that was refused
	inARow int
	until  time.Time
}

// heldError is a connection that was not tried.
type heldError struct {
	err  error
	wait time.Duration
}

func (e *heldError) Error() string {
	return fmt.Sprintf("%v (not tried again for %v)", e.err, e.wait.Round(100*time.Millisecond))
}
func (e *heldError) Unwrap() error { return e.err }

// outcome takes note of a connection that was opened, or why it was not.
func (l *login) outcome(err error) {
	if l.sasl.Mechanism == "" {
		return
	}
	if err == nil {
		l.mu.Lock()
		l.err, l.inARow, l.with = nil, 0, ""
		l.mu.Unlock()
		return
	}
	if _, held := errors.AsType[*heldError](err); held || !loginRefused(err) {
		return
	}
	l.tokens.forget()
	if l.note(err, l.sasl.current()) {
		l.tell(err)
	}
}

// note holds what comes next after a refusal of the secret with. news is false when that is known already.
func (l *login) note(err error, with string) (news bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	news = l.err == nil || with != l.with
	now := l.now()
	l.err = err
	if now.Before(l.until) && with == l.with {
		return news // several connections that were opened at the same time are one try
	}
	if with != l.with {
		l.inARow, l.with = 0, with
	}
	pause := min(maxLoginPause, firstLoginPause<<min(l.inARow, 10))
	l.inARow++
	l.until = now.Add(pause/2 + rand.N(pause/2+1))
	return news
}

// held is not nil while the credentials that were refused should not be tried again.
func (l *login) held() error {
	l.mu.Lock()
	err, with, wait := l.err, l.with, l.until.Sub(l.now())
	l.mu.Unlock()
	if err == nil || wait <= 0 || l.sasl.current() != with {
		return nil
	}
	return &heldError{err, wait}
}

// dialer wraps dial so that it does not connect while logins are held.
func (l *login) dialer(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := l.held(); err != nil {
			// What the client takes for a broker that is away: it goes on with another, and tries again.
			return nil, &net.OpError{Op: "dial", Net: network, Err: err}
		}
		return dial(ctx, network, addr)
	}
}

// loginRefused reports whether a connection failed because of who we say we are.
func loginRefused(err error) bool {
	var (
		secret *secretError
		token  *tokenError
	)
	return errors.As(err, &secret) || errors.As(err, &token) || errors.Is(err, kerr.SaslAuthenticationFailed) ||
		errors.Is(err, kerr.UnsupportedSaslMechanism) || errors.Is(err, kerr.IllegalSaslState)
}

// loginHook tells login of the connections of clients that have no other hooks.
type loginHook struct{ l *login }

var _ kgo.HookBrokerConnect = loginHook{}

func (h loginHook) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	h.l.outcome(err)
}

// loginRefused says so while the upstream is up, with connections from before: nothing else would tell until those end.
func (c *Client) loginRefused(err error) {
	if c.Up() {
		reason, hint := ConnectionReason(err)
		c.log.Warn("a new connection cannot log in; those that are open go on", "reason", reason, "err", err, "hint", hint)
	}
}

// secure makes dial connect as the configuration says, and the options that every client of the upstream needs.
func (c *Client) secure() {
	c.login = &login{sasl: c.cfg.SASL, now: time.Now, tokens: &tokens{cfg: c.cfg.SASL.OAuth, now: time.Now}, tell: c.loginRefused}
	if c.cfg.TLS.Enabled {
		c.tls = &tlsFiles{cfg: c.cfg.TLS, log: c.log}
		c.dial = c.tls.dialer(c.dial)
	}
	if c.cfg.SASL.Mechanism != "" {
		c.dial = c.login.dialer(c.dial)
	}
	opts := []kgo.Opt{kgo.WithHooks(loginHook{c.login})}
	if m := c.cfg.SASL.mechanism(c.login.tokens); m != nil {
		opts = append(opts, kgo.SASL(m))
	}
	c.identity = opts
}

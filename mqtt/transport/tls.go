package transport

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ALPN names. A client that offers one of its listener's gets it, one that offers others or none is served all the same.
const (
	ALPNMQTT = "mqtt"
	ALPNHTTP = "http/1.1"
)

// Options are what the owner of a listener wires.
type Options struct {
	Listener string // its name, for the log
	ALPN     string
	Slots    *Slots
	Logger   *slog.Logger
	Now      func() time.Time
}

// TLS is what one listener shows and trusts. Its methods may be called at the same time.
type TLS struct {
	cfg     TLSConfig
	opts    Options
	base    *tls.Config // its session ticket keys serve all that come after it
	bundles []*bundle

	pair  atomic.Pointer[pair]
	trust atomic.Pointer[trust] // nil without client_ca_file
	now   atomic.Pointer[current]

	mu sync.Mutex // of Reload: of two at once the one that read less must not come last
}

// current is what the next handshake is served with.
type current struct{ plain, alpn *tls.Config }

// NewTLS reads the files; a fault in one is an error here, and only here.
func NewTLS(cfg TLSConfig, opts Options) (*TLS, error) {
	t := &TLS{cfg: cfg, opts: opts}
	t.bundles = append(t.bundles, &bundle{name: "certificate", files: []string{cfg.CertFile, cfg.KeyFile}, use: t.usePair, now: opts.Now})
	if cfg.ClientCAFile != "" {
		b := &bundle{name: "client CA", files: []string{cfg.ClientCAFile}, use: t.useTrust, now: opts.Now}
		if cfg.CRLFile != "" {
			b.name, b.files = "client CA and revocation list", append(b.files, cfg.CRLFile)
		}
		t.bundles = append(t.bundles, b)
	}
	for _, b := range t.bundles {
		if _, err := b.look(); err != nil {
			return nil, err
		}
	}
	t.rebuild()
	t.base = t.config("")
	t.base.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := t.now.Load()
		if opts.ALPN != "" && slices.Contains(hello.SupportedProtos, opts.ALPN) {
			return c.alpn, nil
		}
		return c.plain, nil
	}
	t.tell()
	return t, nil
}

func (t *TLS) usePair(contents [][]byte) error {
	p, err := parsePair(t.cfg, contents[0], contents[1])
	if err != nil {
		return err
	}
	t.pair.Store(p)
	return nil
}

func (t *TLS) useTrust(contents [][]byte) error {
	var crl []byte
	if len(contents) > 1 {
		crl = contents[1]
	}
	tr, err := parseTrust(t.cfg, contents[0], crl)
	if err != nil {
		return err
	}
	t.trust.Store(tr)
	return nil
}

// Reload looks at the files. What is new and good counts from the next handshake on; err says which files are not in use and why,
// news or not.
func (t *TLS) Reload() (changed bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, b := range t.bundles {
		news, fault := b.look()
		changed = changed || news
		switch {
		case fault != nil:
			errs = append(errs, fmt.Errorf("%s: %w", b.name, fault))
		case news:
			t.opts.Logger.Info("files read again", "listener", t.opts.Listener, "what", b.name, "files", b.files)
		}
	}
	if changed {
		t.rebuild()
		t.tell()
	}
	return changed, errors.Join(errs...)
}

// rebuild makes the configurations of what is in force.
func (t *TLS) rebuild() {
	c := &current{plain: t.config("")}
	c.alpn = c.plain
	if t.opts.ALPN != "" {
		c.alpn = t.config(t.opts.ALPN)
	}
	t.now.Store(c)
}

func (t *TLS) config(alpn string) *tls.Config {
	c := &tls.Config{
		Certificates: []tls.Certificate{t.pair.Load().cert},
		MinVersion:   t.cfg.minVersion(),
		Time:         t.opts.Now,
	}
	if alpn != "" {
		c.NextProtos = []string{alpn}
	}
	if tr := t.trust.Load(); tr != nil && t.cfg.clientAuth() != tls.NoClientCert {
		c.ClientAuth = t.cfg.clientAuth()
		c.ClientCAs = tr.pool
		c.VerifyConnection = func(cs tls.ConnectionState) error { return t.verify(tr, cs) }
	}
	return c
}

// Server is for a server that makes its handshakes by itself: each is served with the files of then.
func (t *TLS) Server() *tls.Config { return t.base }

// verify looks at revocations, and at the whole chain again when a session is resumed: what was verified then may not be now.
func (t *TLS) verify(tr *trust, cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 {
		return nil // client_cert has let it pass
	}
	chains := cs.VerifiedChains
	if cs.DidResume {
		var err error
		if chains, err = t.chains(tr, cs.PeerCertificates); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
		}
	}
	if tr.crls == nil {
		return nil
	}
	if err := tr.crls.names(chains); err != nil {
		return err
	}
	var err error
	for _, chain := range chains {
		if err = tr.crls.cover(chain, t.opts.Now(), t.cfg.CRLExpired == ExpiredAccept); err == nil {
			return nil
		}
	}
	return err
}

func (t *TLS) chains(tr *trust, certs []*x509.Certificate) ([][]*x509.Certificate, error) {
	between := x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	return certs[0].Verify(x509.VerifyOptions{
		Roots: tr.pool, Intermediates: between, CurrentTime: t.opts.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// Revoked reports whether the lists of now name a certificate of the connection.
func (t *TLS) Revoked(cs tls.ConnectionState) bool {
	tr := t.trust.Load()
	if tr == nil || tr.crls == nil {
		return false
	}
	return tr.crls.names(cs.VerifiedChains) != nil
}

// tell warns of what works and should not stay so.
func (t *TLS) tell() {
	log := t.opts.Logger.With("listener", t.opts.Listener)
	if t.pair.Load().public {
		log.Warn("everybody on this machine can read the key; chmod 600", "file", t.cfg.KeyFile)
	}
	if err := t.dated(); err != nil {
		log.Warn("certificate or revocation list is out of date", "err", err)
	}
}

// Expiry is until when the certificate of the listener is valid.
func (t *TLS) Expiry() time.Time { return t.pair.Load().cert.Leaf.NotAfter }

// Health is nil, or says which files are not in use, or what has expired.
func (t *TLS) Health() error {
	errs := []error{t.dated()}
	for _, b := range t.bundles {
		if err := b.problem(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// dated is about what has expired.
func (t *TLS) dated() error {
	var errs []error
	leaf, now := t.pair.Load().cert.Leaf, t.opts.Now()
	if now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
		errs = append(errs, fmt.Errorf("certificate is valid from %s to %s only: replace %s",
			leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339), t.cfg.CertFile))
	}
	if tr := t.trust.Load(); tr != nil && tr.crls != nil {
		if next := tr.crls.next(); !next.IsZero() && now.After(next) {
			effect := "clients of its CA are refused"
			if t.cfg.CRLExpired == ExpiredAccept {
				effect = "clients that were revoked since are accepted"
			}
			errs = append(errs, fmt.Errorf("revocation list has expired at %s, %s: put a new one into %s",
				next.Format(time.RFC3339), effect, t.cfg.CRLFile))
		}
	}
	return errors.Join(errs...)
}

package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	maxJWKS     = 1 << 20 // bytes of a JWKS
	maxKeys     = 256     // keys of a JWKS
	minRSABits  = 2048
	jwksMinWait = 10 * time.Second // between two fetches, whatever key IDs strangers make up
)

// parseKeys reads a JWKS (RFC 7517). Only public keys that sign are kept; a private or symmetric key in it is a fault of whoever
// published it, and is left out.
func parseKeys(name string, data []byte) (*keySet, error) {
	fault := func(format string, args ...any) error {
		return &FileError{File: name, Problem: fmt.Sprintf(format, args...)}
	}
	if len(data) > maxJWKS {
		return nil, fault("has more than %d bytes", maxJWKS)
	}
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, jsonFault(name, data, err)
	}
	if len(raw.Keys) > maxKeys {
		return nil, fault("has %d keys, at most %d are taken", len(raw.Keys), maxKeys)
	}
	set := &keySet{}
	for _, one := range raw.Keys {
		var k jose.JSONWebKey
		if err := k.UnmarshalJSON(one); err != nil {
			continue // RFC 7517, 5: a key that is not understood is ignored
		}
		if k.Use != "" && k.Use != "sig" || !k.IsPublic() || !k.Valid() || !strong(k.Key) {
			continue
		}
		set.keys = append(set.keys, k)
	}
	if len(set.keys) == 0 {
		return nil, fault("holds no public key for signatures (RSA of %d bits or more, EC or Ed25519)", minRSABits)
	}
	return set, nil
}

// jsonFault names the line.
func jsonFault(name string, data []byte, err error) error {
	line := 0
	var se *json.SyntaxError
	var te *json.UnmarshalTypeError
	offset := int64(-1)
	if errors.As(err, &se) {
		offset = se.Offset
	} else if errors.As(err, &te) {
		offset = te.Offset
	}
	if offset >= 0 {
		line = 1
		for _, c := range data[:min(int(offset), len(data))] {
			line += b2i(c == '\n')
		}
	}
	return &FileError{File: name, Line: line, Problem: "not a JWKS: " + err.Error()}
}

func strong(key any) bool {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return k.N.BitLen() >= minRSABits && k.N.BitLen() <= 16384
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

type keySet struct{ keys []jose.JSONWebKey }

// find returns the keys that may have signed: of the key ID, or all when the token names none, and of them those whose kind is
// that of the algorithm. So a token cannot make an RSA key serve as the secret of an HMAC.
func (s *keySet) find(id string, alg jose.SignatureAlgorithm) []jose.JSONWebKey {
	const most = 8 // signatures checked for one token that names no key
	var out []jose.JSONWebKey
	for _, k := range s.keys {
		if id != "" && k.KeyID != id || k.Algorithm != "" && k.Algorithm != string(alg) || !fitsAlgorithm(k.Key, alg) {
			continue
		}
		if out = append(out, k); len(out) == most {
			break
		}
	}
	return out
}

func fitsAlgorithm(key any, alg jose.SignatureAlgorithm) bool {
	switch k := key.(type) {
	case *rsa.PublicKey:
		switch alg {
		case jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512:
			return true
		}
	case *ecdsa.PublicKey:
		bits := map[jose.SignatureAlgorithm]int{jose.ES256: 256, jose.ES384: 384, jose.ES512: 521}[alg]
		return bits == k.Params().BitSize
	case ed25519.PublicKey:
		return alg == jose.EdDSA
	}
	return false
}

// keys is where the method jwt has its keys from.
type keys interface {
	// find returns the keys that may have signed. ErrUnavailable: there are none to ask.
	find(ctx context.Context, id string, alg jose.SignatureAlgorithm) ([]jose.JSONWebKey, error)
}

// keyFile is a JWKS in a file.
type keyFile struct{ file *source[*keySet] }

func (f *keyFile) find(_ context.Context, id string, alg jose.SignatureAlgorithm) ([]jose.JSONWebKey, error) {
	return f.file.load().find(id, alg), nil
}

// keyURL is a JWKS behind a URL. It is fetched when a token comes and there are no keys, when a token names a key that is not
// known, and beside the running work when the keys are older than refresh. Whatever comes, it is not asked more often than
// once in jwksMinWait. While it does not answer, the keys that are there go on for maxAge.
type keyURL struct {
	url     string
	client  func() *http.Client
	refresh time.Duration
	maxAge  time.Duration
	now     func() time.Time
	failed  func(error)

	mu      sync.Mutex
	set     *keySet
	fetched time.Time // when set came
	tried   time.Time
	flight  chan struct{} // closed when the fetch that runs is over
	stop    context.CancelFunc
	ctx     context.Context
	wg      sync.WaitGroup
}

func newKeyURL(cfg JWTConfig, client func() *http.Client, now func() time.Time, failed func(error)) *keyURL {
	u := &keyURL{
		url: cfg.JWKSURL, client: client, refresh: cfg.Refresh.Std(), maxAge: cfg.MaxAge.Std(), now: now, failed: failed,
	}
	u.ctx, u.stop = context.WithCancel(context.Background())
	return u
}

func (u *keyURL) close() {
	u.stop()
	u.wg.Wait()
}

// find implements keys.
func (u *keyURL) find(ctx context.Context, id string, alg jose.SignatureAlgorithm) ([]jose.JSONWebKey, error) {
	set, age := u.current()
	if set != nil {
		if found := set.find(id, alg); len(found) > 0 && age < u.maxAge {
			if age >= u.refresh {
				u.fetch()
			}
			return found, nil
		}
	}
	if flight := u.fetch(); flight != nil {
		select {
		case <-flight:
		case <-ctx.Done():
			return nil, ErrUnavailable
		}
	}
	set, age = u.current()
	if set == nil || age >= u.maxAge {
		return nil, ErrUnavailable
	}
	return set.find(id, alg), nil
}

func (u *keyURL) current() (*keySet, time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.set, u.now().Sub(u.fetched)
}

// fetch starts a fetch, or joins the one that runs; nil when the last one was a moment ago.
func (u *keyURL) fetch() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.flight != nil {
		return u.flight
	}
	if now := u.now(); now.Sub(u.tried) < jwksMinWait || u.ctx.Err() != nil {
		return nil
	} else {
		u.tried = now
	}
	done := make(chan struct{})
	u.flight = done
	u.wg.Go(func() {
		set, err := u.get()
		u.mu.Lock()
		if err == nil {
			u.set, u.fetched = set, u.now()
		}
		u.flight = nil
		u.mu.Unlock()
		close(done)
		if err != nil && u.ctx.Err() == nil {
			u.failed(err)
		}
	})
	return done
}

func (u *keyURL) get() (*keySet, error) {
	req, err := http.NewRequestWithContext(u.ctx, http.MethodGet, u.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := u.client().Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %s", u.url, resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxJWKS+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.url, err)
	}
	return parseKeys(u.url, data)
}

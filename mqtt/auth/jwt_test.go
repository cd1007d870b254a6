package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

type testKeys struct {
	rsa  *rsa.PrivateKey
	ec   *ecdsa.PrivateKey
	ed   ed25519.PrivateKey
	weak *rsa.PrivateKey
}

var newTestKeys = sync.OnceValue(func() testKeys {
	var k testKeys
	k.rsa, _ = rsa.GenerateKey(rand.Reader, 2048)
	k.weak, _ = rsa.GenerateKey(rand.Reader, 1024)
	k.ec, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, k.ed, _ = ed25519.GenerateKey(rand.Reader)
	return k
})

func jwk(id string, key crypto.PublicKey) jose.JSONWebKey {
	return jose.JSONWebKey{Key: key, KeyID: id, Use: "sig"}
}

func jwksJSON(keys ...jose.JSONWebKey) string {
	b, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// sign makes a token by hand: the library must not be able to hide what it would refuse to write.
func sign(t testing.TB, alg jose.SignatureAlgorithm, id string, key any, claims map[string]any) string {
	t.Helper()
	opts := (&jose.SignerOptions{}).WithType("JWT")
	if id != "" {
		opts = opts.WithHeader("kid", id)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, opts)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := json.Marshal(claims)
	sig, err := s.Sign(body)
	if err != nil {
		t.Fatal(err)
	}
	out, err := sig.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *clock) claims(more map[string]any) map[string]any {
	out := map[string]any{"iss": "issuer", "aud": "forebay", "sub": "ann", "exp": c.now().Add(time.Hour).Unix()}
	for k, v := range more {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = v
		}
	}
	return out
}

func jwtConfig() Config {
	c := quick("jwt")
	c.JWT.Issuer, c.JWT.Audience = "issuer", []string{"forebay", "other"}
	return c
}

func TestJWTAccepts(t *testing.T) {
	k, clk := newTestKeys(), newClock()
	c := jwtConfig()
	c.JWT.JWKSFile = writeFile(t, "jwks", jwksJSON(jwk("r", k.rsa.Public()), jwk("e", k.ec.Public()), jwk("d", k.ed.Public())))
	c.JWT.Algorithms = []string{"RS256", "PS256", "ES256", "EdDSA"}
	c.JWT.GroupsClaim, c.JWT.PublishClaim, c.JWT.SubscribeClaim = "realm.roles", "pub", "sub_to"
	c.JWT.ClientIDClaim = "device"
	a := open(t, c, clk.now)
	claims := clk.claims(map[string]any{
		"realm": map[string]any{"roles": []string{"ops", "lab"}}, "pub": []string{"a/#"}, "device": []string{"c", "d"}, "n": 7, "b": true,
	})
	for _, token := range []string{
		sign(t, jose.RS256, "r", k.rsa, claims), sign(t, jose.PS256, "r", k.rsa, claims), sign(t, jose.ES256, "e", k.ec, claims),
		sign(t, jose.EdDSA, "d", k.ed, claims), sign(t, jose.ES256, "", k.ec, claims), // without a key ID
	} {
		id, err := a.Authenticate(t.Context(), request("c", "", token))
		if err != nil {
			t.Fatal(err)
		}
		if id.User != "ann" || strings.Join(id.Groups, " ") != "ops lab" || id.Claims["n"][0] != "7" || id.Claims["b"][0] != "true" {
			t.Errorf("%+v", id)
		}
		if want := clk.now().Add(time.Hour + 30*time.Second); !id.ExpiresAt.Equal(want) {
			t.Errorf("expires at %v, want %v", id.ExpiresAt, want)
		}
		p := a.Permissions(Subject{ClientID: "c", Identity: id})
		if !p.Publish("a/b", 0, false) || p.Publish("b", 0, false) || p.Subscribe("a", 0) {
			t.Error("the grants of the token are not what counts")
		}
	}
}

func TestJWTRefuses(t *testing.T) {
	k, clk := newTestKeys(), newClock()
	c := jwtConfig()
	c.JWT.JWKSFile = writeFile(t, "jwks", jwksJSON(jwk("r", k.rsa.Public()), jwk("e", k.ec.Public())))
	c.JWT.ClientIDClaim, c.JWT.CheckUserName = "device", true
	a := open(t, c, clk.now)
	try := func(what, token string, ok bool) {
		t.Helper()
		_, err := a.Authenticate(t.Context(), request("c", "ann", token))
		if ok != (err == nil) || err != nil && !errors.Is(err, ErrBadCredentials) {
			t.Errorf("%s: %v", what, err)
		}
	}
	f := func(what string, ok bool, more map[string]any) {
		t.Helper()
		if more["device"] == nil {
			more["device"] = "c"
		}
		try(what, sign(t, jose.RS256, "r", k.rsa, clk.claims(more)), ok)
	}
	f("good", true, map[string]any{})
	f("another issuer", false, map[string]any{"iss": "evil"})
	f("no issuer", false, map[string]any{"iss": nil})
	f("another audience", false, map[string]any{"aud": "shop"})
	f("one of the audiences", true, map[string]any{"aud": []string{"shop", "other"}})
	f("no audience", false, map[string]any{"aud": nil})
	f("expired", false, map[string]any{"exp": clk.now().Add(-time.Minute).Unix()})
	f("expired within the leeway", false, map[string]any{"exp": clk.now().Add(-30 * time.Second).Unix()})
	f("no expiry", false, map[string]any{"exp": nil})
	f("not yet", false, map[string]any{"nbf": clk.now().Add(time.Minute).Unix()})
	f("not yet within the leeway", true, map[string]any{"nbf": clk.now().Add(20 * time.Second).Unix()})
	f("no user", false, map[string]any{"sub": nil})
	f("empty user", false, map[string]any{"sub": ""})
	f("another user than in CONNECT", false, map[string]any{"sub": "eve"})
	f("another client ID", false, map[string]any{"device": "d"})

	for _, odd := range []any{"1893456000", "tomorrow", true, []any{}, map[string]any{}, -1, 0, 1e300, -1e300} {
		f(fmt.Sprintf("exp %v (%T)", odd, odd), false, map[string]any{"exp": odd})
	}
	for _, odd := range []any{"0", true, []any{1}, 1e300} {
		f(fmt.Sprintf("nbf %v (%T)", odd, odd), false, map[string]any{"nbf": odd})
	}
	for _, odd := range []any{7, []any{"ann"}, []any{"ann", "bob"}, map[string]any{"sub": "ann"}, "ann\x00", strings.Repeat("a", 20_000)} {
		f(fmt.Sprintf("sub %.20v (%T)", odd, odd), false, map[string]any{"sub": odd})
	}
	for _, odd := range []any{7, map[string]any{"forebay": true}, []any{7}, []any{[]any{"forebay"}}} {
		f(fmt.Sprintf("aud %v (%T)", odd, odd), false, map[string]any{"aud": odd})
	}
	deep := any("c")
	for range 1000 {
		deep = []any{deep}
	}
	f("client ID far down", false, map[string]any{"device": deep})

	claims := clk.claims(map[string]any{"device": "c"})
	good := sign(t, jose.RS256, "r", k.rsa, claims)
	parts := strings.Split(good, ".")
	b64 := base64.RawURLEncoding
	header := func(h string) string { return b64.EncodeToString([]byte(h)) }
	try("changed payload", parts[0]+"."+header(`{"sub":"root"}`)+"."+parts[2], false)
	try("alg none", header(`{"alg":"none"}`)+"."+parts[1]+".", false)
	try("alg None", header(`{"alg":"None"}`)+"."+parts[1]+"."+parts[2], false)
	try("without a signature", parts[0]+"."+parts[1]+".", false)
	try("kid of another key", sign(t, jose.RS256, "e", k.rsa, claims), false)
	try("kid that is a path", sign(t, jose.RS256, "../../etc/passwd", k.rsa, claims), false)
	try("kid of 8 KiB", sign(t, jose.RS256, strings.Repeat("r", 8<<10), k.rsa, claims), false)
	try("critical header", header(`{"alg":"RS256","kid":"r","crit":["b64"],"b64":false}`)+"."+parts[1]+"."+parts[2], false)
	try("header that is no object", header(`["RS256"]`)+"."+parts[1]+"."+parts[2], false)
	try("two algorithms", header(`{"alg":"none","alg":"RS256","kid":"r"}`)+"."+parts[1]+"."+parts[2], false)
	try("four parts", good+".x", false)
	try("no token", "secret", false)
	try("JSON serialisation", `{"payload":"`+parts[1]+`","protected":"`+parts[0]+`","signature":"`+parts[2]+`"}`, false)
	try("algorithm that is not listed", sign(t, jose.PS256, "r", k.rsa, claims), false)
	try("key of another algorithm", sign(t, jose.ES256, "r", k.ec, claims), false)
	try("unknown key", sign(t, jose.RS256, "x", k.rsa, claims), false)
	// The classic: the public key as the secret of an HMAC.
	der, _ := x509.MarshalPKIXPublicKey(k.rsa.Public())
	secret := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	try("HMAC with the public key", sign(t, jose.HS256, "r", secret, claims), false)
	// A key that the token brings with itself.
	own, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: own}, &jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	body, _ := json.Marshal(claims)
	sig, _ := s.Sign(body)
	embedded, _ := sig.CompactSerialize()
	try("embedded key", embedded, false)
	try("too long", good+strings.Repeat("A", maxToken), false)
	try("good again", good, true)
}

func TestJWKSLeavesOutWhatIsNotAPublicSigningKey(t *testing.T) {
	k := newTestKeys()
	enc := jwk("x", k.rsa.Public())
	enc.Use = "enc"
	set, err := parseKeys("jwks", []byte(jwksJSON(jwk("ok", k.ec.Public()), enc, jwk("weak", k.weak.Public()),
		jose.JSONWebKey{Key: k.ec, KeyID: "private"}, jose.JSONWebKey{Key: []byte("secret"), KeyID: "oct"})))
	if err != nil || len(set.keys) != 1 || set.keys[0].KeyID != "ok" {
		t.Errorf("%+v, %v", set, err)
	}
	f := func(text, want string) {
		t.Helper()
		if _, err := parseKeys("jwks", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	f("{\n\n\"keys\": x}", "jwks:3: not a JWKS")
	f("{\"keys\": {}}", "jwks:1: not a JWKS")
	f("{}", "holds no public key")
	f(`{"keys":[{"kty":"oct","k":"AAAA"}]}`, "holds no public key")
	f("<html>", "jwks:1: not a JWKS")
}

// jwksServer answers with what is set.
type jwksServer struct {
	*httptest.Server
	mu    sync.Mutex
	body  string
	code  int
	stuck chan struct{} // not nil: wait for it
	calls atomic.Int64
}

func (s *jwksServer) set(code int, body string, stuck chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code, s.body, s.stuck = code, body, stuck
}

func newJWKSServer(t *testing.T, body string) *jwksServer {
	s := &jwksServer{body: body, code: 200}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.calls.Add(1)
		s.mu.Lock()
		code, body, stuck := s.code, s.body, s.stuck
		s.mu.Unlock()
		if stuck != nil {
			select {
			case <-stuck:
			case <-r.Context().Done():
			}
		}
		if code == 302 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s
}

func TestJWKSURLFollowsRotatedKeys(t *testing.T) {
	k, clk := newTestKeys(), newClock()
	srv := newJWKSServer(t, jwksJSON(jwk("1", k.rsa.Public())))
	c := jwtConfig()
	c.JWT.JWKSURL = srv.URL
	c.JWT.AllowNoExpiry = true
	a := open(t, c, clk.now)
	one := sign(t, jose.RS256, "1", k.rsa, clk.claims(map[string]any{"exp": nil}))
	two := sign(t, jose.ES256, "2", k.ec, clk.claims(map[string]any{"exp": nil}))
	f := func(token string, calls int64, want error) {
		t.Helper()
		before := srv.calls.Load()
		_, err := a.Authenticate(t.Context(), request("c", "", token))
		a.keyURL.mu.Lock()
		flight := a.keyURL.flight
		a.keyURL.mu.Unlock()
		if flight != nil {
			<-flight
		}
		if got := srv.calls.Load() - before; !errors.Is(err, want) || got != calls {
			t.Errorf("%v, want %v; %d fetches, want %d", err, want, got, calls)
		}
	}
	f(one, 1, nil)
	f(one, 0, nil)
	srv.set(200, jwksJSON(jwk("2", k.ec.Public())), nil)
	f(two, 0, ErrBadCredentials) // made-up key IDs do not make us ask all the time
	clk.add(jwksMinWait)
	f(two, 1, nil)
	f(one, 0, ErrBadCredentials) // it is gone
	clk.add(c.JWT.Refresh.Std())
	f(two, 1, nil) // at once, and fetched beside
	for _, bad := range []struct {
		code int
		body string
	}{{500, "x"}, {200, "<html>"}, {200, "{}"}, {302, ""}, {200, strings.Repeat(" ", maxJWKS+1)}} {
		srv.set(bad.code, bad.body, nil)
		clk.add(c.JWT.Refresh.Std())
		f(two, 1, nil) // the keys that are there go on
		f(two, 0, nil)
	}
	clk.add(c.JWT.MaxAge.Std())
	f(two, 1, ErrUnavailable) // not for ever
	srv.set(200, jwksJSON(jwk("2", k.ec.Public())), nil)
	clk.add(jwksMinWait)
	f(two, 1, nil)
}

func TestJWKSURLSlowAndDown(t *testing.T) {
	k, clk := newTestKeys(), newClock()
	srv := newJWKSServer(t, "")
	stuck := make(chan struct{})
	defer close(stuck)
	srv.set(200, "", stuck)
	c := jwtConfig()
	c.JWT.JWKSURL, c.JWT.Timeout = srv.URL, unit.Duration(20*time.Millisecond)
	a := open(t, c, clk.now)
	token := sign(t, jose.RS256, "1", k.rsa, clk.claims(nil))
	var wg sync.WaitGroup
	for range 20 { // all wait for one fetch
		wg.Go(func() {
			if _, err := a.Authenticate(t.Context(), request("c", "", token)); !errors.Is(err, ErrUnavailable) {
				t.Errorf("slow: %v", err)
			}
		})
	}
	wg.Wait()
	if n := srv.calls.Load(); n != 1 {
		t.Errorf("%d fetches", n)
	}
	srv.Server.CloseClientConnections()
	srv.Server.Listener.Close()
	clk.add(jwksMinWait)
	if _, err := a.Authenticate(t.Context(), request("c", "", token)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("down: %v", err)
	}
}

// Headers of strangers.
func FuzzJWT(f *testing.F) {
	k, clk := newTestKeys(), newClock()
	c := jwtConfig()
	c.JWT.JWKSFile = writeFile(f, "jwks", jwksJSON(jwk("r", k.rsa.Public()), jwk("", k.ec.Public())))
	a := open(f, c, clk.now)
	good := sign(f, jose.RS256, "r", k.rsa, clk.claims(nil))
	parts := strings.Split(good, ".")
	f.Add(`{"alg":"RS256","kid":"r"}`, `{"sub":"ann"}`, parts[2])
	f.Add(`{"alg":"none"}`, `{}`, "")
	f.Add(`{"alg":"HS256","crit":["b64"],"b64":false,"jwk":{"kty":"oct","k":"AA"}}`, `{}`, "AA")
	f.Fuzz(func(t *testing.T, header, payload, signature string) {
		b64 := base64.RawURLEncoding
		token := b64.EncodeToString([]byte(header)) + "." + b64.EncodeToString([]byte(payload)) + "." + signature
		id, err := a.Authenticate(t.Context(), request("c", "", token))
		if err == nil && token != good {
			t.Fatalf("let in: %s: %+v", token, id)
		}
		if _, err := parseKeys("jwks", []byte(payload)); err == nil && !strings.Contains(payload, "kty") {
			t.Fatal("keys out of nothing")
		}
	})
}

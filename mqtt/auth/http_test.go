package auth

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// newHookServer calls answer with each question.
func newHookServer(t *testing.T, answer func(w http.ResponseWriter, q map[string]any)) (*httptest.Server, *atomic.Int64) {
	var calls atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		body, _ := io.ReadAll(r.Body)
		var q map[string]any
		if err := json.Unmarshal(body, &q); err != nil || r.Method != http.MethodPost || r.Header.Get("Authorization") != "Bearer hush" {
			t.Errorf("%s %v: %s", r.Method, r.Header, body)
		}
		answer(w, q)
	}))
	t.Cleanup(srv.Close)
	return srv, &calls
}

func hookConfig(t *testing.T, url string, methods ...string) Config {
	c := quick(methods...)
	c.HTTP.URL, c.HTTP.Timeout = url, unit.Duration(2*time.Second)
	c.HTTP.TokenFile = writeFile(t, "token", "hush\n")
	return c
}

func TestHookDecides(t *testing.T) {
	clk := newClock()
	srv, calls := newHookServer(t, func(w http.ResponseWriter, q map[string]any) {
		if q["listener"] != "tcp" || q["address"] != "192.0.2.1" {
			t.Errorf("%v", q)
		}
		switch q["user_name"] {
		case "ann":
			if q["password"] != "secret" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			_, _ = io.WriteString(w, `{"result":"allow","user":"Ann","groups":["ops"],"claims":{"site":["n","s"]},"publish":["a/#"],`+
				`"expires_at":1796126400,"later":1}`)
		case "bytes":
			if q["password_base64"] == "/w==" {
				_, _ = io.WriteString(w, `{"result":"allow"}`)
			}
		case "next":
			_, _ = io.WriteString(w, `{"result":"next"}`)
		default:
			_, _ = io.WriteString(w, `{"result":"deny"}`)
		}
	})
	c := hookConfig(t, srv.URL, "http", "password")
	c.Password.File = writeFile(t, "users", userLine("next", "pw", "")+userLine("eve", "pw", ""))
	a := open(t, c, clk.now)
	id, err := a.Authenticate(t.Context(), request("c", "ann", "secret"))
	if err != nil || id.User != "Ann" || id.Groups[0] != "ops" || len(id.Claims["site"]) != 2 || id.Grants.Publish[0] != "a/#" ||
		id.ExpiresAt.Unix() != 1796126400 || id.Method != MethodHTTP {
		t.Fatalf("%+v, %v", id, err)
	}
	f := func(user, password string, want error, asked int64) {
		t.Helper()
		before := calls.Load()
		if _, err := a.Authenticate(t.Context(), request("c", user, password)); !errors.Is(err, want) || calls.Load()-before != asked {
			t.Errorf("%s/%s: %v, want %v; asked %d", user, password, err, want, calls.Load()-before)
		}
	}
	f("ann", "secret", nil, 0) // remembered
	f("ann", "wrong", ErrBadCredentials, 1)
	f("ann", "wrong", ErrBadCredentials, 0)
	clk.add(hookDenyMemory)
	f("ann", "wrong", ErrBadCredentials, 1) // a refusal not for as long
	f("ann", "secret", nil, 0)
	clk.add(c.HTTP.CacheTTL.Std())
	f("ann", "secret", nil, 1)
	f("bytes", "\xff", nil, 1)
	f("next", "pw", nil, 1)
	f("next", "no", ErrBadCredentials, 1)
	f("eve", "pw", ErrBadCredentials, 1) // deny is final
}

func TestHookDown(t *testing.T) {
	var mode atomic.Value
	mode.Store("ok")
	stop := make(chan struct{})
	defer close(stop)
	srv, _ := newHookServer(t, func(w http.ResponseWriter, _ map[string]any) {
		switch mode.Load() {
		case "ok":
			_, _ = io.WriteString(w, `{"result":"allow"}`)
		case "slow":
			<-stop
		case "500":
			w.WriteHeader(500)
		case "404":
			w.WriteHeader(404)
		case "redirect":
			w.Header().Set("Location", "/")
			w.WriteHeader(302)
		case "html":
			_, _ = io.WriteString(w, "<html>allow</html>")
		case "empty":
		case "odd":
			_, _ = io.WriteString(w, `{"result":"yes"}`)
		case "filter":
			_, _ = io.WriteString(w, `{"result":"allow","publish":["a#"]}`)
		case "long":
			_, _ = io.WriteString(w, `{"result":"allow","user":"`+strings.Repeat("x", maxHookReply)+`"}`)
		case "cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"result":"allow"}`)
		}
	})
	ways := []string{"slow", "500", "404", "redirect", "html", "empty", "odd", "filter", "long", "cut"}
	for _, when := range []string{WhenDownDeny, WhenDownCached, WhenDownNext} {
		clk := newClock()
		c := hookConfig(t, srv.URL, "http", "password")
		c.HTTP.WhenDown, c.HTTP.Timeout = when, unit.Duration(50*time.Millisecond)
		c.Password.File = writeFile(t, "users", userLine("known", "pw", ""))
		a := open(t, c, clk.now)
		mode.Store("ok")
		for range 100 { // a busy machine may miss the timeout
			if _, err := a.Authenticate(t.Context(), request("c", "seen", "x")); err == nil {
				break
			}
		}
		clk.add(c.HTTP.CacheTTL.Std())
		for _, way := range ways {
			mode.Store(way)
			f := func(user string, want error) {
				t.Helper()
				password := "x"
				if user == "known" {
					password = "pw"
				}
				if _, err := a.Authenticate(t.Context(), request("c", user, password)); !errors.Is(err, want) {
					t.Errorf("when_down %s, %s: %s: %v, want %v", when, way, user, err, want)
				}
			}
			switch when {
			case WhenDownDeny:
				f("seen", ErrUnavailable)
				f("known", ErrUnavailable)
			case WhenDownCached:
				f("seen", nil)
				f("new", ErrUnavailable)
			case WhenDownNext:
				f("known", nil)
				f("new", ErrBadCredentials)
			}
		}
		if when == WhenDownCached {
			clk.add(c.HTTP.CachedFor.Std())
			if _, err := a.Authenticate(t.Context(), request("c", "seen", "x")); !errors.Is(err, ErrUnavailable) {
				t.Errorf("after cached_for: %v", err)
			}
		}
	}
}

func TestHookCacheIsBounded(t *testing.T) {
	srv, calls := newHookServer(t, func(w http.ResponseWriter, _ map[string]any) { _, _ = io.WriteString(w, `{"result":"allow"}`) })
	c := hookConfig(t, srv.URL, "http")
	c.HTTP.CacheSize = 3
	a := open(t, c, nil)
	for _, user := range []string{"a", "b", "c", "d", "e", "e", "d"} {
		if _, err := a.Authenticate(t.Context(), request("c", user, "x")); err != nil {
			t.Fatal(err)
		}
	}
	var h *hook
	for _, m := range a.chains["tcp"] {
		h = m.(*hook)
	}
	if h.cache.len() != 3 || calls.Load() != 5 {
		t.Errorf("%d cached, asked %d times", h.cache.len(), calls.Load())
	}
}

// Only one whole answer is an answer.
func TestHookAnswersAreExact(t *testing.T) {
	f := func(text string, ok bool) {
		t.Helper()
		if _, err := parseAnswer([]byte(text)); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	f(`{"result":"allow"}`, true)
	f(" {\"result\":\"allow\"}\r\n", true)
	f(`{"result":"allow"}{"result":"deny"}`, false)
	f(`{"result":"allow"} <html>`, false)
	f(`{"result":"allow"}]`, false)
	f(`{"result":"allow"`, false)
	f(`{"result":"ALLOW"}`, false)
	f(`{"result":true}`, false)
	f(`["allow"]`, false)
	f(`null`, false)
	f(`"allow"`, false)
	f(``, false)
	f(`{"result":"allow","user":"a\u0000b"}`, false)
	f(`{"result":"allow","expires_at":-1}`, false)
	f(`{"result":"allow","publish":["$share/a/b"]}`, false)
	f(`{"result":"allow","publish":["a+"]}`, false)
}

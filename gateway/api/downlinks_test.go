package api

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/forebay-gateway/forebay/bridge/downlink"
	"github.com/forebay-gateway/forebay/mqtt"
)

// Whoever asks is told what is missing: the token, the part, the downlink.
func TestDownlinksSayWhyTheyDoNotAnswer(t *testing.T) {
	var engine atomic.Pointer[downlink.Engine]
	s := httptest.NewServer(New(Options{Token: token, Downlinks: engine.Load}))
	t.Cleanup(s.Close)
	c := &Client{Address: strings.TrimPrefix(s.URL, "http://"), Token: token, HTTP: s.Client()}
	f := func(method, path, token string, want int) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+"/api/v1/downlinks"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		r, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%s %s: %s, want %d", method, path, r.Status, want)
		}
	}
	for _, path := range []string{"", "/down"} {
		f(http.MethodGet, path, "wrong", http.StatusUnauthorized)
		f(http.MethodGet, path, token, http.StatusServiceUnavailable)
	}
	for _, path := range []string{"/down/pause", "/down/resume"} {
		f(http.MethodPost, path, "wrong", http.StatusUnauthorized)
		f(http.MethodPost, path, token, http.StatusServiceUnavailable)
		f(http.MethodGet, path, token, http.StatusMethodNotAllowed)
	}
	ctx := t.Context()
	asks := map[string]func() error{
		"ls":     func() error { _, err := c.Downlinks(ctx); return err },
		"show":   func() error { _, err := c.Downlink(ctx, "a/b"); return err },
		"pause":  func() error { _, err := c.PauseDownlink(ctx, "a/b"); return err },
		"resume": func() error { _, err := c.ResumeDownlink(ctx, "a/b"); return err },
	}
	refused := func(want string) {
		t.Helper()
		for name, ask := range asks {
			err := ask()
			if _, ok := errors.AsType[*Refusal](err); !ok || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want a refusal with %q", name, err, want)
			}
		}
	}
	refused("the downlinks have not started: see /readyz")

	e, err := downlink.New(nil, downlink.Options{Log: noLog{}})
	if err != nil {
		t.Fatal(err)
	}
	engine.Store(e)
	delete(asks, "ls")
	refused(`"a/b": no such downlink`)
	if l, err := c.Downlinks(ctx); err != nil || l.Downlinks == nil || len(l.Downlinks) > 0 {
		t.Errorf("%+v, %v, want an empty list", l, err)
	}
}

// A reload that meets downlinks which have not begun, or have ended with the gateway, is for another moment: nothing is broken.
func TestReloadOfAGatewayThatStartsOrStopsIsForLater(t *testing.T) {
	reload := func(context.Context) (Reloaded, error) { return Reloaded{}, downlink.ErrClosed }
	h := New(Options{Token: token, Front: func() *mqtt.Server { return new(mqtt.Server) }, Reload: reload})
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/reload", nil)
	req.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, req); w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %s, want 503", w.Code, w.Body)
	}
}

// noLog is a log that has nothing.
type noLog struct{ downlink.Log }

func (noLog) Load(string, func(string, []byte) error) error { return nil }

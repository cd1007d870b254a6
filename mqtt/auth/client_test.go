package auth

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

// The token and the CA of the hook are read again; a bad file keeps the old content and says so.
func TestHookTokenAndCAAreReadAgain(t *testing.T) {
	first, second := mqtttest.NewCA(t, "first"), mqtttest.NewCA(t, "second")
	var cert atomic.Pointer[tls.Certificate]
	var token atomic.Pointer[string]
	set := func(c tls.Certificate, s string) { s = "Bearer " + s; cert.Store(&c); token.Store(&s) }
	set(first.Issue("localhost"), "one")
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != *token.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, `{"result":"allow"}`)
	}))
	srv.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert.Load(), nil }}
	srv.StartTLS()
	defer srv.Close()

	c := quick("http")
	c.HTTP.URL, c.HTTP.CacheTTL, c.HTTP.CachedFor = strings.Replace(srv.URL, "127.0.0.1", "localhost", 1), 0, 0
	c.HTTP.TokenFile = writeFile(t, "token", "one\n")
	c.HTTP.CAFile = writeFile(t, "ca", string(first.PEM()))
	a := open(t, c, nil)
	works := func(step string, want error) {
		t.Helper()
		if _, err := a.Authenticate(t.Context(), request("c", "ann", "pw")); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", step, err, want)
		}
	}
	works("at the start", nil)

	set(second.Issue("localhost"), "two")
	srv.CloseClientConnections()
	works("before the CA is read", ErrUnavailable)
	writeFile(t, c.HTTP.CAFile, string(second.PEM()))
	if err := a.Reload(); err != nil {
		t.Fatal(err)
	}
	works("before the token is read", ErrUnavailable)
	writeFile(t, c.HTTP.TokenFile, "two")
	if err := a.Reload(); err != nil {
		t.Fatal(err)
	}
	works("afterwards", nil)

	for name, text := range map[string]string{c.HTTP.CAFile: "no PEM", c.HTTP.TokenFile: "two\r\nX-Evil: 1"} {
		old, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, name, text)
		if err := a.Reload(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", text, err)
		}
		works("with a bad file", nil)
		writeFile(t, name, string(old))
	}
	if err := a.Reload(); err != nil {
		t.Error(err)
	}
}

func TestTokenFilesHoldOneToken(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		got, err := parseBearer("f", []byte(text))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	f("hush\n", "hush")
	f(" a.b-c_d~+/= \r\n", "a.b-c_d~+/=")
	f("", "")
	f("\n", "")
	f("a b", "")
	f("a\x00", "")
	f("pässword", "")
}

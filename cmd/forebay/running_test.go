package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/bridge/replay"
	"github.com/forebay-gateway/forebay/gateway/api"
	"github.com/forebay-gateway/forebay/gateway/config"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

func TestWhoDoesNotAnswerAsAGatewayMayBeAtTheWrongAddress(t *testing.T) {
	f := func(status int, body, want string, hint bool) {
		t.Helper()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		defer srv.Close()
		c := &api.Client{Address: strings.TrimPrefix(srv.URL, "http://")}
		_, err := c.StartReplay(t.Context(), replay.Request{})
		if err == nil {
			t.Fatalf("%d %s: no error", status, body)
		}
		text := strings.ReplaceAll(hinted(c, err).Error(), c.Address, "ADDRESS")
		first, rest, _ := strings.Cut(text, "\n")
		if first != want || strings.Contains(rest, "--admin") != hint {
			t.Errorf("%d %s: got %q, want %q and a hint: %t", status, body, text, want, hint)
		}
	}
	f(400, `{"error":"replay: from \"soon\": want a time: invalid"}`, `gateway at ADDRESS: replay: from "soon": want a time`, false)
	f(404, `{"error":"\"x\": no such route"}`, `gateway at ADDRESS: "x": no such route`, false)
	f(401, `{"error":"want the token"}`, "gateway at ADDRESS: the gateway refuses the token: want the token", true)
	f(404, "<html>no page</html>", "gateway at ADDRESS: 404 Not Found", true)
	f(502, "", "gateway at ADDRESS: 502 Bad Gateway", true)
}

func TestAGatewayOfAnotherMachineIsAskedWithoutAConfiguration(t *testing.T) {
	if _, err := os.Stat(config.DefaultFile); err == nil {
		t.Skip("this machine has a configuration")
	}
	t.Setenv(config.EnvFile, "")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, `{"replays":[{"id":"asked with %s"}]}`, r.Header.Get("Authorization"))
	}))
	defer srv.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(strings.Repeat("5", 64)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(wantCode int, want string, args ...string) {
		t.Helper()
		code, stdout, stderr := forebay(append([]string{"replay", "ls"}, args...)...)
		if code != wantCode || !strings.Contains(stdout+stderr, want) {
			t.Errorf("%s: exit code %d, want %d and %q\n%s%s", strings.Join(args, " "), code, wantCode, want, stdout, stderr)
		}
	}
	addr := strings.TrimPrefix(srv.URL, "http://")
	f(exitOK, "asked with Bearer 5555", "--admin", addr, "--token-file", token)
	f(exitOK, "asked with Bearer", "--admin", addr, "--admin-cert", "op.crt", "--admin-key", "op.key") // not shown: no TLS
	f(exitFailed, config.DefaultFile, "--admin", addr)
	f(exitFailed, token+".missing", "--admin", addr, "--token-file", token+".missing")
	f(exitFailed, "forebay.yaml: no such file", "--admin", addr, "--token-file", token, "--config", filepath.Join(t.TempDir(), "forebay.yaml"))
}

// Who cannot agree on TLS is told what to do about that, and nothing about tokens.
func TestTLSFaultsOfTheAdminListenerHaveTheirOwnHint(t *testing.T) {
	dir := t.TempDir()
	ca := mqtttest.NewCA(t, "ca")
	roots := filepath.Join(dir, "ca.crt")
	mqtttest.WriteFile(t, roots, ca.PEM())
	f := func(trust api.Trust, auth tls.ClientAuthType, want string) {
		t.Helper()
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue("gateway")}, ClientAuth: auth}
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		defer s.Close()
		h, err := trust.HTTP()
		if err != nil {
			t.Fatal(err)
		}
		defer h.CloseIdleConnections()
		_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "https://"), ":")
		c := &api.Client{Address: "localhost:" + port, HTTP: h, TLS: true}
		_, err = c.Replays(t.Context())
		if err == nil {
			t.Fatalf("%s: no error", want)
		}
		if text := hinted(c, err).Error(); !strings.Contains(text, want) || strings.Contains(text, "--token-file") {
			t.Errorf("got %q, want %q and nothing about tokens", text, want)
		}
	}
	f(api.Trust{}, tls.NoClientCert, "--admin-ca")
	f(api.Trust{CAFile: roots}, tls.RequireAnyClientCert, "--admin-cert")

	name := &tls.CertificateVerificationError{Err: x509.HostnameError{Certificate: new(x509.Certificate), Host: "gw"}}
	if text := hinted(new(api.Client), name).Error(); !strings.Contains(text, "under a name or address") {
		t.Errorf("got %q", text)
	}
}

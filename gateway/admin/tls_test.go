package admin

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/mqtt/transport"
)

// secured is an admin listener with TLS until the test ends.
type secured struct {
	*Server
	ca   *mqtttest.CA
	cert string
	key  string
	dir  string
}

func secure(t *testing.T, clientCert string) *secured {
	t.Helper()
	dir := t.TempDir()
	s := &secured{ca: mqtttest.NewCA(t, "operators"), dir: dir}
	s.cert, s.key = mqtttest.WritePair(t, dir, "admin", s.ca.Issue("localhost"))
	ca := filepath.Join(dir, "ca.crt")
	mqtttest.WriteFile(t, ca, s.ca.PEM())
	cfg := Config{
		Address: "127.0.0.1:0", RequireAuth: true,
		TLS: transport.TLSConfig{CertFile: s.cert, KeyFile: s.key, ClientCAFile: ca, ClientCert: clientCert},
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	s.Server = New(cfg, Options{
		Token:  "the token",
		Health: func() Health { return Health{Status: "degraded", Ready: true, Parts: []Part{{Name: "secret"}}} },
	})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run() }()
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// get asks with a token and client certificates, either of which may be none.
func (s *secured) get(t *testing.T, path, token string, certs ...tls.Certificate) (status int, body string, err error) {
	t.Helper()
	cfg := &tls.Config{RootCAs: s.ca.Pool()}
	if len(certs) > 0 { // shown whoever the listener asks for
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certs[0], nil }
	}
	tr := &http.Transport{TLSClientConfig: cfg}
	defer tr.CloseIdleConnections()
	r, err := http.NewRequest(http.MethodGet, "https://"+s.Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := tr.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(b), nil
}

func TestTokenOrCertificateIsAskedFor(t *testing.T) {
	s := secure(t, transport.ClientCertOptional)
	own := s.ca.Issue("ops")
	f := func(path, token string, want int, certs ...tls.Certificate) string {
		t.Helper()
		status, body, err := s.get(t, path, token, certs...)
		if err != nil || status != want {
			t.Errorf("%s with token %q and %d certificates: %d, %v; want %d", path, token, len(certs), status, err, want)
		}
		return body
	}
	f("/metrics", "", 401)
	f("/metrics", "a token", 401)
	f("/metrics", "the token", 200)
	f("/metrics", "", 200, own)

	tells := func(body string) bool {
		var h Health
		if err := json.Unmarshal([]byte(body), &h); err != nil || h.Status != "degraded" || !h.Ready {
			t.Errorf("%v in %s", err, body)
		}
		return len(h.Parts) > 0
	}
	if tells(f("/healthz", "", 200)) || tells(f("/readyz", "", 200)) {
		t.Error("a stranger is told of the parts")
	}
	if !tells(f("/healthz", "the token", 200)) || !tells(f("/readyz", "", 200, own)) {
		t.Error("the operator is not")
	}

	if _, _, err := s.get(t, "/metrics", "the token", mqtttest.NewCA(t, "others").Issue("ops")); err == nil {
		t.Error("a certificate of somebody else's CA passed")
	}
	if answer, err := http.Get("http://" + s.Addr().String() + "/healthz"); err == nil {
		answer.Body.Close()
		if answer.StatusCode == http.StatusOK {
			t.Error("answered without TLS")
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestCertificateIsRequired(t *testing.T) {
	s := secure(t, "")
	if _, _, err := s.get(t, "/healthz", "the token"); err == nil {
		t.Error("answered without a client certificate")
	}
	if status, _, err := s.get(t, "/metrics", "", s.ca.Issue("ops")); err != nil || status != 200 {
		t.Errorf("%d, %v", status, err)
	}
}

func TestBadCertificateStaysOutAndIsTold(t *testing.T) {
	s := secure(t, transport.ClientCertOptional)
	mqtttest.WriteFile(t, s.cert, []byte("no certificate"))
	if _, err := s.tls.Reload(); err == nil {
		t.Error("taken")
	}
	if err := s.Health(); err == nil || !strings.Contains(err.Error(), s.cert) || !strings.Contains(err.Error(), "since") {
		t.Errorf("health: %v", err)
	}
	if status, _, err := s.get(t, "/metrics", "the token"); err != nil || status != 200 {
		t.Errorf("the old one is not in force: %d, %v", status, err)
	}
	mqtttest.WritePair(t, s.dir, "admin", s.ca.Issue("localhost"))
	if _, err := s.tls.Reload(); err != nil || s.Health() != nil {
		t.Errorf("mended: %v, %v", err, s.Health())
	}
}

func TestFaultsOfTLSNameTheirKey(t *testing.T) {
	err := Config{Address: "127.0.0.1:0", TLS: transport.TLSConfig{CertFile: "/nowhere/crt"}}.Validate()
	if err == nil || !strings.Contains(err.Error(), "tls.key_file: is missing") {
		t.Error(err)
	}
}

package api

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
)

func TestToolsTrustTheVeryCertificate(t *testing.T) {
	dir := t.TempDir()
	ca := mqtttest.NewCA(t, "ca")
	cert := ca.Issue("gateway")
	crt, _ := mqtttest.WritePair(t, dir, "listener", cert)
	other, _ := mqtttest.WritePair(t, dir, "other", ca.Issue("gateway"))
	mine, key := mqtttest.WritePair(t, dir, "tool", ca.Issue("tool"))
	roots := filepath.Join(dir, "ca.crt")
	mqtttest.WriteFile(t, roots, ca.PEM())

	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 {
			w.Header().Set("Shown", r.TLS.PeerCertificates[0].Subject.CommonName)
		}
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	s.StartTLS()
	defer s.Close()

	f := func(trust Trust, want, shown string) {
		t.Helper()
		c, err := trust.HTTP()
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseIdleConnections()
		r, err := c.Get(s.URL)
		if err != nil {
			if want == "" || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %q", trust, err, want)
			}
			return
		}
		r.Body.Close()
		if want != "" || r.Header.Get("Shown") != shown {
			t.Errorf("%+v: reached, shows %q; want %q", trust, r.Header.Get("Shown"), want)
		}
	}
	f(Trust{Pinned: crt}, "", "")
	f(Trust{Pinned: crt, CertFile: mine, KeyFile: key}, "", "tool")
	f(Trust{Pinned: other}, "another certificate", "")
	f(Trust{CAFile: roots}, "", "")
	f(Trust{}, "unknown authority", "")
	if _, err := (Trust{CAFile: key}).HTTP(); err == nil {
		t.Error("a key as CA")
	}
}

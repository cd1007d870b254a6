package auth

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"
)

func newCert(t *testing.T, cn string, dns []string, uris []string, emails []string) *x509.Certificate {
	t.Helper()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cn}, DNSNames: dns, EmailAddresses: emails,
		NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
	}
	for _, s := range uris {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		tmpl.URIs = append(tmpl.URIs, u)
	}
	k := newTestKeys().ec
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCertificateGivesTheUser(t *testing.T) {
	cert := newCert(t, "pump-7", []string{"a.plant.example", "b.plant.example"}, []string{"spiffe://plant/pump/7"}, []string{"p@plant.example"})
	print := NewCertificateInfo(cert).Fingerprint
	colons := strings.ToUpper(print[:2]) + ":" + print[2:]
	f := func(from string, only bool, users []CertificateUser, c *x509.Certificate, want string) {
		t.Helper()
		cfg := quick("certificate")
		cfg.Certificate = CertificateConfig{Identity: from, Users: users, OnlyListed: only}
		a := open(t, cfg, nil)
		r := request("c", "ignored", "")
		r.Certificate = c
		id, err := a.Authenticate(t.Context(), r)
		if want == "" {
			if !errors.Is(err, ErrBadCredentials) {
				t.Errorf("%s: %+v, %v", from, id, err)
			}
			return
		}
		if err != nil || id.User != want || id.Certificate.Fingerprint != print {
			t.Errorf("%s: %+v, %v, want %s", from, id, err, want)
		}
	}
	f(FromCommonName, false, nil, cert, "pump-7")
	f(FromURI, false, nil, cert, "spiffe://plant/pump/7")
	f(FromEmail, false, nil, cert, "p@plant.example")
	f(FromFingerprint, false, nil, cert, print)
	f(FromDNS, false, nil, cert, "") // two names: which one is a matter of chance
	f(FromDNS, false, []CertificateUser{{Match: "x*", User: "x"}, {Match: "b.*", User: "b"}}, cert, "b")
	f(FromFingerprint, true, []CertificateUser{{Match: colons, User: "pinned", Groups: []string{"g"}}}, cert, "pinned")
	f(FromCommonName, true, []CertificateUser{{Match: "valve-*", User: "v"}}, cert, "")
	f(FromCommonName, false, nil, nil, "") // no certificate
	f(FromCommonName, false, nil, newCert(t, "", nil, nil, nil), "")
	f(FromCommonName, false, nil, newCert(t, "a:b\x01", nil, nil, nil), "")
}

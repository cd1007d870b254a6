package clients

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority issues certificates.
type authority struct {
	t    *testing.T
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string // its certificate
	next int64
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: dir, key: newKey(t), next: 1}
	a.cert = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}, nil, a.key)
	a.file = a.write(name+".ca", "CERTIFICATE", a.cert.Raw)
	return a
}

// sign signs a certificate for key; parent nil is a root.
func (a *authority) sign(c, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	a.next++
	c.SerialNumber = big.NewInt(a.next)
	if c.NotBefore.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return out
}

// write puts a PEM file into place at once: the gateway may be reading it.
func (a *authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	file := filepath.Join(a.dir, name)
	writeFile(a.t, file, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
	return file
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// pair is a certificate with its key, in files.
type pair struct {
	cert      *x509.Certificate
	crt, keyf string
}

// issue makes name.crt and name.key.
func (a *authority) issue(name string, change ...func(*x509.Certificate)) pair {
	a.t.Helper()
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, f := range change {
		f(c)
	}
	key := newKey(a.t)
	cert := a.sign(c, a.cert, key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return pair{cert, a.write(name+".crt", "CERTIFICATE", cert.Raw), a.write(name+".key", "PRIVATE KEY", der)}
}

// revoke writes the revocation list name.crl.
func (a *authority) revoke(name string, gone ...pair) string {
	a.t.Helper()
	a.next++
	list := &x509.RevocationList{Number: big.NewInt(a.next), ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(time.Hour)}
	for _, p := range gone {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: p.cert.SerialNumber, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(name+".crl", "X509 CRL", der)
}

// jwks is a file with the public key of tokens.
func jwks(t *testing.T, file string, key *ecdsa.PrivateKey) {
	t.Helper()
	pub, err := key.PublicKey.Bytes() // 4, x, y
	if err != nil {
		t.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString
	doc, err := json.Marshal(map[string]any{"keys": []any{map[string]any{
		"kty": "EC", "crv": "P-256", "kid": "k", "use": "sig", "alg": "ES256", "x": text(pub[1:33]), "y": text(pub[33:]),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, string(doc))
}

// token signs claims with ES256.
func token(t *testing.T, key *ecdsa.PrivateKey, claims map[string]any) string {
	t.Helper()
	text := base64.RawURLEncoding.EncodeToString
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed := text([]byte(`{"alg":"ES256","kid":"k"}`)) + "." + text(body)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	var sig [64]byte
	r.FillBytes(sig[:32])
	s.FillBytes(sig[32:])
	return signed + "." + text(sig[:])
}

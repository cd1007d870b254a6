package kafkatest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a certificate authority for brokers and clients of a test.
type Authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes one whose files live as long as the test.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	a.key = a.newKey()
	template := a.template("Forebay test CA", time.Now().Add(24*time.Hour))
	template.IsCA, template.KeyUsage, template.BasicConstraintsValid = true, x509.KeyUsageCertSign, true
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// CA is the authority's certificate in PEM.
func (a *Authority) CA() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// CAFile is the path of a file with it.
func (a *Authority) CAFile() string { return a.write("ca.pem", a.CA()) }

// Issue signs a certificate for 127.0.0.1 and returns it and its key in PEM.
func (a *Authority) Issue(name string, notAfter time.Time) (cert, key []byte) {
	a.t.Helper()
	k := a.newKey()
	template := a.template(name, notAfter)
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// Server makes a certificate for the brokers, and the one file with key and chain that they read.
func (a *Authority) Server(notAfter time.Time) (file string) {
	a.t.Helper()
	cert, key := a.Issue("127.0.0.1", notAfter)
	return a.write("server.pem", bytes.Join([][]byte{key, cert, a.CA()}, nil))
}

func (a *Authority) template(name string, notAfter time.Time) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		a.t.Fatal(err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: notAfter,
	}
}

func (a *Authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

func (a *Authority) write(name string, data []byte) string {
	file := filepath.Join(a.dir, name)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return file
}

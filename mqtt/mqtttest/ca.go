package mqtttest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
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

// CA issues certificates for tests.
type CA struct {
	Cert *x509.Certificate

	t      testing.TB
	key    *ecdsa.PrivateKey
	serial int64
}

// NewCA makes a CA with a key of its own.
func NewCA(t testing.TB, name string) *CA {
	t.Helper()
	ca := &CA{t: t, key: newKey(t), serial: 1}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &ca.key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	if ca.Cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return ca
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Issue makes a certificate for both ends of a connection to 127.0.0.1 or localhost. change may change it first.
func (ca *CA) Issue(commonName string, change ...func(*x509.Certificate)) tls.Certificate {
	ca.t.Helper()
	ca.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(ca.serial), Subject: pkix.Name{CommonName: commonName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	for _, f := range change {
		f(template)
	}
	key := newKey(ca.t)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Cert, &key.PublicKey, ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		ca.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// Pool trusts this CA.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return pool
}

// PEM is the certificate of the CA as its file.
func (ca *CA) PEM() []byte { return encode("CERTIFICATE", ca.Cert.Raw) }

// Intermediate makes a CA below this one.
func (ca *CA) Intermediate(name string) *CA {
	ca.t.Helper()
	cert := ca.Issue(name, func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	})
	return &CA{Cert: cert.Leaf, t: ca.t, key: cert.PrivateKey.(*ecdsa.PrivateKey), serial: 1}
}

// Revoke returns a revocation list that names certs, as its file. It is good for d.
func (ca *CA) Revoke(d time.Duration, certs ...tls.Certificate) []byte {
	ca.t.Helper()
	return ca.List(func(list *x509.RevocationList) {
		list.NextUpdate = time.Now().Add(d)
		for _, c := range certs {
			list.RevokedCertificateEntries = append(list.RevokedCertificateEntries,
				x509.RevocationListEntry{SerialNumber: c.Leaf.SerialNumber, RevocationTime: time.Now().Add(-time.Minute)})
		}
	})
}

// List returns a revocation list that is empty but for what change does, as its file.
func (ca *CA) List(change func(*x509.RevocationList)) []byte {
	ca.t.Helper()
	ca.serial++
	list := &x509.RevocationList{Number: big.NewInt(ca.serial), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
	change(list)
	der, err := x509.CreateRevocationList(rand.Reader, list, ca.Cert, ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	return encode("X509 CRL", der)
}

// WritePair writes a certificate and its key to name.crt and name.key in dir.
func WritePair(t testing.TB, dir, name string, cert tls.Certificate) (certFile, keyFile string) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	var chain []byte
	for _, c := range cert.Certificate {
		chain = append(chain, encode("CERTIFICATE", c)...)
	}
	WriteFile(t, certFile, chain)
	WriteFile(t, keyFile, encode("PRIVATE KEY", der))
	return certFile, keyFile
}

// WriteFile puts a whole file in the place of an old one, as a tool that renews certificates does.
func WriteFile(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

package transport

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
)

const maxFile = 64 << 20 // a revocation list with a million entries is about 40 MiB

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s: has more than %d bytes", name, maxFile)
	}
	return data, err
}

// pair is the certificate that a listener shows, with its key.
type pair struct {
	cert   tls.Certificate
	public bool // everybody on this machine can read the key
}

func loadPair(c TLSConfig) (*pair, error) {
	cert, err := readFile(c.CertFile)
	if err != nil {
		return nil, fmt.Errorf("cert_file: %w", err)
	}
	key, err := readFile(c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("key_file: %w", err)
	}
	return parsePair(c, cert, key)
}

func parsePair(c TLSConfig, cert, key []byte) (*pair, error) {
	if bytes.Contains(key, []byte("ENCRYPTED")) {
		return nil, fmt.Errorf("key_file: %s: the key is encrypted; want one without a passphrase", c.KeyFile)
	}
	made, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("cert_file: %s with key %s: %w", c.CertFile, c.KeyFile, err)
	}
	p := &pair{cert: made}
	if info, err := os.Stat(c.KeyFile); err == nil {
		p.public = info.Mode().Perm()&0o004 != 0
	}
	return p, nil
}

// trust is what client certificates are verified with.
type trust struct {
	pool *x509.CertPool
	crls *revocations // nil without a list
}

func loadTrust(c TLSConfig) (*trust, error) {
	ca, err := readFile(c.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("client_ca_file: %w", err)
	}
	var crl []byte
	if c.CRLFile != "" {
		if crl, err = readFile(c.CRLFile); err != nil {
			return nil, fmt.Errorf("crl_file: %w", err)
		}
	}
	return parseTrust(c, ca, crl)
}

func parseTrust(c TLSConfig, ca, crl []byte) (*trust, error) {
	cas, err := parseCAs(ca)
	if err != nil {
		return nil, fmt.Errorf("client_ca_file: %s: %w", c.ClientCAFile, err)
	}
	t := &trust{pool: x509.NewCertPool()}
	for _, cert := range cas {
		t.pool.AddCert(cert)
	}
	if c.CRLFile != "" {
		if t.crls, err = parseRevocations(crl, cas); err != nil {
			return nil, fmt.Errorf("crl_file: %s: %w", c.CRLFile, err)
		}
	}
	return t, nil
}

// parseCAs wants every certificate in the file to be one of a CA: a pool made of what can be parsed would silently trust
// fewer than the operator believes.
func parseCAs(data []byte) ([]*x509.Certificate, error) {
	var list []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a %s; want certificates only", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(list)+1, err)
		}
		if !cert.IsCA {
			return nil, fmt.Errorf("certificate %d (%s) is not one of a CA", len(list)+1, cert.Subject)
		}
		list = append(list, cert)
	}
	if len(list) == 0 {
		return nil, errors.New("holds no certificate (PEM)")
	}
	return list, nil
}

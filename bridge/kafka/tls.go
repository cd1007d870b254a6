package kafka

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

const (
	handshakeTimeout = 10 * time.Second
	lookEvery        = 10 * time.Second // at the files, without a new connection
)

// tlsFiles are the CAs and the certificate of an upstream. They are replaced as a whole, and only by what has no fault: while a
// certificate is there and its key is not yet, the old pair stays in force.
type tlsFiles struct {
	cfg TLSConfig
	log *slog.Logger

	mu    sync.Mutex
	sum   [sha256.Size]byte // of what was read last
	inUse *tls.Config       // nil while nothing could be used yet
	fault error             // why what was read last is not in use
}

// look reads the files and takes them when they have changed.
func (t *tlsFiles) look() (*tls.Config, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ca, cert, key, sum, err := t.read()
	if sum == t.sum {
		return t.inUse, t.fault
	}
	t.sum = sum
	var made *tls.Config
	if err == nil {
		made, err = makeTLS(t.cfg, ca, cert, key)
	}
	t.fault = err
	switch {
	case err == nil && t.inUse != nil:
		t.log.Info("tls files have changed; new connections go by them")
	case err != nil && t.inUse != nil:
		t.log.Error("changed tls files are not used, the old ones stay in force", "err", err)
	}
	if err == nil {
		t.inUse = made
	}
	return t.inUse, t.fault
}

func (t *tlsFiles) read() (ca, cert, key []byte, sum [sha256.Size]byte, err error) {
	h := sha256.New()
	read := func(name, file string) []byte {
		if file == "" {
			return nil
		}
		data, e := os.ReadFile(file)
		if e != nil {
			fmt.Fprintln(h, e)
			err = errors.Join(err, fmt.Errorf("tls.%s: %w", name, e))
		}
		fmt.Fprintln(h, name, len(data))
		h.Write(data)
		return data
	}
	ca, cert, key = read("ca_file", t.cfg.CAFile), read("cert_file", t.cfg.CertFile), read("key_file", t.cfg.KeyFile)
	return ca, cert, key, [sha256.Size]byte(h.Sum([]byte{})), err
}

func makeTLS(c TLSConfig, ca, cert, key []byte) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pool, err := parseCAs(ca)
		if err != nil {
			return nil, fmt.Errorf("tls.ca_file: %s: %w", c.CAFile, err)
		}
		out.RootCAs = pool
	}
	if c.CertFile != "" {
		if bytes.Contains(key, []byte("ENCRYPTED")) {
			return nil, fmt.Errorf("tls.key_file: %s: the key is encrypted; want one without a passphrase", c.KeyFile)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("tls.cert_file: %s with key %s: %w", c.CertFile, c.KeyFile, err)
		}
		// Also to brokers whose list of CAs does not name its issuer: they say why they refuse it, where without a certificate
		// they would only say that one is missing.
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return out, nil
}

// parseCAs wants every block of the file to be a certificate: a pool of what can be parsed would silently trust fewer CAs than the
// operator believes.
func parseCAs(data []byte) (*x509.CertPool, error) {
	pool, n := x509.NewCertPool(), 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a %s; want certificates only", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", n+1, err)
		}
		pool.AddCert(cert)
		n++
	}
	if n == 0 {
		return nil, errors.New("holds no certificate (PEM)")
	}
	return pool, nil
}

// dialer connects with TLS.
func (t *tlsFiles) dialer(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		cfg, err := t.look()
		if cfg == nil {
			return nil, &secretError{err}
		}
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if cfg.ServerName == "" {
			cfg = cfg.Clone()
			if cfg.ServerName, _, err = net.SplitHostPort(addr); err != nil {
				conn.Close()
				return nil, err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		secure := tls.Client(conn, cfg)
		if err := secure.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, err
		}
		return secure, nil
	}
}

// watch looks at the files now and then: a fault is better told when somebody has just changed them than at the next connection.
func (t *tlsFiles) watch(ctx context.Context) {
	for sleep(ctx, lookEvery) {
		_, _ = t.look() // it logs what is new
	}
}

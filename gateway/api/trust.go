package api

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
)

// Trust is how a tool and an admin listener with TLS know each other.
type Trust struct {
	Pinned   string // file with the certificate of the listener: that one and no other
	CAFile   string // or CAs that have signed it, for its name
	CertFile string // certificate of the tool, when the listener asks for one
	KeyFile  string
}

var errNotPinned = errors.New("the listener shows another certificate than that of admin.tls.cert_file: has it not been read again yet, or is this another gateway?")

// HTTP is a client that trusts so.
func (t Trust) HTTP() (*http.Client, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case t.CAFile != "":
		data, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("%s: has no certificate", t.CAFile)
		}
	case t.Pinned != "":
		data, err := os.ReadFile(t.Pinned)
		if err != nil {
			return nil, err
		}
		block, _ := pem.Decode(data)
		if block == nil || block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%s: does not begin with a certificate", t.Pinned)
		}
		// Names and dates do not matter: the file is the operator's own, and this is the very certificate that stands in it.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 || !bytes.Equal(cs.PeerCertificates[0].Raw, block.Bytes) {
				return errNotPinned
			}
			return nil
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, err
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &http.Transport{Proxy: nil, IdleConnTimeout: 10 * time.Second, TLSClientConfig: cfg}, Timeout: time.Minute}, nil
}

package auth

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"strings"
	"time"
)

// newClient makes a client that follows no redirects: credentials go where the configuration says. Without roots those of the system
// count.
func newClient(timeout time.Duration, roots *x509.CertPool, conns int) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
			MaxIdleConnsPerHost: conns, MaxConnsPerHost: conns, IdleConnTimeout: time.Minute,
			ResponseHeaderTimeout: timeout, ForceAttemptHTTP2: true, MaxResponseHeaderBytes: 64 << 10,
		},
	}
}

// client returns the client of now: a new CA file makes a new one, whose connections are verified by it.
func (a *Auth) client(what string, timeout time.Duration, caFile string, conns int) (func() *http.Client, error) {
	if caFile == "" {
		c := newClient(timeout, nil, conns)
		return func() *http.Client { return c }, nil
	}
	s, err := newSource(caFile, func(name string, data []byte) (*http.Client, error) {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(data) {
			return nil, &FileError{File: name, Problem: "holds no certificate in PEM"}
		}
		return newClient(timeout, roots, conns), nil
	})
	if err != nil {
		return nil, err
	}
	a.others = append(a.others, file{what: what, name: caFile, changed: s.changed, reload: func() error {
		old := s.load()
		err := s.reload()
		if err == nil {
			old.CloseIdleConnections() // what runs on it ends by itself
		}
		return err
	}})
	return s.load, nil
}

// bearer returns the token of now.
func (a *Auth) bearer(name string) (func() string, error) {
	if name == "" {
		return func() string { return "" }, nil
	}
	s, err := newSource(name, parseBearer)
	if err != nil {
		return nil, err
	}
	a.others = append(a.others, file{what: "token", name: name, changed: s.changed, reload: s.reload})
	a.warnOfReaders("token file can be read by others; chmod 600", name)
	return s.load, nil
}

// parseBearer takes what may stand in a header.
func parseBearer(name string, data []byte) (string, error) {
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", &FileError{File: name, Problem: "holds no token"}
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c >= 0x7F {
			return "", &FileError{File: name, Problem: "holds more than a token: there is a space, a control character or something that is not ASCII in it"}
		}
	}
	return token, nil
}

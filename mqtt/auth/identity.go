package auth

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"net/netip"
	"time"
)

// Method is one link of a chain.
type Method string

// The methods.
const (
	MethodPassword    Method = "password"
	MethodCertificate Method = "certificate"
	MethodJWT         Method = "jwt"
	MethodHTTP        Method = "http"
	MethodScram       Method = "scram"
	MethodAnonymous   Method = "anonymous"
)

// Request is what a client says in its CONNECT, and what is known of its connection.
type Request struct {
	ClientID    string
	HasUser     bool
	User        string
	HasPassword bool
	Password    []byte
	Listener    string
	Remote      netip.Addr        // the zero Addr when there is none, as on a Unix socket
	Certificate *x509.Certificate // leaf of a chain that was verified; nil without one
}

// Identity is who a client is, once a method has accepted it. It is not changed any more.
type Identity struct {
	Method      Method
	User        string // empty: anonymous
	Groups      []string
	Claims      map[string][]string // of a token or the hook
	Certificate *CertificateInfo    // of the connection, whatever the method
	Grants      *Grants             // topics that a token or the hook allows; nil: it does not speak of them
	ExpiresAt   time.Time           // when the connection has to end; zero is never

	stamp string // of the stored credential, to see later whether it is still the same
}

// Grants are filters that the credentials themselves allow. They come after the rules of the ACL file.
type Grants struct {
	Publish   []string
	Subscribe []string
}

// CertificateInfo is what rules may ask of a certificate.
type CertificateInfo struct {
	CommonName  string
	DNS         []string
	URIs        []string
	Emails      []string
	Fingerprint string // SHA-256 of the DER, lower-case hex without colons
}

// NewCertificateInfo takes what rules may ask from a verified certificate; nil of nil.
func NewCertificateInfo(c *x509.Certificate) *CertificateInfo {
	if c == nil {
		return nil
	}
	sum := sha256.Sum256(c.Raw)
	info := &CertificateInfo{
		CommonName:  c.Subject.CommonName,
		DNS:         c.DNSNames,
		Emails:      c.EmailAddresses,
		Fingerprint: hex.EncodeToString(sum[:]),
	}
	for _, u := range c.URIs {
		info.URIs = append(info.URIs, u.String())
	}
	return info
}

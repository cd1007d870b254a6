package auth

import (
	"context"
	"slices"
	"strings"
)

// Where the identity of a certificate stands.
const (
	FromCommonName  = "cn"
	FromDNS         = "dns"
	FromURI         = "uri"
	FromEmail       = "email"
	FromFingerprint = "sha256"
)

// certificates is the method certificate.
type certificates struct {
	from  string
	users []CertificateUser
	only  bool
}

// authenticate implements method. The connection has verified the certificate.
func (m *certificates) authenticate(_ context.Context, r *Request) (*Identity, error) {
	info := NewCertificateInfo(r.Certificate)
	if info == nil {
		return nil, errNext
	}
	names := info.names(m.from)
	for _, u := range m.users {
		glob := pattern(u.Match)
		if m.from == FromFingerprint {
			glob = pattern(strings.ToLower(strings.ReplaceAll(u.Match, ":", "")))
		}
		if slices.ContainsFunc(names, glob.match) {
			return &Identity{Method: MethodCertificate, User: u.User, Groups: u.Groups, Certificate: info}, nil
		}
	}
	// Of several names the first would be a matter of chance: those have to be listed.
	if m.only || len(names) != 1 || CheckUserName(names[0]) != nil && m.from != FromURI {
		return nil, errNext
	}
	return &Identity{Method: MethodCertificate, User: names[0], Certificate: info}, nil
}

func (c *CertificateInfo) names(from string) []string {
	switch from {
	case FromDNS:
		return c.DNS
	case FromURI:
		return c.URIs
	case FromEmail:
		return c.Emails
	case FromFingerprint:
		return []string{c.Fingerprint}
	}
	if c.CommonName == "" {
		return nil
	}
	return []string{c.CommonName}
}

package transport

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// Whether a client has to show a certificate.
const (
	ClientCertNone     = "none"
	ClientCertOptional = "optional"
	ClientCertRequired = "required"
)

// What counts when a revocation list has expired.
const (
	ExpiredRefuse = "refuse"
	ExpiredAccept = "accept"
)

// TLSConfig is what a listener of type tls or wss shows and trusts. All files are read again when they change.
type TLSConfig struct {
	// File with the certificate of the gateway and those of the CAs between it and the root (PEM).
	CertFile string `yaml:"cert_file"`

	// File with the key of the certificate (PEM, not encrypted). chmod 600: a file that everybody can read is used with
	// a warning.
	KeyFile string `yaml:"key_file"`

	// Lowest version of TLS: "1.2" or "1.3", in quotes. Empty: 1.2. Ciphers are those that Go holds for safe, in its order.
	MinVersion string `yaml:"min_version"`

	// File with the CAs of client certificates (PEM). Empty: clients are not asked for one.
	ClientCAFile string `yaml:"client_ca_file"`

	// Whether clients have to show a certificate: none, optional (one that is shown has to be good) or required. Empty:
	// required with client_ca_file, none without.
	ClientCert string `yaml:"client_cert"`

	// File with revocation lists (PEM or DER), complete ones signed by CAs of client_ca_file. With one, a client
	// certificate whose issuer has no list in it is refused.
	CRLFile string `yaml:"crl_file"`

	// What happens when a revocation list has expired: refuse the certificates of its CA until there is a new one, or
	// accept those that the old list does not name. Empty: refuse.
	CRLExpired string `yaml:"crl_expired"`

	// Time for the TLS handshake, the PROXY header included. Waiting for a place (max_handshakes) or a processor (handshake_share) does not count. 0 is 10s.
	HandshakeTimeout unit.Duration `yaml:"handshake_timeout"`
}

// ProxyConfig is about a proxy before the gateway that tells where clients come from.
type ProxyConfig struct {
	// Addresses of proxies (10.1.2.3, 10.0.0.0/8). Connections from there have to begin with a PROXY protocol header of
	// version 2, and count as those of the client that it names. From elsewhere a header is a broken packet. Empty: none.
	Trusted []string `yaml:"trusted"`
}

const defaultHandshakeTimeout = 10 * time.Second

// Timeout is handshake_timeout or what it is without one.
func (c TLSConfig) Timeout() time.Duration {
	if c.HandshakeTimeout > 0 {
		return c.HandshakeTimeout.Std()
	}
	return defaultHandshakeTimeout
}

func (c TLSConfig) clientAuth() tls.ClientAuthType {
	switch {
	case c.ClientCAFile == "" || c.ClientCert == ClientCertNone:
		return tls.NoClientCert
	case c.ClientCert == ClientCertOptional:
		return tls.VerifyClientCertIfGiven
	}
	return tls.RequireAndVerifyClientCert
}

func (c TLSConfig) minVersion() uint16 {
	if c.MinVersion == "1.3" {
		return tls.VersionTLS13
	}
	return tls.VersionTLS12
}

// Validate reports everything that is wrong, in the files too. fault gets the key, below that of the listener.
func (c TLSConfig) Validate(fault func(format string, args ...any)) {
	complete := true
	if c.CertFile == "" {
		fault(".tls.cert_file: is missing; a TLS listener needs a certificate and its key")
		complete = false
	}
	if c.KeyFile == "" {
		fault(".tls.key_file: is missing; a TLS listener needs a certificate and its key")
		complete = false
	}
	if c.MinVersion != "" && c.MinVersion != "1.2" && c.MinVersion != "1.3" {
		fault(`.tls.min_version: %q is neither "1.2" nor "1.3"`, c.MinVersion)
	}
	switch c.ClientCert {
	case "", ClientCertNone:
	case ClientCertOptional, ClientCertRequired:
		if c.ClientCAFile == "" {
			fault(".tls.client_ca_file: is missing; client_cert: %s needs it", c.ClientCert)
		}
	default:
		fault(".tls.client_cert: %q is not none, optional or required", c.ClientCert)
	}
	if c.CRLFile != "" && c.ClientCAFile == "" {
		fault(".tls.client_ca_file: is missing; crl_file needs it")
	}
	if c.CRLExpired != "" && c.CRLExpired != ExpiredRefuse && c.CRLExpired != ExpiredAccept {
		fault(".tls.crl_expired: %q is neither refuse nor accept", c.CRLExpired)
	}
	if d := c.HandshakeTimeout; d != 0 && (d.Std() < 100*time.Millisecond || d.Std() > 10*time.Minute) {
		fault(".tls.handshake_timeout: %v is not between 100ms and 10m", d)
	}
	if complete {
		if _, err := loadPair(c); err != nil {
			fault(".tls.%w", err)
		}
	}
	if c.ClientCAFile != "" {
		if _, err := loadTrust(c); err != nil {
			fault(".tls.%w", err)
		}
	}
}

// Validate reports everything that is wrong.
func (c ProxyConfig) Validate(fault func(format string, args ...any)) {
	for i, s := range c.Trusted {
		if _, err := parsePrefix(s); err != nil {
			fault(".proxy_protocol.trusted[%d]: %w", i, err)
		}
	}
}

// parsePrefix takes an address or a network.
func parsePrefix(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%q is neither an address nor a network such as 10.0.0.0/8", s)
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is neither an address nor a network such as 10.0.0.0/8", s)
	}
	return p.Masked(), nil
}

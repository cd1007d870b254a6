package kafka

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ConnectionReason names the cause of a connection's error, and what an operator can do about it.
func ConnectionReason(err error) (reason, hint string) {
	var (
		dns     *net.DNSError
		cert    *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		record  tls.RecordHeaderError
		first   *kgo.ErrFirstReadEOF
		netErr  net.Error
		expired x509.CertificateInvalidError
		name    x509.HostnameError
		secret  *secretError
		token   *tokenError
	)
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &secret):
		return "credentials", "the gateway cannot read its own key, certificate or secret: see the error; what is repaired is taken without a restart"
	case errors.As(err, &token):
		return "token", "no token for the login: check token_url, client_id and the client secret"
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return "authentication", "the listener does not offer this SASL mechanism"
	case errors.Is(err, kerr.IllegalSaslState):
		return "authentication", "the listener does not want this login: check the port"
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return "authentication", "the cluster refuses the user, password or token; a changed secret file is taken at once"
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return "tls", "the broker's certificate has expired or is not valid yet: renew it, or set the clock"
	case errors.As(err, &name):
		return "tls", "the broker's certificate is for another name: set tls.server_name, or use its name in brokers and advertised.listeners"
	case errors.As(err, &cert), errors.As(err, &unknown):
		return "tls", "the broker's certificate is not trusted: check the CA and the host name"
	case strings.Contains(err.Error(), "remote error: tls: "): // the type of alerts has no name outside crypto/tls
		return "tls", "the broker refuses our side of TLS: check cert_file, key_file, and the CAs that the broker trusts"
	case errors.As(err, &record):
		return "tls", "the broker does not speak TLS on this port"
	case errors.As(err, &dns):
		return "dns", "the broker's host name is not found"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused", "nothing listens on the broker's address: is Kafka running?"
	case strings.Contains(err.Error(), "invalid large response size"): // the producer has no name for it
		return "not_kafka", "what answers on the broker's address is not Kafka: check the port"
	case errors.As(err, &first):
		return "closed", "the broker closes the connection at once: it may want TLS or a login, or not be Kafka"
	case errors.As(err, &netErr) && netErr.Timeout():
		return "timeout", "the broker does not answer: check the network and firewalls"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, net.ErrClosed):
		return "closed", ""
	}
	return "network", ""
}

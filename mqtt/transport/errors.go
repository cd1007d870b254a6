package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
)

var (
	// ErrRevoked: a revocation list names the certificate.
	ErrRevoked = errors.New("certificate is revoked")

	// ErrNoRevocationList: crl_file has none of the certificate's issuer.
	ErrNoRevocationList = errors.New("no revocation list of the certificate's issuer")

	// ErrRevocationListExpired: the issuer's list should have been replaced by now.
	ErrRevocationListExpired = errors.New("revocation list of the certificate's issuer has expired")

	// ErrProxyHeader: a trusted proxy sent something else than a PROXY v2 header.
	ErrProxyHeader = errors.New("proxy protocol")

	// ErrSlow: others needed the place of a connection that did not go on.
	ErrSlow = errors.New("has kept others waiting who needed its place")
)

// Reasons of a connection that did not come as far as MQTT.
const (
	ReasonProtocol    = "wrong_protocol" // no TLS, or none that we speak
	ReasonCertificate = "certificate"    // missing, unknown, expired, revoked
	ReasonTimeout     = "timeout"
	ReasonSlow        = "too_slow" // it kept others waiting
	ReasonGone        = "gone"     // the peer closed it, or this process did because it ends
	ReasonProxy       = "proxy"
)

// Reasons are all of them.
var Reasons = []string{ReasonProtocol, ReasonCertificate, ReasonTimeout, ReasonSlow, ReasonGone, ReasonProxy}

// ReasonOf decides why a connection did not come as far as MQTT, and whether somebody should look at it: a hint is not empty then.
func ReasonOf(err error) (reason, hint string) {
	var (
		record  tls.RecordHeaderError
		verify  *tls.CertificateVerificationError
		alert   tls.AlertError
		opErr   *net.OpError
		unknown x509.UnknownAuthorityError
	)
	switch {
	case errors.Is(err, ErrProxyHeader):
		return ReasonProxy, "the proxy has to send PROXY protocol version 2, or does not belong into proxy_protocol.trusted"
	case errors.Is(err, ErrRevoked):
		return ReasonCertificate, "the certificate is revoked"
	case errors.Is(err, ErrNoRevocationList):
		return ReasonCertificate, "add the list of this CA to crl_file"
	case errors.Is(err, ErrRevocationListExpired):
		return ReasonCertificate, "put a new list into crl_file, or set crl_expired: accept"
	case errors.As(err, &unknown):
		return ReasonCertificate, "the client's certificate was not issued by a CA of client_ca_file"
	case errors.As(err, &verify):
		return ReasonCertificate, "the client has to renew or replace its certificate"
	case errors.Is(err, ErrSlow):
		return ReasonSlow, ""
	case errors.As(err, &record):
		return ReasonProtocol, speaks(record.RecordHeader[0])
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return ReasonTimeout, ""
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, context.Canceled),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return ReasonGone, ""
	case errors.As(err, &alert), errors.As(err, &opErr) && opErr.Op == "remote error":
		return ReasonCertificate, "the client refuses: does it trust the CA of cert_file, and does the certificate have the name that it connects to?"
	case strings.Contains(err.Error(), "didn't provide a certificate"): // the library has no value for it
		return ReasonCertificate, "the client has to send a certificate, or set client_cert: optional"
	}
	return ReasonProtocol, "the client has no TLS version or cipher in common with this listener"
}

// speaks tells by its first byte what came instead of TLS.
func speaks(first byte) string {
	switch {
	case first == 0x10:
		return "the client speaks MQTT without TLS: switch its TLS on, or give it a listener of type tcp"
	case first >= 'A' && first <= 'Z':
		return "the client speaks HTTP without TLS: give it a wss:// address, or a listener of type websocket"
	}
	return "the client does not speak TLS"
}

// HelloRecord is the first byte of a TLS connection: what a listener without TLS sees of a client that expects it.
const HelloRecord = 0x16

package transport_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/mqtt/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// side is one end that shows a certificate.
type side struct {
	t       *testing.T
	dir     string
	ca      *mqtttest.CA // of the server
	clients *mqtttest.CA
	cfg     transport.TLSConfig
	log     bytes.Buffer
	now     time.Time
}

func newSide(t *testing.T) *side {
	s := &side{t: t, dir: t.TempDir(), ca: mqtttest.NewCA(t, "servers"), clients: mqtttest.NewCA(t, "clients"), now: time.Now()}
	s.cfg.CertFile, s.cfg.KeyFile = mqtttest.WritePair(t, s.dir, "server", s.ca.Issue("gateway"))
	s.cfg.ClientCAFile, s.cfg.CRLFile = filepath.Join(s.dir, "ca"), filepath.Join(s.dir, "crl")
	mqtttest.WriteFile(t, s.cfg.ClientCAFile, s.clients.PEM())
	mqtttest.WriteFile(t, s.cfg.CRLFile, s.clients.Revoke(time.Hour))
	return s
}

func (s *side) open() (*transport.TLS, error) {
	return transport.NewTLS(s.cfg, transport.Options{
		Listener: "l", Slots: transport.NewSlots(1, nil), Logger: slog.New(slog.NewTextHandler(&s.log, nil)), Now: func() time.Time { return s.now },
	})
}

// shake makes a handshake with a client that shows cert, and returns the error of the server.
func (s *side) shake(l *transport.TLS, cert tls.Certificate) error {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() {
		c := tls.Client(b, &tls.Config{
			RootCAs: s.ca.Pool(), ServerName: "localhost",
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil },
		})
		if c.HandshakeContext(ctx) == nil {
			_, _ = c.Read(make([]byte, 1)) // the ticket, or the alert
		}
	}()
	_, err := l.Handshake(ctx, a, func(transport.Wait) {})
	return err
}

func (s *side) faults() string {
	var errs []string
	s.cfg.Validate(func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...).Error()) })
	return strings.Join(errs, "\n")
}

func TestConfigFaultsNameTheKey(t *testing.T) {
	f := func(want string, change func(s *side)) {
		t.Helper()
		s := newSide(t)
		change(s)
		if got := s.faults(); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	f("", func(*side) {})
	f(".tls.cert_file: is missing", func(s *side) { s.cfg.CertFile = "" })
	f(".tls.key_file: is missing", func(s *side) { s.cfg.KeyFile = "" })
	f(".tls.cert_file: open", func(s *side) { s.cfg.CertFile += ".no" })
	f(".tls.key_file: open", func(s *side) { s.cfg.KeyFile += ".no" })
	f("does not match", func(s *side) {
		_, s.cfg.KeyFile = mqtttest.WritePair(t, s.dir, "other", s.ca.Issue("other"))
	})
	f("key is encrypted", func(s *side) {
		mqtttest.WriteFile(t, s.cfg.KeyFile, []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"))
	})
	f(`.tls.min_version: "1.1" is neither`, func(s *side) { s.cfg.MinVersion = "1.1" })
	f(`.tls.client_cert: "yes" is not`, func(s *side) { s.cfg.ClientCert = "yes" })
	f("client_ca_file: is missing; client_cert", func(s *side) { s.cfg.ClientCert, s.cfg.ClientCAFile = "required", "" })
	f("client_ca_file: is missing; crl_file", func(s *side) { s.cfg.ClientCAFile = "" })
	f(".tls.client_ca_file: open", func(s *side) { s.cfg.ClientCAFile += ".no" })
	f(".tls.crl_file: open", func(s *side) { s.cfg.CRLFile += ".no" })
	f(`.tls.crl_expired: "ignore" is neither`, func(s *side) { s.cfg.CRLExpired = "ignore" })
	f(".tls.handshake_timeout: 1ms is not between", func(s *side) { s.cfg.HandshakeTimeout = 1e6 })
	f("holds no certificate", func(s *side) { mqtttest.WriteFile(t, s.cfg.ClientCAFile, []byte("# none\n")) })
	f("not one of a CA", func(s *side) { s.cfg.ClientCAFile = s.cfg.CertFile })
}

func TestProxyAddresses(t *testing.T) {
	f := func(trusted, want string) {
		t.Helper()
		got := ""
		transport.ProxyConfig{Trusted: []string{trusted}}.Validate(func(format string, args ...any) { got = fmt.Errorf(format, args...).Error() })
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", trusted, got, want)
		}
	}
	f("10.0.0.0/8", "")
	f("2001:db8::1", "")
	f("proxy.example.com", ".proxy_protocol.trusted[0]: ")
	f("10.0.0.0/33", "neither an address nor a network")
	f("", "neither")

	p := transport.NewProxy(transport.ProxyConfig{Trusted: []string{"10.0.0.0/8", "::1"}})
	for from, want := range map[string]bool{"10.9.8.7": true, "::ffff:10.9.8.7": true, "::1": true, "11.0.0.1": false, "fe80::1%eth0": false} {
		ip, zone, _ := strings.Cut(from, "%")
		if got := p.Trusts(&net.TCPAddr{IP: net.ParseIP(ip), Zone: zone}); got != want {
			t.Errorf("trusts %s: %v", from, got)
		}
	}
	if p.Trusts(&net.UnixAddr{Name: "10.0.0.1"}) || transport.NewProxy(transport.ProxyConfig{}) != nil {
		t.Error("trusts who has no address, or anybody by default")
	}
}

func TestListsThatDoNotSayEverythingAreRefused(t *testing.T) {
	f := func(oid asn1.ObjectIdentifier, want string) {
		t.Helper()
		s := newSide(t)
		mqtttest.WriteFile(t, s.cfg.CRLFile, s.clients.List(func(l *x509.RevocationList) {
			l.ExtraExtensions = []pkix.Extension{{Id: oid, Critical: true, Value: []byte{5, 0}}}
		}))
		if _, err := s.open(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", oid, err)
		}
	}
	f(asn1.ObjectIdentifier{2, 5, 29, 27}, "delta")
	f(asn1.ObjectIdentifier{2, 5, 29, 28}, "partial or indirect")
}

func TestRevocationGoesByTheIssuer(t *testing.T) {
	s := newSide(t)
	second := mqtttest.NewCA(t, "second")
	mqtttest.WriteFile(t, s.cfg.ClientCAFile, append(s.clients.PEM(), second.PEM()...))
	one := s.clients.Issue("one")
	same := second.Issue("same", func(c *x509.Certificate) { c.SerialNumber = one.Leaf.SerialNumber })
	mqtttest.WriteFile(t, s.cfg.CRLFile, append(s.clients.Revoke(time.Hour, one), second.Revoke(time.Hour)...))
	l, err := s.open()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.shake(l, one); !errors.Is(err, transport.ErrRevoked) {
		t.Errorf("revoked: %v", err)
	}
	if err := s.shake(l, same); err != nil {
		t.Errorf("the same number of another CA: %v", err)
	}

	mqtttest.WriteFile(t, s.cfg.CRLFile, s.clients.Revoke(time.Hour))
	if _, err := l.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := s.shake(l, same); !errors.Is(err, transport.ErrNoRevocationList) {
		t.Errorf("without a list: %v", err)
	}
	if err := s.shake(l, one); err != nil {
		t.Errorf("no longer revoked: %v", err)
	}
	s.now = s.now.Add(2 * time.Hour)
	if err := s.shake(l, one); !errors.Is(err, transport.ErrRevocationListExpired) {
		t.Errorf("expired list: %v", err)
	}
}

// An intermediate CA that the client sends, with a list of the root: it revokes all that the intermediate has issued.
func TestRevokedIntermediate(t *testing.T) {
	s := newSide(t)
	between := s.clients.Intermediate("between")
	leaf := between.Issue("leaf")
	leaf.Certificate = append(leaf.Certificate, between.Cert.Raw)
	mqtttest.WriteFile(t, s.cfg.ClientCAFile, append(s.clients.PEM(), between.PEM()...))
	mqtttest.WriteFile(t, s.cfg.CRLFile, append(s.clients.Revoke(time.Hour), between.Revoke(time.Hour)...))
	l, err := s.open()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.shake(l, leaf); err != nil {
		t.Error(err)
	}
	revoked := s.clients.Revoke(time.Hour, tls.Certificate{Leaf: between.Cert})
	mqtttest.WriteFile(t, s.cfg.CRLFile, append(revoked, between.Revoke(time.Hour)...))
	if _, err := l.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := s.shake(l, leaf); !errors.Is(err, transport.ErrRevoked) {
		t.Errorf("of a revoked CA, although that is in the file: %v", err)
	}
	mqtttest.WriteFile(t, s.cfg.ClientCAFile, s.clients.PEM())
	mqtttest.WriteFile(t, s.cfg.CRLFile, revoked)
	if _, err := l.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := s.shake(l, leaf); !errors.Is(err, transport.ErrRevoked) {
		t.Errorf("of a revoked CA that the client sends: %v", err)
	}
}

// A tool that keeps time and size of a file does not hide what it wrote.
func TestContentCountsNotTime(t *testing.T) {
	s := newSide(t)
	l, err := s.open()
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.Stat(s.cfg.CRLFile)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(s.cfg.CRLFile)
	if err != nil {
		t.Fatal(err)
	}
	data[40] ^= 1
	if err := errors.Join(os.WriteFile(s.cfg.CRLFile, data, 0o600), os.Chtimes(s.cfg.CRLFile, old.ModTime(), old.ModTime())); err != nil {
		t.Fatal(err)
	}
	if changed, err := l.Reload(); !changed || err == nil {
		t.Errorf("not seen: %v, %v", changed, err)
	}
	if changed, err := l.Reload(); changed || err == nil {
		t.Errorf("the fault is news again, or forgotten: %v, %v", changed, err)
	}
}

func TestKeyThatEverybodyReadsIsWarnedOf(t *testing.T) {
	s := newSide(t)
	if err := os.Chmod(s.cfg.KeyFile, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.open(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.log.String(), "everybody on this machine can read the key") {
		t.Error(s.log.String())
	}
}

func TestHealthTellsOfAnExpiredCertificate(t *testing.T) {
	s := newSide(t)
	l, err := s.open()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Health(); err != nil {
		t.Error(err)
	}
	s.now = s.now.Add(48 * time.Hour)
	if err := l.Health(); err == nil || !strings.Contains(err.Error(), "replace "+s.cfg.CertFile) {
		t.Error(err)
	}
}

// A peer that waits does not keep a slot from one that goes on.
func TestWaitingHandshakesHoldNoSlot(t *testing.T) {
	s := newSide(t)
	l, err := s.open()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	for range 3 {
		a, b := net.Pipe()
		defer b.Close()
		go func() {
			defer a.Close()
			_, err := l.Handshake(ctx, a, func(transport.Wait) {})
			done <- err
		}()
		if _, err := b.Write([]byte{0x16, 3, 1}); err != nil { // it has the slot, and waits for the rest
			t.Fatal(err)
		}
	}
	if err := s.shake(l, s.clients.Issue("c")); err != nil {
		t.Error(err)
	}
	cancel()
	for range 3 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	}
}

// FuzzProxyHeader: nothing is read past the header, and the client's address comes from nowhere else.
func FuzzProxyHeader(f *testing.F) {
	f.Add([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71\x07\x7f\x00\x00\x01\x1f\x90\x07\x5brest"))
	f.Add([]byte("\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"))
	f.Add([]byte("\x10\x0d\x00\x04MQTT"))
	p := transport.NewProxy(transport.ProxyConfig{Trusted: []string{"::/0"}})
	f.Fuzz(func(t *testing.T, sent []byte) {
		c := &source{data: sent}
		nc, err := p.Accept(context.Background(), c)
		if err != nil {
			return
		}
		want := 16 + int(sent[14])<<8 + int(sent[15])
		if c.at != want {
			t.Errorf("read %d bytes of a header of %d", c.at, want)
		}
		if a, ok := nc.RemoteAddr().(*net.TCPAddr); nc != net.Conn(c) && (!ok || !bytes.Contains(sent[:want], a.IP.To16()) && !bytes.Contains(sent[:want], a.IP.To4())) {
			t.Errorf("address %v", nc.RemoteAddr())
		}
	})
}

// source is a connection that has sent something and ends.
type source struct {
	net.Conn
	data []byte
	at   int
}

func (c *source) Read(b []byte) (int, error) {
	if c.at == len(c.data) {
		return 0, net.ErrClosed
	}
	n := copy(b, c.data[c.at:])
	c.at += n
	return n, nil
}

func (c *source) Close() error { return nil }

func (c *source) RemoteAddr() net.Addr { return &net.TCPAddr{} }

package mqtt_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/mqtt/transport"
	"github.com/forebay-gateway/forebay/spool"
)

// secured is a server with every type of listener, and the CAs of both sides.
type secured struct {
	t   *testing.T
	srv *mqtt.Server
	reg *prometheus.Registry
	log *logBuffer
	dir string

	ca      *mqtttest.CA // of the server
	clients *mqtttest.CA
}

// secure starts it. Files: server.crt, server.key, clients.crt (the CA), clients.crl.
func secure(t *testing.T, change ...func(*mqtt.Config)) *secured {
	t.Helper()
	s := &secured{
		t: t, reg: prometheus.NewRegistry(), log: &logBuffer{}, dir: t.TempDir(),
		ca: mqtttest.NewCA(t, "servers"), clients: mqtttest.NewCA(t, "clients"),
	}
	certFile, keyFile := mqtttest.WritePair(t, s.dir, "server", s.ca.Issue("gateway"))
	mqtttest.WriteFile(t, s.file("clients.crt"), s.clients.PEM())
	mqtttest.WriteFile(t, s.file("clients.crl"), s.clients.Revoke(time.Hour))
	both := transport.TLSConfig{CertFile: certFile, KeyFile: keyFile, HandshakeTimeout: unit.Duration(30 * time.Second)}
	mutual := both
	mutual.ClientCAFile, mutual.CRLFile = s.file("clients.crt"), s.file("clients.crl")
	cfg := mqtt.DefaultConfig()
	cfg.CertificateReloadInterval = 0 // tests say when
	cfg.Listeners = []mqtt.ListenerConfig{
		{Name: "tcp", Type: mqtt.ListenerTCP, Address: "127.0.0.1:0"},
		{Name: "ws", Type: mqtt.ListenerWebSocket, Address: "127.0.0.1:0", Path: "/mqtt"},
		{Name: "tls", Type: mqtt.ListenerTLS, Address: "127.0.0.1:0", TLS: both},
		{Name: "wss", Type: mqtt.ListenerSecureWebSocket, Address: "127.0.0.1:0", Path: "/mqtt", TLS: both},
		{Name: "mtls", Type: mqtt.ListenerTLS, Address: "127.0.0.1:0", TLS: mutual},
		{Name: "mwss", Type: mqtt.ListenerSecureWebSocket, Address: "127.0.0.1:0", Path: "/mqtt", TLS: mutual},
	}
	for _, f := range change {
		f(&cfg)
	}
	sc := spool.DefaultConfig()
	sc.Dir = filepath.Join(s.dir, "spool")
	sc.Journal.FileSize = 1 << 20
	log, err := spool.Open(sc, spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.srv, err = mqtt.New(t.Context(), cfg, mqtt.Options{
		Log: mqtt.SpoolLog(log), Registerer: s.reg, Logger: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelInfo})),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.srv.Listen(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.srv.Run(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := errors.Join(s.srv.Close(ctx), <-done, log.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func (s *secured) file(name string) string { return filepath.Join(s.dir, name) }

// config is that of a client that trusts the server and shows certs.
func (s *secured) config(certs ...tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: s.ca.Pool(), ServerName: "localhost", Certificates: certs}
}

// dial returns a client on a listener of TLS. It does not come so far when the handshake fails.
func (s *secured) dial(listener string, cfg *tls.Config) *mqtttest.Client {
	s.t.Helper()
	nc, err := tls.Dial("tcp", s.srv.Addr(listener).String(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	if listener == "wss" || listener == "mwss" {
		ws, answer, err := mqtttest.UpgradeOver(nc, "localhost", "/mqtt", "Sec-WebSocket-Protocol: mqtt")
		if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
			s.t.Fatalf("upgrade: %v, %v", answer, err)
		}
		return mqtttest.NewClient(s.t, ws)
	}
	return mqtttest.NewClient(s.t, nc)
}

// refused makes a handshake that must fail for the server, and returns what the client learns.
func (s *secured) refused(listener string, cfg *tls.Config) error {
	s.t.Helper()
	nc, err := tls.Dial("tcp", s.srv.Addr(listener).String(), cfg)
	if err == nil { // with TLS 1.3 a client is through before the server has seen its certificate
		defer nc.Close()
		_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
		_, err = nc.Read(make([]byte, 1))
	}
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		s.t.Fatalf("the handshake is not refused: %v", err)
	}
	return err
}

// metric is the value of a counter or gauge, summed over its labels when label is empty.
func (s *secured) metric(name, label string) float64 {
	s.t.Helper()
	families, err := s.reg.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != "forebay_mqtt_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || hasLabel(m, label) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func hasLabel(m *dto.Metric, value string) bool {
	for _, l := range m.GetLabel() {
		if l.GetValue() == value {
			return true
		}
	}
	return false
}

// eventually waits for what another goroutine does.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// logBuffer is a log that a test reads.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// count is how many lines hold all words.
func (l *logBuffer) count(words ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
lines:
	for line := range strings.Lines(l.b.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		n++
	}
	return n
}

func (s *secured) logs(words ...string) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("no line of the log holds %q", words), func() bool { return s.log.count(words...) > 0 })
}

// echo publishes to t, which c subscribes to. The acknowledgement and the delivery come in any order.
func echo(t *testing.T, c *mqtttest.Client, payload string) {
	t.Helper()
	c.SendPublish(mqtttest.Publish{Topic: "t", QoS: 1, Payload: payload})
	for range 2 {
		switch pk := c.Next(); pk.FixedHeader.Type {
		case packets.Puback:
		case packets.Publish:
			if string(pk.Payload) != payload {
				t.Errorf("%d bytes came back", len(pk.Payload))
			}
			c.Finish(1, pk.PacketID)
		default:
			t.Fatalf("got packet type %d", pk.FixedHeader.Type)
		}
	}
}

func TestTLSVersions(t *testing.T) {
	s := secure(t, func(c *mqtt.Config) {
		strict := c.Listeners[2]
		strict.Name, strict.TLS.MinVersion = "strict", "1.3"
		c.Listeners = append(c.Listeners, strict)
	})
	for _, listener := range []string{"tls", "wss", "strict"} {
		for _, version := range []uint16{tls.VersionTLS11, tls.VersionTLS12, tls.VersionTLS13} {
			cfg := s.config()
			cfg.MinVersion, cfg.MaxVersion = version, version
			name := listener + " " + tls.VersionName(version)
			if version == tls.VersionTLS11 || listener == "strict" && version == tls.VersionTLS12 {
				if err := s.refused(listener, cfg); !strings.Contains(err.Error(), "version") {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			c := s.dial(listener, cfg)
			c.Connect(mqtttest.Connect{ID: name})
			c.Subscribe("t", 1)
			echo(t, c, strings.Repeat("x", 40000))
			c.Disconnect()
		}
	}
	if n := s.metric("tls_handshakes_total", ""); n != 5 {
		t.Errorf("%v handshakes, want 5", n)
	}
}

func TestALPNIsAnsweredAndNeverInTheWay(t *testing.T) {
	s := secure(t)
	f := func(listener, want string, offers ...string) {
		t.Helper()
		cfg := s.config()
		cfg.NextProtos = offers
		nc, err := tls.Dial("tcp", s.srv.Addr(listener).String(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if got := nc.ConnectionState().NegotiatedProtocol; got != want {
			t.Errorf("%s: got %q, want %q", listener, got, want)
		}
	}
	f("tls", "mqtt", "x-other", "mqtt")
	f("tls", "", "h2")
	f("wss", "http/1.1", "h2", "http/1.1")
	f("wss", "", "mqtt")
}

func TestClientCertificates(t *testing.T) {
	s := secure(t, func(c *mqtt.Config) {
		optional := c.Listeners[4]
		optional.Name, optional.TLS.ClientCert = "optional", "optional"
		c.Listeners = append(c.Listeners, optional)
	})
	good, revoked := s.clients.Issue("press-7"), s.clients.Issue("press-8")
	mqtttest.WriteFile(t, s.file("clients.crl"), s.clients.Revoke(time.Hour, revoked))
	if err := s.srv.Reload(); err != nil {
		t.Fatal(err)
	}
	expired := s.clients.Issue("old", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	servers := s.clients.Issue("server", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	// The client's library keeps a certificate to itself that the server will not take; this one shows it anyway.
	stubborn := func(cert tls.Certificate) *tls.Config {
		cfg := s.config()
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
		return cfg
	}
	for _, listener := range []string{"mtls", "mwss", "optional"} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			good := s.config(good)
			good.MaxVersion = version
			s.dial(listener, good).Connect(mqtttest.Connect{ID: "good"})
			for name, cfg := range map[string]*tls.Config{
				"wrong CA":     stubborn(mqtttest.NewCA(t, "others").Issue("press-7")),
				"same name CA": stubborn(mqtttest.NewCA(t, "clients").Issue("press-7")),
				"expired":      stubborn(expired),
				"revoked":      stubborn(revoked),
				"of a server":  stubborn(servers),
				"missing":      s.config(),
			} {
				if name == "missing" && listener == "optional" {
					s.dial(listener, cfg).Connect(mqtttest.Connect{ID: "nobody"})
					continue
				}
				cfg.MaxVersion = version
				before := s.metric("handshake_failures_total", "certificate")
				s.refused(listener, cfg)
				eventually(t, name+" is not counted", func() bool { return s.metric("handshake_failures_total", "certificate") == before+1 })
			}
		}
	}
	s.logs("level=WARN", "listener=mtls", "hint=")
	if n := s.log.count("listener=mtls", "connection refused"); n != 1 {
		t.Errorf("%d lines about many refusals", n)
	}
}

func TestCertificateIsTheUserOfTheRules(t *testing.T) {
	s := secure(t, func(c *mqtt.Config) {
		dir := filepath.Dir(c.Listeners[2].TLS.CertFile)
		rules := filepath.Join(dir, "acl")
		mqtttest.WriteFile(t, rules, []byte("allow all topic=plant/%u/#\nallow publish topic=lines cert=cn:press-*\n"))
		c.Auth.Methods = []string{"certificate"}
		c.Auth.ACL.File = rules
	})
	for _, listener := range []string{"mtls", "mwss"} {
		c := s.dial(listener, s.config(s.clients.Issue("press-7")))
		c.Connect(mqtttest.Connect{ID: listener, UserName: "somebody-else"})
		c.Publish(mqtttest.Publish{Topic: "plant/press-7/x", QoS: 1})
		c.Publish(mqtttest.Publish{Topic: "lines", QoS: 1})
		id := c.SendPublish(mqtttest.Publish{Topic: "plant/press-8/x", QoS: 1})
		c.ExpectAck(4, id, 0x87)
	}
	c := s.dial("tls", s.config())
	c.SendConnect(mqtttest.Connect{ID: "none", UserName: "press-7"})
	c.ExpectConnack(0x86)
}

// Certificates, CA and lists change all the time while clients work; none of them notices.
func TestRotationUnderLiveConnections(t *testing.T) {
	s := secure(t)
	device := s.clients.Issue("device")
	stop := make(chan struct{})
	var work sync.WaitGroup
	for i, listener := range []string{"tls", "wss", "mtls", "mwss"} {
		c := s.dial(listener, s.config(device))
		c.Connect(mqtttest.Connect{ID: fmt.Sprint("live", i)})
		topic := fmt.Sprint("rotation/", i)
		sub := s.dial(listener, s.config(device))
		sub.Connect(mqtttest.Connect{ID: fmt.Sprint("sub", i)})
		sub.Subscribe(topic, 1)
		work.Go(func() { exchange(c, sub, topic, stop) })
	}
	rounds := long(60, 1000)
	for i := range rounds {
		switch i % 3 {
		case 0:
			mqtttest.WritePair(t, s.dir, "server", s.ca.Issue("gateway"))
		case 1:
			mqtttest.WriteFile(t, s.file("clients.crl"), s.clients.Revoke(time.Hour, s.clients.Issue("gone")))
		case 2:
			mqtttest.WriteFile(t, s.file("clients.crt"), append(mqtttest.NewCA(t, "more").PEM(), s.clients.PEM()...))
		}
		if err := s.srv.Reload(); err != nil {
			t.Fatal(err)
		}
		if i%7 == 0 {
			c := s.dial("mtls", s.config(device))
			c.Connect(mqtttest.Connect{ID: "new"})
			c.Disconnect()
		}
	}
	close(stop)
	work.Wait()
	if n := s.metric("certificate_reloads_total", "ok"); n < float64(rounds) {
		t.Errorf("%v reloads of %d", n, rounds)
	}
}

func TestReloadCountsForTheNextHandshake(t *testing.T) {
	s := secure(t)
	shown := func() string {
		t.Helper()
		nc, err := tls.Dial("tcp", s.srv.Addr("tls").String(), s.config())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		return nc.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	reload := func() {
		t.Helper()
		if err := s.srv.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	mqtttest.WritePair(t, s.dir, "server", s.ca.Issue("renewed"))
	reload()
	if got := shown(); got != "renewed" {
		t.Errorf("shows %q", got)
	}

	press := s.clients.Issue("press")
	cached := s.config(press)
	cached.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	live := s.dial("mtls", cached)
	live.Connect(mqtttest.Connect{ID: "live"})
	other := s.dial("mwss", s.config(s.clients.Issue("other")))
	other.Connect(mqtttest.Connect{ID: "other"})
	again := s.dial("mtls", cached)
	again.Connect(mqtttest.Connect{ID: "again"})
	if !again.Conn().(*tls.Conn).ConnectionState().DidResume {
		t.Error("the session is not resumed")
	}
	again.Ping()

	mqtttest.WriteFile(t, s.file("clients.crl"), s.clients.Revoke(time.Hour, press))
	reload()
	live.ExpectDisconnect(0x87)  // revoked
	again.ExpectDisconnect(0x87) // resumed, and revoked
	other.Ping()                 // not
	s.refused("mtls", cached)    // a session of better days is of no use

	next := mqtttest.NewCA(t, "next clients")
	mqtttest.WriteFile(t, s.file("clients.crt"), next.PEM())
	mqtttest.WriteFile(t, s.file("clients.crl"), next.Revoke(time.Hour))
	reload()
	other.Ping() // a CA that went keeps out, it does not throw out
	s.refused("mtls", s.config(s.clients.Issue("press")))
	s.dial("mtls", s.config(next.Issue("press"))).Connect(mqtttest.Connect{ID: "next"})
}

func TestBrokenFilesKeepTheOldOnes(t *testing.T) {
	s := secure(t)
	crt, key, ca, crl := s.file("server.crt"), s.file("server.key"), s.file("clients.crt"), s.file("clients.crl")
	other := mqtttest.NewCA(t, "others")
	device := s.clients.Issue("device")
	f := func(file string, content []byte, want string) {
		t.Helper()
		old, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if content == nil {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		} else {
			mqtttest.WriteFile(t, file, content)
		}
		failed := s.metric("certificate_reloads_total", "failed")
		for range 3 { // the fault stays, and is counted and logged once
			if err := s.srv.Reload(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("reload: %v, want %q", err, want)
			}
		}
		if got := s.metric("certificate_reloads_total", "failed"); got == failed || got > failed+4 {
			t.Errorf("%v failed reloads more", got-failed)
		}
		if err := s.srv.Health(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("health: %v, want %q", err, want)
		}
		c := s.dial("mtls", s.config(device))
		c.Connect(mqtttest.Connect{ID: "c"})
		c.Disconnect()
		mqtttest.WriteFile(t, file, old)
		if err := errors.Join(s.srv.Reload(), s.srv.Health()); err != nil {
			t.Errorf("with the old file: %v", err)
		}
	}
	f(crt, nil, "no such file")
	f(crt, []byte("nonsense"), "cert_file")
	f(crt, []byte{}, "cert_file")
	f(key, s.clients.PEM(), "certificate rather than a key")
	strange, _ := mqtttest.WritePair(t, t.TempDir(), "x", s.ca.Issue("gateway"))
	whole, err := os.ReadFile(strange)
	if err != nil {
		t.Fatal(err)
	}
	f(crt, whole, "does not match")
	f(ca, []byte("nonsense"), "client_ca_file")
	f(ca, whole, "not one of a CA")
	f(ca, other.PEM(), "not in client_ca_file") // the list is of the old CA: both change together or not at all
	f(crl, []byte("nonsense"), "crl_file")
	f(crl, other.Revoke(time.Hour), "not in client_ca_file")
	f(crl, mqtttest.NewCA(t, "clients").Revoke(time.Hour, device), "signature") // the name of the CA with another key
}

func TestExpiredRevocationList(t *testing.T) {
	s := secure(t, func(c *mqtt.Config) {
		lax := c.Listeners[4]
		lax.Name, lax.TLS.CRLExpired = "lax", "accept"
		c.Listeners = append(c.Listeners, lax)
	})
	device, revoked := s.clients.Issue("device"), s.clients.Issue("revoked")
	mqtttest.WriteFile(t, s.file("clients.crl"), s.clients.Revoke(-time.Minute, revoked))
	if err := s.srv.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := s.srv.Health(); err == nil || !strings.Contains(err.Error(), "revocation list has expired") {
		t.Errorf("health: %v", err)
	}
	s.refused("mtls", s.config(device))
	s.logs("listener=mtls", "crl_file")
	s.dial("lax", s.config(device)).Connect(mqtttest.Connect{ID: "d"})
	s.refused("lax", s.config(revoked))
}

func TestFilesAreWatched(t *testing.T) {
	s := secure(t, func(c *mqtt.Config) { c.CertificateReloadInterval = unit.Duration(100 * time.Millisecond) })
	certFile, _ := mqtttest.WritePair(t, s.dir, "server", s.ca.Issue("renewed"))
	s.logs("files read again", certFile)
	mqtttest.WriteFile(t, certFile, []byte("nonsense"))
	s.logs("level=ERROR", "the old ones stay in force", "cert_file")
}

func TestHandshakeTimeout(t *testing.T) {
	s := secure(t, func(c *mqtt.Config) {
		for i := range c.Listeners {
			if c.Listeners[i].Type == mqtt.ListenerTLS || c.Listeners[i].Type == mqtt.ListenerSecureWebSocket {
				c.Listeners[i].TLS.HandshakeTimeout = unit.Duration(200 * time.Millisecond)
			}
		}
	})
	for _, listener := range []string{"tls", "wss"} {
		for _, sent := range []string{"", "\x16\x03\x01"} {
			nc, err := net.Dial("tcp", s.srv.Addr(listener).String())
			if err != nil {
				t.Fatal(err)
			}
			c := mqtttest.NewClient(t, nc)
			c.SendBytes([]byte(sent))
			c.ExpectClosed()
		}
	}
	eventually(t, "the time-outs are not counted", func() bool { return s.metric("handshake_failures_total", "timeout") == 4 })
}

// Who takes the wrong port learns nothing, but the operator does, in one line.
func TestWrongListenerIsOneClearLine(t *testing.T) {
	s := secure(t)
	closed := func(listener, sent string) {
		t.Helper()
		nc, err := net.Dial("tcp", s.srv.Addr(listener).String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := nc.Write([]byte(sent)); err != nil {
			t.Fatal(err)
		}
		_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
		for b := make([]byte, 1000); err == nil; _, err = nc.Read(b) {
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: still open", listener)
		}
	}
	connect := "\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00"
	get := "GET /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n"
	for range 5 {
		closed("tls", connect)
		closed("wss", get)
		for _, listener := range []string{"tcp", "ws"} {
			if _, err := tls.Dial("tcp", s.srv.Addr(listener).String(), s.config()); err == nil {
				t.Errorf("%s: TLS", listener)
			}
		}
	}
	f := func(listener, problem string) {
		t.Helper()
		s.logs("level=WARN", "listener="+listener, problem)
		if n := s.log.count("level=WARN", "connection refused before MQTT", "listener="+listener+" "); n != 1 {
			t.Errorf("%s: %d lines", listener, n)
		}
	}
	f("tls", "speaks MQTT without TLS")
	f("wss", "speaks HTTP without TLS")
	f("tcp", "switch TLS off")
	f("ws", "switch TLS off")
	eventually(t, "not counted", func() bool { return s.metric("handshake_failures_total", "wrong_protocol") == 20 })
}

// Handshakes that go nowhere are bounded, and those who are in do not notice.
func TestHandshakesAreBounded(t *testing.T) {
	s := secure(t, func(c *mqtt.Config) {
		c.Listeners[2].MaxHandshakes = 2
		c.Listeners[2].TLS.HandshakeTimeout = unit.Duration(300 * time.Millisecond)
	})
	live := s.dial("tls", s.config())
	live.Connect(mqtttest.Connect{ID: "live"})
	for range 6 {
		nc, err := net.Dial("tcp", s.srv.Addr("tls").String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	live.Ping()
	s.client("tls", from(t, 2, s.srv.Addr("tls"))).Connect(mqtttest.Connect{ID: "late"}) // its turn comes after theirs
	if n := s.metric("accept_paused_total", "tls"); n == 0 {
		t.Error("nobody waited")
	}
}

func TestConnectionRate(t *testing.T) {
	s := secure(t, func(c *mqtt.Config) { c.Listeners[0].ConnectionRate = 20 })
	began := time.Now()
	for i := range 30 {
		mqtttest.Dial(t, s.srv.Addr("tcp")).Connect(mqtttest.Connect{ID: fmt.Sprint("c", i)})
	}
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("30 connections at 20 a second, 20 at once, took %v", took)
	}
	if n := s.metric("accept_paused_total", "tcp"); n == 0 {
		t.Error("nobody waited")
	}
}

func TestMosquittoOverTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("a foreign client")
	}
	program, err := exec.LookPath("mosquitto_pub")
	if err != nil {
		t.Skip("mosquitto_pub is not installed")
	}
	s := secure(t)
	mqtttest.WriteFile(t, s.file("servers.crt"), s.ca.PEM())
	cert, key := mqtttest.WritePair(t, s.dir, "device", s.clients.Issue("device"))
	_, port, _ := net.SplitHostPort(s.srv.Addr("mtls").String())
	args := []string{
		"-h", "localhost", "-p", port, "-V", "5", "-q", "1", "-t", "t", "-m", "x", "--cafile", s.file("servers.crt"),
		"--cert", cert, "--key", key,
	}
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := exec.Command(program, args[:len(args)-4]...).CombinedOutput(); err == nil {
		t.Errorf("without a certificate: %s", out)
	}
	if st := s.srv.Stats(); st.Received[1] != 1 {
		t.Errorf("received %d", st.Received[1])
	}
}

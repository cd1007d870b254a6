package mqtt_test

import (
	"crypto/tls"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/auth"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/mqtt/transport"
)

// Headers of version 2.
const (
	proxySignature = "0d0a0d0a000d0a515549540a"
	proxyFrom203   = proxySignature + "21 11 000c cb007107 7f000001 1f90 075b"        // 203.0.113.7
	proxyFromV6    = proxySignature + "21 21 0024 20010db8000000000000000000000007" + // 2001:db8::7
		"20010db8000000000000000000000001 1f90 075b"
	proxyNotes = proxySignature + "21 11 0014 cb007107 7f000001 1f90 075b 04 0005 0000000000" // with a TLV
	proxyLocal = proxySignature + "20 00 0000"
)

func header(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// proxies makes every listener one behind a proxy, and short of patience.
func proxies(trusted ...string) func(*mqtt.Config) {
	return func(c *mqtt.Config) {
		for i := range c.Listeners {
			c.Listeners[i].Proxy.Trusted = trusted
			c.Listeners[i].TLS.HandshakeTimeout = unit.Duration(time.Second)
		}
	}
}

// through dials a listener as a proxy that sends first.
func (s *secured) through(listener string, first []byte) net.Conn {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.srv.Addr(listener).String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = nc.Close() })
	if _, err := nc.Write(first); err != nil {
		s.t.Fatal(err)
	}
	return nc
}

// client speaks the protocol of a listener over nc.
func (s *secured) client(listener string, nc net.Conn) *mqtttest.Client {
	s.t.Helper()
	if listener == "tls" || listener == "wss" {
		nc = tls.Client(nc, s.config())
	}
	if listener == "ws" || listener == "wss" {
		ws, answer, err := mqtttest.UpgradeOver(nc, "localhost", "/mqtt", "Sec-WebSocket-Protocol: mqtt")
		if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
			s.t.Fatalf("upgrade: %v, %v", answer, err)
		}
		nc = ws
	}
	return mqtttest.NewClient(s.t, nc)
}

func TestProxyTellsTheAddress(t *testing.T) {
	s := secure(t, proxies("127.0.0.1", "10.0.0.0/8"))
	if err := s.srv.Ban(auth.Ban{Address: netip.MustParsePrefix("203.0.113.7/32")}); err != nil {
		t.Fatal(err)
	}
	if err := s.srv.Ban(auth.Ban{Address: netip.MustParsePrefix("2001:db8::7/128")}); err != nil {
		t.Fatal(err)
	}
	for _, listener := range []string{"tcp", "ws", "tls", "wss"} {
		for _, h := range []string{proxyFrom203, proxyNotes, proxyFromV6} {
			if strings.HasSuffix(listener, "s") && listener != "ws" { // a handshake is not made for who is banned
				if err := tls.Client(s.through(listener, header(t, h)), s.config()).Handshake(); err == nil {
					t.Errorf("%s: a handshake with who is banned", listener)
				}
				continue
			}
			c := s.client(listener, s.through(listener, header(t, h)))
			c.SendConnect(mqtttest.Connect{ID: "banned"})
			c.ExpectConnack(0x8A)
		}
		// The proxy's own connection, and one of a client that is not banned.
		s.client(listener, s.through(listener, header(t, proxyLocal))).Connect(mqtttest.Connect{ID: "local"})
		other := strings.Replace(proxyFrom203, "cb007107", "cb007108", 1)
		c := s.client(listener, s.through(listener, header(t, other)))
		c.Connect(mqtttest.Connect{ID: "other"})
		c.Disconnect()
	}
}

func TestProxyHeaderComesInPieces(t *testing.T) {
	s := secure(t, proxies("127.0.0.1"))
	nc := s.through("tcp", nil)
	for _, b := range header(t, proxyFrom203) {
		if _, err := nc.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	mqtttest.NewClient(t, nc).Connect(mqtttest.Connect{ID: "c"})
}

func TestProxyHeaderIsRequiredAndChecked(t *testing.T) {
	t.Parallel()
	s := secure(t, proxies("127.0.0.0/8"))
	failures := 0.0
	f := func(first []byte, reason string) {
		t.Helper()
		for _, listener := range []string{"tcp", "ws", "tls", "wss"} {
			mqtttest.NewClient(t, s.through(listener, first)).ExpectClosed()
		}
		if failures += 4; reason == "timeout" {
			failures = 4
		}
		eventually(t, "not counted as "+reason, func() bool { return s.metric("handshake_failures_total", reason) == failures })
	}
	f([]byte("\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00"), "proxy") // absent
	f([]byte("GET /mqtt HTTP/1.1\r\n"), "proxy")
	f([]byte("\x16\x03\x01"), "proxy")
	f([]byte("PROXY TCP4 203.0.113.7 127.0.0.1 8080 1883\r\n"), "proxy")                        // version 1
	f(header(t, proxySignature+"31 11 000c cb007107 7f000001 1f90 075b"), "proxy")              // version 3
	f(header(t, proxySignature+"21 12 000c cb007107 7f000001 1f90 075b"), "proxy")              // a datagram
	f(header(t, proxySignature+"21 11 0004 cb007107"), "proxy")                                 // too short
	f(header(t, proxySignature+"21 11 ffff cb007107 7f000001 1f90 075b"), "proxy")              // too long
	f(header(t, strings.Replace(proxyFrom203, "0d0a0d0a000d0a", "0d0a0d0a000d0b", 1)), "proxy") // no signature
	f(header(t, proxyFrom203)[:20], "timeout")                                                  // and then nothing
	if n := s.log.count("level=WARN", "listener=tcp", "proxy_protocol.trusted"); n != 1 {
		t.Errorf("%d lines", n)
	}
}

// A header of somebody who is not trusted is no header, wherever it says that he comes from.
func TestSpoofedProxyHeaderIsABrokenPacket(t *testing.T) {
	s := secure(t, proxies("10.0.0.0/8"))
	for _, listener := range []string{"tcp", "ws", "tls", "wss"} {
		nc := s.through(listener, header(t, proxyFrom203))
		_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
		var err error
		for b := make([]byte, 1000); err == nil; _, err = nc.Read(b) {
			if strings.Contains(string(b), "101 Switching") {
				t.Errorf("%s: let in", listener)
			}
		}
		if os.IsTimeout(err) {
			t.Errorf("%s: still open", listener)
		}
		c := s.client(listener, s.through(listener, nil)) // a client that comes without the proxy
		c.Connect(mqtttest.Connect{ID: "direct"})
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mqtt.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false) // as after kill -9
	_ = stale.Close()
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	t.Run("serves", func(t *testing.T) {
		s := secure(t, func(c *mqtt.Config) {
			c.Listeners = []mqtt.ListenerConfig{{Name: "unix", Type: mqtt.ListenerUnix, Address: path, Mode: "0600"}}
			c.Auth.Methods = []string{"anonymous"}
		})
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 || info.Mode()&os.ModeSocket == 0 {
			t.Errorf("socket: %v, %v", info.Mode(), err)
		}
		if a := s.srv.Addr("unix"); a.String() != path || a.Network() != "unix" {
			t.Errorf("address %v", a)
		}
		c := mqtttest.Dial(t, s.srv.Addr("unix"))
		c.Connect(mqtttest.Connect{ID: "c"})
		c.Subscribe("t", 1)
		echo(t, c, "x")
		c.Disconnect()
		bad := mqtttest.Dial(t, s.srv.Addr("unix"))
		bad.SendConnect(mqtttest.Connect{ID: "c", UserName: "ann"})
		bad.ExpectConnack(0x86)
		if _, err := transport.ListenUnix(path, 0o660); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a second one: %v", err)
		}
	})
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := transport.ListenUnix(path, 0o660); err == nil {
		t.Error("a file was taken for a socket")
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("the file is gone")
	}
}

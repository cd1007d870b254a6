package proof

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

var (
	stormClients = flag.Int("storm", 300, "TLS clients of TestStorm that come at the same time")
	stormBroken  = flag.Int("storm-broken", 40, "broken handshakes among them")
	stormTimed   = flag.Bool("storm-timed", false, "hold the latency of the clients that are in against its target")
)

const stormConfiguration = `
gateway: {id: storm, data_dir: %s, stop_timeout: 20s}
log: {level: warn}
admin: {address: "%s"}
mqtt:
  listeners:
    - {name: tcp, type: tcp, address: "%s"}
    - {name: tls, type: tls, address: "%s", tls: {cert_file: %s, key_file: %s, handshake_timeout: 3s}}
`

// TestStorm lets thousands of TLS clients come at once, some of which never end their handshake, while others publish: those
// who are in go on, all who can come in do, and when they have gone nothing of them stays.
func TestStorm(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for broken handshakes to be given up")
	}
	raiseFiles(t, uint64(2**stormClients+1000))
	dir := t.TempDir()
	cert := selfSigned(t, dir)
	secure := freeAddress(t)
	g := newGatewayWith(t, func(admin, mqtt string) string {
		return fmt.Sprintf(stormConfiguration, filepath.Join(dir, "data"), admin, mqtt, secure, cert, filepath.Join(dir, "key.pem"))
	})
	g.start()
	g.awaitReady()
	l := startLoad(t, fleet.Config{Broker: g.mqtt, TopicPrefix: "storm", Devices: 20, Rate: 500, Subscribers: 1, SubscriberQoS: 1})
	l.await("acknowledgements", func(s fleet.Snapshot) bool { return s.Acknowledged > 1000 })

	// One storm goes before: what it makes the process keep for the next is no leak.
	calm := func(d time.Duration) fleet.Latency {
		l.Snapshot()
		time.Sleep(d)
		return l.Snapshot().Ack
	}
	storm(t, g, secure, cert)
	settled(t, g)
	before := calm(3 * time.Second)
	base, err := g.vitals()
	if err != nil {
		t.Fatal(err)
	}
	l.Snapshot()
	took := storm(t, g, secure, cert)
	during := l.Snapshot().Ack
	after := settled(t, g)
	t.Logf("%d clients in %v; acknowledgement p99 %.1f ms before, %.1f ms during", *stormClients, took.Round(time.Millisecond), before.P99, during.P99)
	t.Logf("before: %v", base)
	t.Logf("after:  %v", after)
	if after.resident > base.resident*1.1+soakMemory {
		t.Errorf("memory grows from %.0f to %.0f bytes", base.resident, after.resident)
	}
	if after.goroutines > base.goroutines+soakGoroutines || after.descriptors > base.descriptors+soakDescriptors {
		t.Error("something of the storm stays")
	}
	if limit := 2 * before.P99; *stormTimed && during.P99 > limit {
		t.Errorf("p99 of the acknowledgements is %.1f ms during the storm, more than %.1f ms", during.P99, limit)
	}
	l.finish()
}

// storm returns how long it took until all clients were in. They are another process, which gets what processor time the gateway
// and those who measure leave: clients have machines of their own. They leave without a word.
func storm(t *testing.T, g *gateway, addr, cert string) time.Duration {
	t.Helper()
	// By nice, and not by setpriority afterwards: that is for one thread, and the runtime has started others by then.
	cmd := exec.Command("nice", "-n", "19", os.Args[0], "-test.run=^TestStormClients$", "-test.v", "-storm", fmt.Sprint(*stormClients), "-storm-broken", fmt.Sprint(*stormBroken))
	cmd.Env = append(os.Environ(), "FOREBAY_STORM="+addr, "FOREBAY_STORM_CERT="+cert)
	out := new(strings.Builder)
	cmd.Stderr = out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	told, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	took := time.Duration(0)
	for s := bufio.NewScanner(told); s.Scan(); {
		fmt.Fprintln(out, s.Text())
		if s.Text() == stormIn {
			took = time.Since(began)
			if v, err := g.vitals(); err != nil || v.connections < float64(*stormClients) {
				t.Errorf("the gateway counts %.0f connections: %v", v.connections, err)
			}
			in.Close()
		}
	}
	if err := cmd.Wait(); err != nil || took == 0 {
		t.Fatalf("the storm's clients: %v\n%s", err, out)
	}
	return took
}

const stormIn = "all clients are in"

// TestStormClients is the process that storm starts. It ends when its input does.
func TestStormClients(t *testing.T) {
	addr := os.Getenv("FOREBAY_STORM")
	if addr == "" {
		t.Skip("started by TestStorm")
	}
	raiseFiles(t, uint64(2**stormClients+1000))
	pem, err := os.ReadFile(os.Getenv("FOREBAY_STORM_CERT"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	conns := make([]net.Conn, *stormClients)
	var wg sync.WaitGroup
	broken := make(chan net.Conn, *stormBroken)
	every := max(1, *stormClients/max(1, *stormBroken))
	for i := range *stormClients {
		if i%every == 0 && i/every < *stormBroken {
			wg.Go(func() { broken <- breakOff(addr, i/every) })
		}
		wg.Go(func() {
			c, err := secureClient(addr, pool, i)
			if err != nil {
				t.Errorf("client %d: %v", i, err)
				return
			}
			conns[i] = c
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	fmt.Println(stormIn)
	_, _ = io.Copy(io.Discard, os.Stdin)
	for _, c := range conns {
		c.(*tls.Conn).NetConn().Close()
	}
	// Nobody waits for a broken handshake longer than handshake_timeout.
	close(broken)
	for c := range broken {
		if c == nil {
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(15 * time.Second))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a broken handshake is still open after 15 s")
		}
		c.Close()
	}
}

// breakOff begins a handshake and does not end it, in one of four ways. It returns the connection when it stays open.
func breakOff(addr string, way int) net.Conn {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil
	}
	switch way % 4 {
	case 0: // says nothing
		return c
	case 1: // no TLS
		_, _ = c.Write([]byte("\x10\x0c\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00"))
		return c
	case 2: // half a ClientHello
		_, _ = c.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 1, 2, 3})
		return c
	}
	_ = tls.Client(c, &tls.Config{ServerName: "nobody"}).Handshake() // does not trust the certificate
	c.Close()
	return nil
}

func secureClient(addr string, pool *x509.CertPool, n int) (net.Conn, error) {
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: 60 * time.Second}, Config: &tls.Config{RootCAs: pool, ServerName: "localhost"}}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	id := fmt.Sprintf("storm-%d", n)
	body := append([]byte("\x00\x04MQTT\x05\x02\x00\x00\x00"), byte(0), byte(len(id)))
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	_, err = c.Write(append([]byte{0x10, byte(len(body) + len(id))}, append(body, id...)...))
	var head [4]byte
	if err == nil {
		_, err = io.ReadFull(c, head[:])
	}
	if err == nil && (head[0] != 0x20 || head[3] != 0) {
		err = fmt.Errorf("CONNACK % x", head)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, c.SetDeadline(time.Time{})
}

// settled waits until the storm's connections are gone and the runtime has given back what they took.
func settled(t *testing.T, g *gateway) vitals {
	t.Helper()
	end := time.Now().Add(30 * time.Second)
	for {
		v, err := g.vitals()
		if err != nil {
			t.Fatal(err)
		}
		if v.connections < 40 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%.0f connections are still there", v.connections)
		}
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(3 * time.Second)
	v, err := g.vitals()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// selfSigned writes cert.pem, which it returns, and key.pem for localhost into dir.
func selfSigned(t *testing.T, dir string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"},
		DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "cert.pem")
}

// raiseFiles lets this process and the gateway have n open files.
func raiseFiles(t *testing.T, n uint64) {
	t.Helper()
	var have syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &have); err != nil {
		t.Fatal(err)
	}
	if have.Cur >= n {
		return
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: max(have.Max, n)}); err != nil {
		t.Skipf("%d open files: %v", n, err)
	}
}

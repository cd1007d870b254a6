package clients

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// guarded is a gateway with every way in, each on a listener of its own.
type guarded struct {
	t    *testing.T
	bin  string
	dir  string
	cmd  *exec.Cmd
	port map[string]string // by listener

	servers, devices *authority
	hookDown         atomic.Bool
}

func (g *guarded) file(name string) string { return filepath.Join(g.dir, name) }

func startGuarded(t *testing.T) *guarded {
	t.Helper()
	if testing.Short() {
		t.Skip("foreign clients and the real binary: left out by -short, run by make test-clients")
	}
	if _, err := exec.LookPath("mosquitto_pub"); err != nil {
		t.Fatal("mosquitto_pub is missing: apt-get install mosquitto-clients")
	}
	g := &guarded{t: t, dir: t.TempDir(), port: map[string]string{}}
	g.bin = build(t, g.dir)
	g.servers, g.devices = newAuthority(t, g.dir, "servers"), newAuthority(t, g.dir, "devices")
	g.servers.issue("gateway")
	g.devices.revoke("devices")
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case g.hookDown.Load():
			w.WriteHeader(http.StatusBadGateway)
		case bytes.Contains(body, []byte(`"password":"right"`)):
			_, _ = io.WriteString(w, `{"result":"allow"}`)
		default:
			_, _ = io.WriteString(w, `{"result":"deny"}`)
		}
	}))
	t.Cleanup(hook.Close)
	passwd := exec.Command(g.bin, "passwd", "set", g.file("users"), "ann")
	passwd.Stdin = strings.NewReader("right\n")
	run(t, passwd)
	writeFile(t, g.file("acl"), "allow all topic=#\n")
	addr := freePorts(t, 6)
	for i, name := range []string{"password", "certificate", "jwt", "http", "none"} {
		_, port, err := net.SplitHostPort(addr[i])
		if err != nil {
			t.Fatal(err)
		}
		g.port[name] = port
	}
	tls := func(more string) string {
		return fmt.Sprintf("tls: {cert_file: %s, key_file: %s%s}", g.file("gateway.crt"), g.file("gateway.key"), more)
	}
	text := fmt.Sprintf(`gateway: {data_dir: %s}
admin: {address: "%s"}
mqtt:
  certificate_reload_interval: 100ms
  listeners:
    - {name: password, type: tls, address: "%s", %s, auth: {methods: [password]}}
    - {name: certificate, type: tls, address: "%s", %s, auth: {methods: [certificate]}}
    - {name: jwt, type: tcp, address: "%s", auth: {methods: [jwt]}}
    - {name: http, type: tcp, address: "%s", auth: {methods: [http]}}
    - {name: none, type: tcp, address: "%s", auth: {methods: [anonymous]}}
  auth:
    methods: [password]
    reload_interval: 100ms
    throttle: {failures: 0}
    password: {file: %s, cache_ttl: 0s}
    jwt: {jwks_file: %s, issuer: shop, audience: [forebay], leeway: 0s}
    http: {url: "%s", cache_ttl: 0s, cached_for: 0s}
    acl: {file: %s}
`, g.file("data"), addr[5], addr[0], tls(""), addr[1], tls(fmt.Sprintf(", client_ca_file: %s, crl_file: %s", g.devices.file, g.file("devices.crl"))),
		addr[2], addr[3], addr[4], g.file("users"), g.file("jwks"), hook.URL, g.file("acl"))
	key := newKey(t)
	jwks(t, g.file("jwks"), key)
	g.cmd = serve(t, g.bin, g.dir, addr[5], text)
	claims := map[string]any{"sub": "ann", "iss": "shop", "aud": "forebay", "exp": time.Now().Add(time.Hour).Unix()}
	with := func(name string, v any) map[string]any {
		c := maps.Clone(claims)
		c[name] = v
		return c
	}
	for name, value := range map[string]string{
		"token": token(t, key, claims), "expired": token(t, key, with("exp", time.Now().Add(-time.Minute).Unix())),
		"audience": token(t, key, with("aud", "another")), "forged": token(t, newKey(t), claims),
		"short": token(t, key, with("exp", time.Now().Add(4*time.Second).Unix())),
	} {
		writeFile(t, g.file(name), value)
	}
	return g
}

// mosquitto is mosquitto_pub or mosquitto_sub for a listener.
func (g *guarded) mosquitto(program, listener, version string, args ...string) *exec.Cmd {
	args = append([]string{program, "-h", "localhost", "-p", g.port[listener], "-V", version, "-t", "t"}, args...)
	if listener == "password" || listener == "certificate" {
		args = append(args, "--cafile", g.servers.file)
	}
	return exec.Command("timeout", append([]string{"20", "stdbuf", "-oL"}, args...)...)
}

// pub publishes once, in both versions; refused is what it has to say for 5 and 3.1.1, or nothing.
func (g *guarded) pub(what, listener string, refused [2]string, args ...string) {
	g.t.Helper()
	for i, version := range []string{"5", "311"} {
		out, err := g.mosquitto("mosquitto_pub", listener, version, append(args, "-q", "1", "-m", what)...).CombinedOutput()
		switch {
		case refused[i] == "" && err != nil:
			g.t.Errorf("%s, MQTT %s: %v: %s", what, version, err, out)
		case refused[i] != "" && err == nil:
			g.t.Errorf("%s, MQTT %s: is let in", what, version)
		case !strings.Contains(strings.ToLower(string(out)), refused[i]):
			g.t.Errorf("%s, MQTT %s: %q, want %q", what, version, out, refused[i])
		}
	}
}

var (
	letIn         = [2]string{}
	badUser       = [2]string{"bad user name or password", "bad user name or password"}
	notAuthorised = [2]string{"not authori", "not authori"}
	unavailable   = [2]string{"unavailable", "unavailable"}
	noHandshake   = [2]string{"error", "error"} // what it says depends on the version of TLS
)

// Every way in, and each refusal of it, with Mosquitto's client.
func TestEveryWayInAndItsRefusals(t *testing.T) {
	g := startGuarded(t)
	g.pub("right password", "password", letIn, "-u", "ann", "-P", "right")
	g.pub("wrong password", "password", badUser, "-u", "ann", "-P", "wrong")
	g.pub("unknown user", "password", badUser, "-u", "bob", "-P", "right")
	g.pub("no password", "password", badUser, "-u", "ann")
	g.pub("nothing", "password", notAuthorised)
	g.pub("anonymous", "none", letIn)
	g.pub("a name that nobody vouches for", "none", badUser, "-u", "ann", "-P", "right")

	as := func(p pair) []string { return []string{"--cert", p.crt, "--key", p.keyf} }
	good, gone := g.devices.issue("good"), g.devices.issue("gone")
	expired := g.devices.issue("expired", func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	})
	server := g.devices.issue("server", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	stranger := newAuthority(t, g.dir, "strangers").issue("stranger")
	g.pub("certificate", "certificate", letIn, as(good)...)
	g.pub("certificate before its revocation", "certificate", letIn, as(gone)...)
	g.devices.revoke("devices", gone)
	time.Sleep(time.Second) // ten looks at the file
	g.pub("revoked certificate", "certificate", noHandshake, as(gone)...)
	g.pub("certificate beside a revoked one", "certificate", letIn, as(good)...)
	g.pub("expired certificate", "certificate", noHandshake, as(expired)...)
	g.pub("certificate of a server", "certificate", noHandshake, as(server)...)
	g.pub("certificate of another CA", "certificate", noHandshake, as(stranger)...)
	g.pub("no certificate", "certificate", noHandshake)

	tok := func(name string) []string { return []string{"-u", "x", "-P", read(t, g.file(name))} }
	g.pub("token", "jwt", letIn, tok("token")...)
	g.pub("expired token", "jwt", badUser, tok("expired")...)
	g.pub("token for another", "jwt", badUser, tok("audience")...)
	g.pub("token of another key", "jwt", badUser, tok("forged")...)

	g.pub("hook allows", "http", letIn, "-u", "ann", "-P", "right")
	g.pub("hook denies", "http", badUser, "-u", "ann", "-P", "wrong")
	g.hookDown.Store(true)
	g.pub("hook is down", "http", unavailable, "-u", "ann", "-P", "right")
	g.hookDown.Store(false)

	run(t, exec.Command(g.bin, "ban", "add", "--client", "press-*", "--for", "1h", "--config", g.file("forebay.yaml")))
	g.pub("banned", "none", [2]string{"banned", "not authori"}, "-i", "press-7")
	run(t, exec.Command(g.bin, "ban", "rm", "--client", "press-*", "--config", g.file("forebay.yaml")))
	g.pub("not banned any more", "none", letIn, "-i", "press-7")

	writeFile(t, g.file("acl"), "deny connect client=press-7\nallow all topic=#\n")
	run(t, exec.Command(g.bin, "reload", "--config", g.file("forebay.yaml")))
	g.pub("rules do not let it in", "none", notAuthorised, "-i", "press-7")
}

func read(t *testing.T, file string) string {
	t.Helper()
	out, err := exec.Command("cat", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// live is a mosquitto_sub that is running.
type live struct {
	cmd  *exec.Cmd
	out  lockedBuffer
	done chan error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// subscribe starts mosquitto_sub and waits until it has subscribed.
func (g *guarded) subscribe(listener string, args ...string) *live {
	g.t.Helper()
	l := &live{cmd: g.mosquitto("mosquitto_sub", listener, "5", append(args, "-d", "-q", "1")...), done: make(chan error, 1)}
	l.cmd.Args[1] = "60"
	l.cmd.Stdout, l.cmd.Stderr = &l.out, &l.out
	if err := l.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	go func() { l.done <- l.cmd.Wait() }()
	g.t.Cleanup(func() { _ = l.cmd.Process.Signal(syscall.SIGTERM) })
	g.see(l, "Subscribed")
	return l
}

func (g *guarded) see(l *live, want string) {
	g.t.Helper()
	for late := time.Now().Add(15 * time.Second); !strings.Contains(l.out.String(), want); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(late) {
			g.t.Fatalf("mosquitto_sub does not say %q:\n%s", want, l.out.String())
		}
	}
}

// What changes while clients are in counts for them: rules, bans, revocations, the end of a token. A renewal does not.
func TestChangesCountForLiveClients(t *testing.T) {
	g := startGuarded(t)
	ctl := func(args ...string) {
		t.Helper()
		run(t, exec.Command(g.bin, append(args, "--config", g.file("forebay.yaml"))...))
	}
	device, gone := g.devices.issue("device"), g.devices.issue("gone")
	stays := g.subscribe("certificate", "-i", "stays", "--cert", device.crt, "--key", device.keyf)
	revoked := g.subscribe("certificate", "-i", "revoked", "--cert", gone.crt, "--key", gone.keyf)
	token := g.subscribe("jwt", "-i", "token", "-u", "x", "-P", read(t, g.file("short")))
	banned := g.subscribe("none", "-i", "banned")
	ruled := g.subscribe("none", "-i", "ruled")
	g.see(token, "DISCONNECT") // 0xA0, four seconds after it was made
	g.devices.revoke("devices", gone)
	g.see(revoked, "DISCONNECT")
	ctl("ban", "add", "--client", "banned")
	g.see(banned, "DISCONNECT")
	writeFile(t, g.file("acl"), "deny subscribe topic=t client=ruled\nallow all topic=#\n")
	ctl("reload")
	g.pub("to who may read it", "none", letIn)
	g.see(stays, "to who may read it")
	if strings.Contains(ruled.out.String(), "to who may read it") || strings.Contains(ruled.out.String(), "DISCONNECT") {
		t.Errorf("rules that have changed:\n%s", ruled.out.String())
	}

	for i := range 30 { // certificate and key, the CA and its list, users, rules
		g.servers.issue("gateway")
		g.devices.revoke("devices", gone, g.devices.issue(fmt.Sprint("more", i)))
		writeFile(t, g.file("acl"), fmt.Sprintf("# %d\nallow all topic=#\n", i))
		if err := g.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		g.pub(fmt.Sprint("round ", i), "none", letIn)
		g.see(stays, fmt.Sprint("round ", i))
	}
	if out := stays.out.String(); strings.Count(out, "CONNACK") != 1 {
		t.Errorf("it had to connect again:\n%s", out)
	}
}

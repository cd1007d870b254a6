package mqtt_test

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forebay-gateway/forebay/mqtt"
	"github.com/forebay-gateway/forebay/mqtt/auth"
	"github.com/forebay-gateway/forebay/mqtt/mqtttest"
	"github.com/forebay-gateway/forebay/spool"
)

// guarded is a server with users and rules.
type guarded struct {
	*server
	srv   *mqtt.Server
	users string // file
	acl   string // file

	reg *prometheus.Registry
	log *logBuffer
}

// metric is the value of a counter or gauge, summed over its labels when label is empty.
func (g *guarded) metric(t *testing.T, name, label string) float64 {
	return (&secured{t: t, reg: g.reg}).metric(name, label)
}

// users that every guarded server has; the password of each is its name.
var guardedUsers = []string{"ann", "bob", "eve"}

// guard starts a server with methods password and scram and the rules given; "" is none.
func guard(t *testing.T, rules string, change ...func(*mqtt.Config)) *guarded {
	t.Helper()
	dir := t.TempDir()
	g := &guarded{server: newServer(filepath.Join(dir, "spool")), users: filepath.Join(dir, "users"), acl: filepath.Join(dir, "acl")}
	for _, user := range guardedUsers {
		g.setPassword(t, user, user)
	}
	g.cfg.Auth.Methods = []string{"password", "scram"}
	g.cfg.Auth.Password.File = g.users
	g.cfg.Auth.Throttle.Failures = 0
	g.cfg.Auth.ReloadInterval = 0 // tests say when
	if rules != "" {
		g.rules(t, rules)
		g.cfg.Auth.ACL.File = g.acl
	}
	for _, f := range change {
		f(&g.cfg)
	}
	if name := g.cfg.Audit.Stream; name != "" {
		own := spool.DefaultStreamConfig(name)
		own.Partitions = 1
		g.spool.Streams = append(g.spool.Streams, own)
	}
	g.start(t)
	t.Cleanup(func() { g.stop(t) })
	return g
}

func (g *guarded) start(t *testing.T) {
	t.Helper()
	log, err := spool.Open(g.spool, spool.Options{Now: g.now})
	if err != nil {
		t.Fatal(err)
	}
	g.reg, g.log = prometheus.NewRegistry(), &logBuffer{}
	g.srv, err = mqtt.New(t.Context(), g.cfg, mqtt.Options{
		Log: mqtt.SpoolLog(log), Now: g.now, Registerer: g.reg, Logger: slog.New(slog.NewTextHandler(g.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.srv.Listen(); err != nil {
		t.Fatal(err)
	}
	g.tcp, g.ws = g.srv.Addr("tcp"), g.srv.Addr("ws")
	done := make(chan error, 1)
	go func() { done <- g.srv.Run(context.Background()) }()
	g.stop = func(t testing.TB) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := g.srv.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		if err := log.Close(); err != nil {
			t.Errorf("close spool: %v", err)
		}
		g.stop = func(testing.TB) {}
	}
}

func (g *guarded) setPassword(t *testing.T, user, password string) {
	t.Helper()
	_, err := auth.SetPassword(g.users, auth.PasswordChange{
		User: user, Password: []byte(password), Hash: true, Scram: true, Iterations: 4096,
		Params: auth.HashParams{Memory: 64, Time: 1, Threads: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// rules writes the ACL.
func (g *guarded) rules(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(g.acl, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reload writes the ACL, unless it is "", and makes the server read everything.
func (g *guarded) reload(t *testing.T, rules string) {
	t.Helper()
	if rules != "" {
		g.rules(t, rules)
	}
	if err := g.srv.ReloadAuth(); err != nil {
		t.Fatal(err)
	}
}

// as is a CONNECT of a user with the right password; the client ID is the user's name.
func as(user string) mqtttest.Connect {
	return mqtttest.Connect{ID: user, UserName: user, Password: user}
}

// refused connects and expects a refusal: the reason code of MQTT 5 and the return code of 3.1.1.
func (g *guarded) refused(t *testing.T, o mqtttest.Connect, reason, returnCode byte) {
	t.Helper()
	for version, want := range map[byte]byte{5: reason, 4: returnCode} {
		o.Version = version
		if version == 4 && o.UserName == "" {
			o.Password = "" // has no password without a user name
		}
		c := g.dial(t)
		c.SendConnect(o)
		pk := c.ExpectConnack(want)
		if pk.Properties.ReasonString != "" && o.Will == nil {
			t.Errorf("the refusal says why: %q", pk.Properties.ReasonString)
		}
	}
}

// dropped is how many messages were dropped for a reason.
func (g *guarded) dropped(reason string) uint64 { return g.srv.Stats().Dropped[reason] }

// scramClient is the client's side of SCRAM-SHA-256 (RFC 5802), written for these tests alone.
type scramClient struct{ user, password, bare, server string }

func (s *scramClient) first() []byte {
	s.bare = "n=" + s.user + ",r=clientnonce"
	return []byte("n,," + s.bare)
}

func (s *scramClient) final(t testing.TB, challenge []byte) []byte {
	t.Helper()
	attr := map[string]string{}
	for part := range strings.SplitSeq(string(challenge), ",") {
		key, value, _ := strings.Cut(part, "=")
		attr[key] = value
	}
	salt, err := base64.StdEncoding.DecodeString(attr["s"])
	if err != nil || !strings.HasPrefix(attr["r"], "clientnonce") {
		t.Fatalf("challenge %q", challenge)
	}
	n, _ := strconv.Atoi(attr["i"])
	salted, err := pbkdf2.Key(sha256.New, s.password, salt, n, 32)
	if err != nil {
		t.Fatal(err)
	}
	sum := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	clientKey := sum(salted, "Client Key")
	stored := sha256.Sum256(clientKey)
	without := "c=biws,r=" + attr["r"]
	message := s.bare + "," + string(challenge) + "," + without
	proof := make([]byte, 32)
	subtle.XORBytes(proof, clientKey, sum(stored[:], message))
	s.server = "v=" + base64.StdEncoding.EncodeToString(sum(sum(salted, "Server Key"), message))
	return []byte(without + ",p=" + base64.StdEncoding.EncodeToString(proof))
}

// authProperties is an authentication method with its data, as mqtttest notates it.
func authProperties(method string, data []byte) string {
	props := `15 s"` + method + `"`
	if data != nil {
		props += ` 16 s"` + string(data) + `"`
	}
	return props
}

func sendAuth(c *mqtttest.Client, reason string, data []byte) {
	c.Send(`f0 len ` + reason + ` [ ` + authProperties(auth.ScramSHA256, data) + ` ]`)
}

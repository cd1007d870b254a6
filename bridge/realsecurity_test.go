package bridge

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/forebay-gateway/forebay/bridge/kafka"
	"github.com/forebay-gateway/forebay/bridge/kafkatest"
)

const rightPassword, wrongPassword = "right-Secret-1", "wrong-Secret-2"

// secureBed is a broker with TLS and logins, and what a gateway needs to get in.
type secureBed struct {
	t       *testing.T
	c       *kafkatest.Cluster
	ca      *kafkatest.Authority
	server  string // the broker's key and chain
	trusted string // the CAs of client certificates
}

func newSecureBed(t *testing.T) *secureBed {
	ca := kafkatest.NewAuthority(t)
	b := &secureBed{t: t, ca: ca, server: ca.Server(time.Now().Add(time.Hour)), trusted: filepath.Join(t.TempDir(), "trusted.pem")}
	b.write(b.trusted, ca.CA())
	b.c = kafkatest.Start(t, kafkatest.Options{Secure: &kafkatest.Secure{
		ServerFile: b.server, ClientCA: b.trusted, Users: map[string]string{"gateway": rightPassword},
	}})
	return b
}

func (b *secureBed) write(file string, data []byte) {
	b.t.Helper()
	if err := os.WriteFile(file+".new", data, 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		b.t.Fatal(err)
	}
}

// secret makes a file.
func (b *secureBed) secret(t *testing.T, content string) string {
	file := filepath.Join(t.TempDir(), "secret")
	b.write(file, []byte(content+"\n"))
	return file
}

// login is an upstream that logs in over TLS.
func (b *secureBed) login(sasl kafka.SASLConfig) kafka.Config {
	return kafka.Config{
		Name: "main", Brokers: []string{b.c.Node(0).SecureAddr(kafkatest.SASLSSL)}, SASL: sasl,
		TLS: kafka.TLSConfig{Enabled: true, CAFile: b.ca.CAFile()},
	}
}

// mutual is an upstream whose TLS certificate says who it is.
func (b *secureBed) mutual(t *testing.T, ca *kafkatest.Authority, notAfter time.Time) kafka.Config {
	dir := t.TempDir()
	up := kafka.Config{Name: "main", Brokers: []string{b.c.Node(0).SecureAddr(kafkatest.SSL)}, TLS: kafka.TLSConfig{
		Enabled: true, CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
	}}
	cert, key := ca.Issue("gateway", notAfter)
	b.write(up.TLS.CAFile, b.ca.CA())
	b.write(up.TLS.CertFile, cert)
	b.write(up.TLS.KeyFile, key)
	return up
}

// secureRig is a bridge to a secureBed that counts its connections and keeps its log.
type secureRig struct {
	*realRig
	dials atomic.Int64
	said  safeBuffer
}

func (b *secureBed) rig(t *testing.T, up kafka.Config, route RouteConfig) *secureRig {
	t.Helper()
	r := &secureRig{realRig: &realRig{rig: &rig{t: t, log: newMemLog(map[string]int{"default": 2, "dead": 1}), next: make(map[string]int)}}}
	r.brokers = b.c.Brokers()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.brokers...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	r.admin = kadm.NewClient(cl)
	r.grant()
	r.create(route.Topic, 2, nil)
	route.Name = "all"
	cfg := Config{Upstreams: []kafka.Config{up}, Routes: []RouteConfig{route}, DeadLetterStream: "dead"}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context, network, host string) (net.Conn, error) {
		r.dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, host)
	}
	r.b, err = New(t.Context(), cfg, Options{
		Log: r.log, GatewayID: "gw1", Dial: dial,
		Logger: slog.New(slog.NewTextHandler(&r.said, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.ran = make(chan struct{})
	go func() {
		defer close(r.ran)
		if err := r.b.Run(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(r.stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the gateway's log:\n%s", r.said.String())
		}
		if s := r.said.String(); strings.Contains(s, rightPassword) || strings.Contains(s, wrongPassword) {
			t.Error("a secret is in the log")
		}
	})
	return r
}

// grant gives the gateway the rights that docs/UPSTREAMS.md lists, and no other.
func (r *secureRig) grant() {
	r.t.Helper()
	who := func() *kadm.ACLBuilder { return kadm.NewACLs().Allow("User:gateway", "User:CN=gateway").AllowHosts() }
	for _, acl := range []*kadm.ACLBuilder{
		who().ResourcePatternType(kmsg.ACLResourcePatternTypePrefixed).Topics("secure.").
			Operations(kmsg.ACLOperationWrite, kmsg.ACLOperationRead, kmsg.ACLOperationDescribeConfigs),
		who().ResourcePatternType(kmsg.ACLResourcePatternTypeLiteral).Topics("forebay.positions").
			Operations(kmsg.ACLOperationWrite, kmsg.ACLOperationRead, kmsg.ACLOperationCreate, kmsg.ACLOperationDescribeConfigs),
		who().ResourcePatternType(kmsg.ACLResourcePatternTypePrefixed).TransactionalIDs("forebay/gw1/").
			Operations(kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe),
	} {
		results, err := r.admin.CreateACLs(r.t.Context(), acl)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, res := range results {
			if res.Err != nil {
				r.t.Fatal(res.Err, res.ErrMessage)
			}
		}
	}
}

// delivers publishes and waits until everything has arrived, once and in order.
func (r *secureRig) delivers(topic string) {
	r.t.Helper()
	r.publish(oneTopic("a/b"), 10, 20)
	r.drained(30 * time.Second)
	r.exact(topic)
}

func (r *secureRig) exact(topic string) {
	r.t.Helper()
	if got := r.tally(r.read(topic)); got != (tally{}) {
		r.t.Errorf("records %+v, want every one once and in order", got)
	}
}

// refused waits until health names the reason and part of the hint, and the log too.
func (r *secureRig) refused(reason, hint string) {
	r.t.Helper()
	r.until("named as "+reason, 10*time.Second, func() bool {
		h := r.b.Upstreams()[0]
		return h.Reason == reason && strings.Contains(h.Hint, hint) && strings.Contains(r.said.String(), "reason="+reason)
	})
}

// calm counts connections for ten seconds.
func (r *secureRig) calm(most int64) {
	r.t.Helper()
	before := r.dials.Load()
	time.Sleep(10 * time.Second)
	n := r.dials.Load() - before
	r.t.Logf("%d connections in 10 s", n)
	if n > most {
		r.t.Errorf("%d connections in 10 s with credentials that are refused, want at most %d", n, most)
	}
}

func TestKafkaSecurity(t *testing.T) {
	b := newSecureBed(t)
	hour := time.Now().Add(time.Hour)
	password := b.secret(t, rightPassword)

	t.Run("logins", func(t *testing.T) {
		t.Run("a token that ends while nothing is sent", func(t *testing.T) {
			t.Parallel()
			tokens := newTokenServer(t, time.Minute)
			r := b.rig(t, b.login(tokens.config(b.secret(t, rightPassword))), RouteConfig{Topic: "secure.oauth"})
			r.delivers("secure.oauth")
			dials := r.dials.Load()
			time.Sleep(75 * time.Second)
			if h := r.b.Upstreams()[0]; !h.Down.IsZero() {
				t.Errorf("down: %+v", h)
			}
			r.delivers("secure.oauth")
			if n := tokens.issued.Load(); n < 2 || n > 10 {
				t.Errorf("%d tokens, want some more than one", n)
			}
			if n := r.dials.Load(); n != dials {
				t.Errorf("%d connections where %d were open: the session was not renewed in place", n, dials)
			}
		})
		for _, m := range []string{kafka.Plain, kafka.ScramSHA256, kafka.ScramSHA512} {
			t.Run(m, func(t *testing.T) {
				topic := "secure." + m
				b.rig(t, b.login(kafka.SASLConfig{Mechanism: m, User: "gateway", PasswordFile: password}), RouteConfig{Topic: topic}).delivers(topic)
			})
		}
		t.Run("client certificate", func(t *testing.T) {
			b.rig(t, b.mutual(t, b.ca, hour), RouteConfig{Topic: "secure.mtls"}).delivers("secure.mtls")
		})
		t.Run("exactly once with the least rights", func(t *testing.T) {
			up := b.login(kafka.SASLConfig{Mechanism: kafka.ScramSHA512, User: "gateway", PasswordFile: password})
			b.rig(t, up, RouteConfig{Topic: "secure.exactly", Delivery: ExactlyOnce}).delivers("secure.exactly")
		})
		t.Run("token from a file", func(t *testing.T) {
			up := b.login(kafka.SASLConfig{Mechanism: kafka.OAuthBearer, OAuth: kafka.OAuthConfig{TokenFile: b.secret(t, token(time.Hour))}})
			b.rig(t, up, RouteConfig{Topic: "secure.tokenfile"}).delivers("secure.tokenfile")
		})
		t.Run("wrong password, then the right one", func(t *testing.T) {
			for _, m := range []string{kafka.Plain, kafka.ScramSHA256} {
				file, topic := b.secret(t, wrongPassword), "secure.wrong-"+m
				r := b.rig(t, b.login(kafka.SASLConfig{Mechanism: m, User: "gateway", PasswordFile: file}), RouteConfig{Topic: topic})
				r.publish(oneTopic("a/b"), 10, 20)
				r.refused("authentication", "refuses the user")
				r.calm(6)
				b.write(file, []byte(rightPassword))
				r.delivers(topic)
			}
		})
		t.Run("wrong client secret, then the right one", func(t *testing.T) {
			tokens, file := newTokenServer(t, time.Minute), b.secret(t, wrongPassword)
			r := b.rig(t, b.login(tokens.config(file)), RouteConfig{Topic: "secure.wrong-token"})
			r.publish(oneTopic("a/b"), 10, 20)
			r.refused("token", "client secret")
			b.write(file, []byte(rightPassword))
			r.delivers("secure.wrong-token")
		})
		t.Run("wrong CA", func(t *testing.T) {
			up := b.login(kafka.SASLConfig{Mechanism: kafka.Plain, User: "gateway", PasswordFile: password})
			up.TLS.CAFile = kafkatest.NewAuthority(t).CAFile()
			b.rig(t, up, RouteConfig{Topic: "secure.ca"}).refused("tls", "not trusted")
		})
		t.Run("client certificate that has expired", func(t *testing.T) {
			up := b.mutual(t, b.ca, time.Now().Add(-time.Hour))
			b.rig(t, up, RouteConfig{Topic: "secure.expired"}).refused("tls", "refuses our side")
		})
	})

	t.Run("everything rotated under load", func(t *testing.T) {
		up := b.mutual(t, b.ca, hour)
		r := b.rig(t, up, RouteConfig{Topic: "secure.rotated"})
		stop := r.load(oneTopic("a/b"), 10)
		sent := func(what string) {
			t.Helper()
			before := r.b.Stats()[0].Sent
			r.until(what, 40*time.Second, func() bool { return r.b.Stats()[0].Sent > before+500 })
		}
		restart := func() {
			t.Helper()
			b.c.Node(0).Stop()
			if err := b.c.Node(0).Start(); err != nil {
				t.Fatal(err)
			}
		}
		sent("delivers")
		next := kafkatest.NewAuthority(t)
		cert, key := next.Issue("gateway", hour)
		b.write(up.TLS.CAFile, next.CA())
		b.write(up.TLS.CertFile, cert)
		b.write(up.TLS.KeyFile, key)
		sent("delivers over the old connections")
		server := func(notAfter time.Time) {
			t.Helper()
			data, err := os.ReadFile(next.Server(notAfter))
			if err != nil {
				t.Fatal(err)
			}
			b.write(b.server, data)
			restart()
		}
		b.write(b.trusted, next.CA())
		server(hour)
		sent("delivers with the new certificates")
		server(time.Now().Add(-time.Hour))
		r.refused("tls", "expired")
		server(hour)
		sent("delivers with the renewed certificate")
		stop()
		r.drained(30 * time.Second)
		r.exact("secure.rotated")
	})
}

// tokenServer is a token endpoint: client credentials for tokens without a signature.
type tokenServer struct {
	*httptest.Server
	issued atomic.Int64
}

func newTokenServer(t *testing.T, life time.Duration) *tokenServer {
	s := new(tokenServer)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if id, secret, _ := req.BasicAuth(); id != "forebay" || secret != rightPassword || req.FormValue("audience") != "kafka" {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"invalid_client"}`)
			return
		}
		s.issued.Add(1)
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":%d}`, token(life), int(life.Seconds()))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *tokenServer) config(secretFile string) kafka.SASLConfig {
	return kafka.SASLConfig{Mechanism: kafka.OAuthBearer, OAuth: kafka.OAuthConfig{
		TokenURL: s.URL + "/token", ClientID: "forebay", ClientSecretFile: secretFile, Params: []string{"audience=kafka"},
	}}
}

func token(life time.Duration) string {
	part := func(v any) string {
		b, _ := json.Marshal(v)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	now := time.Now()
	return part(map[string]string{"alg": "none"}) + "." +
		part(map[string]any{"sub": "gateway", "iat": now.Unix(), "exp": now.Add(life).Unix()}) + "."
}

// safeBuffer is written and read at the same time.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

package kafka

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/forebay-gateway/forebay/bridge/kafkatest"
)

func TestSecurityConfigFaultsNameTheirKey(t *testing.T) {
	f := func(want string, change func(*Config)) {
		t.Helper()
		c := Config{Name: "main", Brokers: []string{"a:1"}}
		change(&c)
		err := c.Validate()
		switch {
		case want == "" && err != nil:
			t.Errorf("%v, want no fault", err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%v, want %s", err, want)
		}
	}
	f("tls.ca_file: is set, and tls.enabled is not", func(c *Config) { c.TLS.CAFile = "x" })
	f("tls.cert_file: goes together", func(c *Config) { c.TLS = TLSConfig{Enabled: true, CertFile: "x"} })
	f("", func(c *Config) { c.TLS.Enabled = true })
	f("sasl.mechanism: is missing", func(c *Config) { c.SASL.User = "x" })
	f("sasl.mechanism: \"gssapi\" is none of", func(c *Config) { c.SASL.Mechanism = "gssapi" })
	f("sasl.user: is missing", func(c *Config) { c.SASL = SASLConfig{Mechanism: Plain, PasswordFile: "x"} })
	f("sasl.password_file: want one of", func(c *Config) { c.SASL = SASLConfig{Mechanism: Plain, User: "x"} })
	f("sasl.password_file: want one of", func(c *Config) {
		c.SASL = SASLConfig{Mechanism: ScramSHA256, User: "x", PasswordFile: "x", PasswordEnv: "X"}
	})
	f("", func(c *Config) { c.SASL = SASLConfig{Mechanism: ScramSHA512, User: "x", PasswordEnv: "X"} })
	f("sasl.password_env: FOREBAY_X would be taken", func(c *Config) {
		c.SASL = SASLConfig{Mechanism: ScramSHA512, User: "x", PasswordEnv: "FOREBAY_X"}
	})
	f("sasl.user: aws_msk_iam has no use", func(c *Config) { c.SASL = SASLConfig{Mechanism: AWSMSKIAM, User: "x"} })
	f("sasl.oauth: plain has no use", func(c *Config) {
		c.SASL = SASLConfig{Mechanism: Plain, User: "x", PasswordEnv: "X", OAuth: OAuthConfig{ClientID: "x"}}
	})
	f("sasl.aws_credentials_file: plain has no use", func(c *Config) {
		c.SASL = SASLConfig{Mechanism: Plain, User: "x", PasswordEnv: "X", AWSCredentialsFile: "x"}
	})
	oauth := func(change func(*OAuthConfig)) func(*Config) {
		return func(c *Config) {
			c.SASL = SASLConfig{Mechanism: OAuthBearer, OAuth: OAuthConfig{TokenURL: "https://a/t", ClientID: "x", ClientSecretEnv: "X"}}
			change(&c.SASL.OAuth)
		}
	}
	f("", oauth(func(*OAuthConfig) {}))
	f("sasl.oauth.token_file: want one of", oauth(func(c *OAuthConfig) { c.TokenURL = "" }))
	f("sasl.oauth.token_file: has no use", oauth(func(c *OAuthConfig) { c.TokenURL, c.TokenFile = "", "x" }))
	f("sasl.oauth.token_url: sends the client secret in clear", oauth(func(c *OAuthConfig) { c.TokenURL = "http://a/t" }))
	f("", oauth(func(c *OAuthConfig) { c.TokenURL = "http://127.0.0.1:1/t" }))
	f("sasl.oauth.token_url: holds a user", oauth(func(c *OAuthConfig) { c.TokenURL = "https://a:b@c/t" }))
	f("sasl.oauth.client_id: is missing", oauth(func(c *OAuthConfig) { c.ClientID = "" }))
	f("sasl.oauth.client_secret_file: want one of", oauth(func(c *OAuthConfig) { c.ClientSecretEnv = "" }))
	f("sasl.oauth.params[0]: want key=value", oauth(func(c *OAuthConfig) { c.Params = []string{"x"} }))
	f("sasl.oauth.extensions: auth is", oauth(func(c *OAuthConfig) { c.Extensions = []string{"auth=x"} }))
}

func TestHalfWrittenTLSFilesKeepTheOldOnesInForce(t *testing.T) {
	ca, dir := kafkatest.NewAuthority(t), t.TempDir()
	cert, key := ca.Issue("gateway", time.Now().Add(time.Hour))
	file := func(name string, data []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	files := &tlsFiles{log: slog.New(slog.DiscardHandler), cfg: TLSConfig{
		Enabled: true, CAFile: ca.CAFile(), CertFile: file("cert", cert), KeyFile: file("key", key),
	}}
	shown := func() string {
		t.Helper()
		cfg, _ := files.look()
		if cfg == nil {
			t.Fatal("nothing is in use")
		}
		c, err := cfg.GetClientCertificate(new(tls.CertificateRequestInfo))
		if err != nil {
			t.Fatal(err)
		}
		return string(c.Certificate[0])
	}
	old := shown()
	newCert, newKey := ca.Issue("gateway", time.Now().Add(2*time.Hour))
	file("cert", newCert)
	if got := shown(); got != old {
		t.Error("a certificate without its key is in use")
	}
	if _, err := files.look(); err == nil || !strings.Contains(err.Error(), "tls.cert_file") {
		t.Errorf("fault %v, want one that names tls.cert_file", err)
	}
	file("key", newKey)
	if got := shown(); got == old {
		t.Error("the new pair is not in use")
	}
	if err := os.Remove(files.cfg.KeyFile); err != nil {
		t.Fatal(err)
	}
	if shown(); files.fault == nil {
		t.Error("a file that is gone is no fault")
	}
}

func TestRefusedLoginsAreTriedLessAndLessUntilTheSecretChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "password")
		write := func(s string) {
			t.Helper()
			if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("old")
		l := &login{sasl: SASLConfig{Mechanism: Plain, User: "u", PasswordFile: file}, tokens: new(tokens), now: time.Now}
		told := 0
		l.tell = func(error) { told++ }
		tried := 0
		dial := l.dialer(func(context.Context, string, string) (net.Conn, error) {
			tried++
			return nil, fmt.Errorf("sasl: %w", kerr.SaslAuthenticationFailed)
		})
		try := func(span time.Duration) int {
			before := tried
			for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				for range 3 {
					_, err := dial(t.Context(), "tcp", "a:1")
					if reason, _ := ConnectionReason(err); reason != "authentication" {
						t.Fatalf("%v has the reason %s", err, reason)
					}
					l.outcome(err)
				}
			}
			return tried - before
		}
		if n := try(10 * time.Second); n > 8 {
			t.Errorf("%d tries in the first 10 s", n)
		}
		try(time.Minute)
		if n := try(10 * time.Minute); n < 20 || n > 41 {
			t.Errorf("%d tries in ten minutes, want one each 15 to 30 s", n)
		}
		write("new")
		if n := try(100 * time.Millisecond); n == 0 {
			t.Error("the new password is not tried at once")
		}
		if told != 2 {
			t.Errorf("told %d times of two passwords that are refused", told)
		}
		l.outcome(nil)
		if err := l.held(); err != nil {
			t.Errorf("held after a login that was accepted: %v", err)
		}
		l.outcome(errors.New("connection reset"))
		if err := l.held(); err != nil {
			t.Errorf("held for a fault of the network: %v", err)
		}
	})
}

func TestTokensAreFetchedAgainBeforeTheyEndAndWhenTheyAreRefused(t *testing.T) {
	issued, status := 0, http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if status != http.StatusOK {
			fmt.Fprint(w, `{"error":"invalid_client","hidden":"SECRET"}`)
			return
		}
		issued++
		fmt.Fprintf(w, `{"access_token":"t%d","token_type":"Bearer","expires_in":100}`, issued)
	}))
	defer server.Close()
	t.Setenv("TOKEN_TEST_SECRET", "s")
	now := time.Now()
	s := &tokens{now: func() time.Time { return now }, cfg: OAuthConfig{
		TokenURL: server.URL, ClientID: "c", ClientSecretEnv: "TOKEN_TEST_SECRET", Extensions: []string{"logicalCluster=lkc-1"},
	}}
	f := func(after time.Duration, want string) {
		t.Helper()
		now = now.Add(after)
		auth, err := s.auth(t.Context())
		if err != nil || auth.Token != want || auth.Extensions["logicalCluster"] != "lkc-1" {
			t.Errorf("%q %v %v, want %s", auth.Token, auth.Extensions, err, want)
		}
	}
	f(0, "t1")
	f(70*time.Second, "t1")
	f(20*time.Second, "t2") // a fifth of its life is left
	s.forget()
	f(0, "t3")
	t.Setenv("TOKEN_TEST_SECRET", "s2")
	f(0, "t4")
	s.forget()
	status = http.StatusUnauthorized
	_, err := s.auth(t.Context())
	if reason, _ := ConnectionReason(err); reason != "token" || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("%v, reason %s: want token, and not the endpoint's answer", err, reason)
	}
}

func TestMSKLoginsAreSignedWithTheKeyOfTheMoment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	m := SASLConfig{Mechanism: AWSMSKIAM, AWSCredentialsFile: file}.mechanism(nil)
	sign := func() (map[string]string, error) {
		_, msg, err := m.Authenticate(t.Context(), "b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com:9098")
		signed := make(map[string]string)
		if err == nil {
			err = json.Unmarshal(msg, &signed)
		}
		return signed, err
	}
	_, err := sign()
	if reason, _ := ConnectionReason(err); reason != "credentials" {
		t.Errorf("without a file: %v, reason %s", err, reason)
	}
	for _, id := range []string{"AKIDFIRST", "AKIDSECOND"} {
		text := "[default]\naws_access_key_id = " + id + "\naws_secret_access_key = secret\naws_session_token = session\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		signed, err := sign()
		if err != nil {
			t.Fatal(err)
		}
		if c := signed["x-amz-credential"]; !strings.HasPrefix(c, id+"/") || !strings.Contains(c, "/eu-central-1/kafka-cluster/aws4_request") {
			t.Errorf("signed as %q, want %s", c, id)
		}
		if signed["x-amz-security-token"] != "session" || len(signed["x-amz-signature"]) != 64 {
			t.Errorf("signed %v", signed)
		}
	}
}

package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

const (
	tokenTimeout = 10 * time.Second // for one request to the token endpoint
	maxTokenText = 200              // of the endpoint's own words in an error
)

// tokenError means that the token endpoint gave no token.
type tokenError struct{ err error }

func (e *tokenError) Error() string { return "token endpoint: " + e.err.Error() }
func (e *tokenError) Unwrap() error { return e.err }

// tokens fetches tokens and keeps one for the connections that come while it is good.
type tokens struct {
	cfg OAuthConfig
	now func() time.Time

	mu     sync.Mutex
	token  string
	until  time.Time // a new one is fetched from here on
	secret string    // that source was made with
	source *clientcredentials.Config
}

// auth is called for each login. The broker ends a session with its token (connections.max.reauth.ms), also that of an idle
// connection; the client logs in again before.
func (t *tokens) auth(ctx context.Context) (oauth.Auth, error) {
	extensions, err := pairs(t.cfg.Extensions)
	if err != nil {
		return oauth.Auth{}, err
	}
	token, err := t.get(ctx)
	return oauth.Auth{Token: token, Extensions: extensions}, err
}

func (t *tokens) get(ctx context.Context) (string, error) {
	if t.cfg.TokenFile != "" {
		return secret("sasl.oauth.token", t.cfg.TokenFile, "")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	secret, err := t.cfg.clientSecret()
	if err != nil {
		return "", err
	}
	if t.token != "" && secret == t.secret && t.now().Before(t.until) {
		return t.token, nil
	}
	if t.source == nil || secret != t.secret {
		params := make(url.Values)
		m, err := pairs(t.cfg.Params)
		if err != nil {
			return "", err
		}
		for k, v := range m {
			params.Set(k, v)
		}
		t.secret, t.token = secret, ""
		t.source = &clientcredentials.Config{
			ClientID: t.cfg.ClientID, ClientSecret: secret, TokenURL: t.cfg.TokenURL, Scopes: t.cfg.Scopes, EndpointParams: params,
		}
	}
	client, err := t.cfg.httpClient()
	if err != nil {
		return "", err
	}
	defer client.CloseIdleConnections() // the next token is minutes away
	got, err := t.source.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	if err != nil {
		return "", &tokenError{wording(err)}
	}
	t.token = got.AccessToken
	// A fifth of its life is left when it goes to a new connection. Without a word about its life it is used once.
	t.until = t.now()
	if !got.Expiry.IsZero() {
		t.until = t.until.Add(got.Expiry.Sub(t.until) * 4 / 5)
	}
	return t.token, nil
}

// forget drops the token: a broker has refused it.
func (t *tokens) forget() {
	t.mu.Lock()
	t.token = ""
	t.mu.Unlock()
}

func (c OAuthConfig) clientSecret() (string, error) {
	return secret("sasl.oauth.client_secret", c.ClientSecretFile, c.ClientSecretEnv)
}

// httpClient follows no redirect: the secret goes where the operator said.
func (c OAuthConfig) httpClient() (*http.Client, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if c.CAFile != "" {
		data, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, &secretError{fmt.Errorf("sasl.oauth.ca_file: %w", err)}
		}
		pool, err := parseCAs(data)
		if err != nil {
			return nil, &secretError{fmt.Errorf("sasl.oauth.ca_file: %s: %w", c.CAFile, err)}
		}
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	}
	return &http.Client{Transport: t, Timeout: tokenTimeout, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}, nil
}

// wording leaves the body of the answer out: nobody knows what an endpoint puts into it.
func wording(err error) error {
	r, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok {
		return err
	}
	text := r.ErrorCode
	if r.ErrorDescription != "" {
		text += ": " + r.ErrorDescription
	}
	if len(text) > maxTokenText {
		text = text[:maxTokenText]
	}
	status := "no answer"
	if r.Response != nil {
		status = r.Response.Status
	}
	if text == "" {
		return errors.New(status)
	}
	return fmt.Errorf("%s: %s", status, text)
}

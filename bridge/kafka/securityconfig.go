package kafka

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

// TLSConfig is how connections to the brokers are encrypted.
type TLSConfig struct {
	// Connect with TLS, 1.2 or newer. The brokers' certificates and names are always verified.
	Enabled bool `yaml:"enabled"`

	// CAs that the brokers' certificates are verified with (PEM). Without it, those of the system. This file, cert_file and key_file
	// are read again for each new connection; open connections stay.
	CAFile string `yaml:"ca_file"`

	// Certificate that is shown to the brokers (PEM, with its chain), for listeners that ask for one (mTLS).
	CertFile string `yaml:"cert_file"`

	// Key of cert_file (PEM, without a passphrase).
	KeyFile string `yaml:"key_file"`

	// Name that the brokers' certificates have to have, when it is not the host in their address.
	ServerName string `yaml:"server_name"`
}

// SASLConfig is how the gateway logs in. Secrets stand in files or in the environment, never here; files are read again for each
// login.
type SASLConfig struct {
	// plain, scram-sha-256, scram-sha-512, oauthbearer or aws_msk_iam. Without it there is no login.
	Mechanism string `yaml:"mechanism"`

	// User of plain and scram.
	User string `yaml:"user"`

	// File with the password; a line break at its end does not count.
	PasswordFile string `yaml:"password_file"`

	// Environment variable with the password, instead of password_file; its name does not begin with FOREBAY_.
	PasswordEnv string `yaml:"password_env"`

	// Tokens of oauthbearer.
	OAuth OAuthConfig `yaml:"oauth"`

	// AWS access key file of aws_msk_iam, in the format of ~/.aws/credentials, profile default or AWS_PROFILE. Without it, the key
	// is looked for where AWS tools do: environment, files in the home directory, the identity of the machine or pod.
	AWSCredentialsFile string `yaml:"aws_credentials_file"`
}

// OAuthConfig is where tokens come from: from a file, or from a token endpoint with client credentials.
type OAuthConfig struct {
	// File with a token that something else keeps fresh, such as a projected service account token.
	TokenFile string `yaml:"token_file"`

	// Token endpoint, https://; http:// only on this machine.
	TokenURL string `yaml:"token_url"`

	// Client ID at the token endpoint.
	ClientID string `yaml:"client_id"`

	// File with the client secret; a line break at its end does not count.
	ClientSecretFile string `yaml:"client_secret_file"`

	// Environment variable with the client secret, instead of client_secret_file; its name does not begin with FOREBAY_.
	ClientSecretEnv string `yaml:"client_secret_env"`

	// Scopes that are asked for.
	Scopes []string `yaml:"scopes"`

	// More parameters of the token request, key=value each, such as audience=kafka.
	Params []string `yaml:"params"`

	// SASL extensions that are sent with the token, key=value each, such as logicalCluster=lkc-1234 for Confluent Cloud.
	Extensions []string `yaml:"extensions"`

	// CAs that the token endpoint is verified with (PEM). Without it, those of the system.
	CAFile string `yaml:"ca_file"`
}

// The mechanisms of SASLConfig.
const (
	Plain       = "plain"
	ScramSHA256 = "scram-sha-256"
	ScramSHA512 = "scram-sha-512"
	OAuthBearer = "oauthbearer"
	AWSMSKIAM   = "aws_msk_iam"
)

type faultFunc = func(format string, args ...any)

func (c TLSConfig) validate(fault faultFunc) {
	if !c.Enabled {
		for key, v := range map[string]string{"ca_file": c.CAFile, "cert_file": c.CertFile, "key_file": c.KeyFile, "server_name": c.ServerName} {
			if v != "" {
				fault("tls.%s: is set, and tls.enabled is not: nothing would be encrypted", key)
			}
		}
		return
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		fault("tls.cert_file: goes together with tls.key_file")
	}
}

func (c SASLConfig) validate(fault faultFunc) {
	password := c.User != "" || c.PasswordFile != "" || c.PasswordEnv != ""
	switch c.Mechanism {
	case Plain, ScramSHA256, ScramSHA512:
		if c.User == "" {
			fault("sasl.user: is missing; %s wants one", c.Mechanism)
		}
		if (c.PasswordFile == "") == (c.PasswordEnv == "") {
			fault("sasl.password_file: want one of password_file and password_env")
		}
		checkEnv("sasl.password_env", c.PasswordEnv, fault)
		password = false
	case OAuthBearer:
		c.OAuth.validate(fault)
	case AWSMSKIAM:
	case "":
		if c.OAuth.set() || c.AWSCredentialsFile != "" || password {
			fault("sasl.mechanism: is missing; without it there is no login")
		}
		return
	default:
		fault("sasl.mechanism: %q is none of %s, %s, %s, %s, %s", c.Mechanism, Plain, ScramSHA256, ScramSHA512, OAuthBearer, AWSMSKIAM)
		return
	}
	if password {
		fault("sasl.user: %s has no use for user, password_file and password_env", c.Mechanism)
	}
	if c.OAuth.set() && c.Mechanism != OAuthBearer {
		fault("sasl.oauth: %s has no use for it", c.Mechanism)
	}
	if c.AWSCredentialsFile != "" && c.Mechanism != AWSMSKIAM {
		fault("sasl.aws_credentials_file: %s has no use for it", c.Mechanism)
	}
}

func (c OAuthConfig) set() bool {
	return c.TokenFile != "" || c.TokenURL != "" || c.ClientID != "" || c.ClientSecretFile != "" || c.ClientSecretEnv != "" ||
		len(c.Scopes)+len(c.Params)+len(c.Extensions) > 0 || c.CAFile != ""
}

func (c OAuthConfig) validate(fault faultFunc) {
	if (c.TokenFile == "") == (c.TokenURL == "") {
		fault("sasl.oauth.token_file: want one of token_file and token_url")
		return
	}
	for key, list := range map[string][]string{"params": c.Params, "extensions": c.Extensions} {
		if _, err := pairs(list); err != nil {
			fault("sasl.oauth.%s%w", key, err)
		}
	}
	// RFC 7628, 3.1: letters only. Kafka takes auth for the token itself.
	if slices.ContainsFunc(c.Extensions, func(kv string) bool { return strings.HasPrefix(kv, "auth=") }) {
		fault("sasl.oauth.extensions: auth is the token's own name")
	}
	if c.TokenFile != "" {
		if c.ClientID != "" || c.ClientSecretFile != "" || c.ClientSecretEnv != "" || c.CAFile != "" || len(c.Scopes)+len(c.Params) > 0 {
			fault("sasl.oauth.token_file: has no use for the settings of a token endpoint")
		}
		return
	}
	if err := checkTokenURL(c.TokenURL); err != nil {
		fault("sasl.oauth.token_url: %w", err)
	}
	if c.ClientID == "" {
		fault("sasl.oauth.client_id: is missing")
	}
	if (c.ClientSecretFile == "") == (c.ClientSecretEnv == "") {
		fault("sasl.oauth.client_secret_file: want one of client_secret_file and client_secret_env")
	}
	checkEnv("sasl.oauth.client_secret_env", c.ClientSecretEnv, fault)
}

// checkEnv keeps away from the variables that set keys of the configuration.
func checkEnv(key, name string, fault faultFunc) {
	if strings.HasPrefix(name, "FOREBAY_") {
		fault("%s: %s would be taken for a key of the configuration; want a name that does not begin with FOREBAY_", key, name)
	}
}

func checkTokenURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return errors.New("is no URL") // not err: it holds the URL, which may hold a password
	case u.User != nil:
		return errors.New("holds a user or password: set client_id and client_secret_file")
	case u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("%q is not https://host/path", s)
	case u.Scheme == "http" && u.Hostname() != "localhost" && !net.ParseIP(u.Hostname()).IsLoopback():
		return errors.New("sends the client secret in clear text over http: want https")
	}
	return nil
}

// pairs takes key=value entries apart.
func pairs(list []string) (map[string]string, error) {
	m := make(map[string]string, len(list))
	for i, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("[%d]: want key=value", i)
		}
		m[k] = v
	}
	return m, nil
}

// InClear reports whether a login would send a password or token that everybody on the way can read.
func (c Config) InClear() bool {
	return !c.TLS.Enabled && (c.SASL.Mechanism == Plain || c.SASL.Mechanism == OAuthBearer)
}

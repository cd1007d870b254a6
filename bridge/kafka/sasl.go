package kafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/twmb/franz-go/pkg/sasl"
	kaws "github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// secretError means that the gateway's own side of a login is not there: a file, a variable, an access key.
type secretError struct{ err error }

func (e *secretError) Error() string { return e.err.Error() }
func (e *secretError) Unwrap() error { return e.err }

// mechanism is the login of c, nil when there is none. It reads secrets for each login, so that a changed one is taken without a
// restart. tokens is where oauthbearer gets its own.
func (c SASLConfig) mechanism(tokens *tokens) sasl.Mechanism {
	switch c.Mechanism {
	case Plain:
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			pass, err := c.password()
			return plain.Auth{User: c.User, Pass: pass}, err
		})
	case ScramSHA256, ScramSHA512:
		auth := func(context.Context) (scram.Auth, error) {
			pass, err := c.password()
			return scram.Auth{User: c.User, Pass: pass}, err
		}
		if c.Mechanism == ScramSHA256 {
			return scram.Sha256(auth)
		}
		return scram.Sha512(auth)
	case OAuthBearer:
		return oauth.Oauth(tokens.auth)
	case AWSMSKIAM:
		return kaws.ManagedStreamingIAM((&awsKeys{file: c.AWSCredentialsFile}).auth)
	}
	return nil
}

func (c SASLConfig) password() (string, error) {
	return secret("sasl.password", c.PasswordFile, c.PasswordEnv)
}

// secret reads a secret from a file or a variable of the environment; key names it in errors, which never hold it.
func secret(key, file, env string) (string, error) {
	if file == "" {
		s := os.Getenv(env)
		if s == "" {
			return "", &secretError{fmt.Errorf("%s_env: the variable %s is not set or empty", key, env)}
		}
		return s, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", &secretError{fmt.Errorf("%s_file: %w", key, err)}
	}
	s := strings.TrimRight(string(b), "\r\n")
	if s == "" {
		return "", &secretError{fmt.Errorf("%s_file: %s is empty", key, file)}
	}
	return s, nil
}

// current is what the next login would go by, to see whether it is worth trying. It is never logged. Keys and tokens that are
// fetched from somewhere are not looked at.
func (c SASLConfig) current() string {
	var s string
	switch c.Mechanism {
	case Plain, ScramSHA256, ScramSHA512:
		s, _ = c.password()
	case OAuthBearer:
		if c.OAuth.TokenFile != "" {
			s, _ = secret("sasl.oauth.token", c.OAuth.TokenFile, "")
		} else {
			s, _ = c.OAuth.clientSecret()
		}
	case AWSMSKIAM:
		if c.AWSCredentialsFile != "" {
			b, _ := os.ReadFile(c.AWSCredentialsFile)
			s = string(b)
		}
	}
	return s
}

// awsKeys are the access keys of aws_msk_iam. The SDK finds and refreshes them, as it does for the object store; the login is
// signed without it.
type awsKeys struct {
	file string

	mu       sync.Mutex
	provider aws.CredentialsProvider // with a file it is made for each login
}

func (k *awsKeys) auth(ctx context.Context) (kaws.Auth, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.provider == nil || k.file != "" {
		var opts []func(*awsconfig.LoadOptions) error
		if k.file != "" {
			if _, err := os.Stat(k.file); err != nil { // the SDK passes over a file that is not there
				return kaws.Auth{}, &secretError{fmt.Errorf("sasl.aws_credentials_file: %w", err)}
			}
			opts = append(opts, awsconfig.WithSharedCredentialsFiles([]string{k.file}), awsconfig.WithSharedConfigFiles(nil))
		}
		cfg, err := awsconfig.LoadDefaultConfig(ctx, opts...)
		if err != nil {
			return kaws.Auth{}, &secretError{fmt.Errorf("aws: %w", err)}
		}
		if cfg.Credentials == nil {
			return kaws.Auth{}, &secretError{errors.New("aws: no credentials")}
		}
		k.provider = cfg.Credentials
	}
	key, err := k.provider.Retrieve(ctx)
	if err != nil {
		return kaws.Auth{}, &secretError{fmt.Errorf("aws: %w", err)}
	}
	return kaws.Auth{AccessKey: key.AccessKeyID, SecretKey: key.SecretAccessKey, SessionToken: key.SessionToken, UserAgent: "forebay"}, nil
}

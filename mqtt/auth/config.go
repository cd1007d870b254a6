package auth

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/forebay-gateway/forebay/gateway/unit"
)

// Config is what an operator sets.
type Config struct {
	// Ways of a client to say who it is, tried in this order: password, scram, certificate, jwt, http, anonymous. One accepts,
	// or passes on; what none accepts is refused. Empty: everybody may come in, with a warning at the start. anonymous
	// lets in who offers neither user name nor password.
	Methods []string `yaml:"methods"`

	// Users in a file: methods password and scram.
	Password PasswordConfig `yaml:"password"`

	// TLS client certificates: method certificate.
	Certificate CertificateConfig `yaml:"certificate"`

	// Signed tokens as password: method jwt.
	JWT JWTConfig `yaml:"jwt"`

	// A service that is asked: method http.
	HTTP HTTPConfig `yaml:"http"`

	// What clients may do.
	ACL ACLConfig `yaml:"acl"`

	// Who is kept out.
	Ban BanConfig `yaml:"ban"`

	// How failures are slowed.
	Throttle ThrottleConfig `yaml:"throttle"`

	// Time between two looks at the files named here. A changed one is read again; with a fault in it, the old content
	// stays in force and the log says so. 0 is never: they are read again on request only.
	ReloadInterval unit.Duration `yaml:"reload_interval"`
}

// ListenerConfig is what a listener does otherwise.
type ListenerConfig struct {
	// Methods of this listener instead of mqtt.auth.methods. Empty: those.
	Methods []string `yaml:"methods"`
}

// PasswordConfig is about the password file.
type PasswordConfig struct {
	// File of users, written by forebay passwd.
	File string `yaml:"file"`

	// Memory for hashing passwords, all connections together. Each takes what its line in the file says, 19MiB by
	// default; others wait.
	Memory unit.Bytes `yaml:"memory"`

	// Passwords hashed at the same time; 0 is half of the processors.
	Parallel int `yaml:"parallel"`

	// Connections that wait for their password to be hashed. Beyond it they are told that the server is busy.
	Queue int `yaml:"queue"`

	// How long one waits at most.
	QueueTimeout unit.Duration `yaml:"queue_timeout"`

	// How long a verified password is remembered, by a keyed digest in memory only, so that a crowd that returns is not
	// hashed again; 0 is never.
	CacheTTL unit.Duration `yaml:"cache_ttl"`
}

// CertificateConfig is about client certificates.
type CertificateConfig struct {
	// Where the identity stands: cn, dns, uri, email or sha256 (the fingerprint of the whole certificate).
	Identity string `yaml:"identity"`

	// Users of identities; the first match counts. What none matches is itself the user, when the certificate has exactly
	// one such identity.
	Users []CertificateUser `yaml:"users"`

	// Accept only what users lists.
	OnlyListed bool `yaml:"only_listed"`
}

// CertificateUser gives an identity its user.
type CertificateUser struct {
	// Identity; * stands for any run of characters, ? for one.
	Match string `yaml:"match"`

	// User of it.
	User string `yaml:"user"`

	// Groups of the user.
	Groups []string `yaml:"groups"`
}

// JWTConfig is about tokens.
type JWTConfig struct {
	// File with the public keys (JWKS). Either this or jwks_url.
	JWKSFile string `yaml:"jwks_file"`

	// Address of the public keys (JWKS); https, or http on a loopback address.
	JWKSURL string `yaml:"jwks_url"`

	// Certificates (PEM) of the authorities that jwks_url is verified with. Empty: those of the system.
	CAFile string `yaml:"ca_file"`

	// Time after which keys of jwks_url are fetched anew. A token that names an unknown key fetches them too, at most
	// every ten seconds.
	Refresh unit.Duration `yaml:"refresh"`

	// How long keys serve while jwks_url does not answer.
	MaxAge unit.Duration `yaml:"max_age"`

	// Time in which jwks_url has to answer.
	Timeout unit.Duration `yaml:"timeout"`

	// Issuer (iss) that a token must have.
	Issuer string `yaml:"issuer"`

	// Audiences (aud), one of which a token must have.
	Audience []string `yaml:"audience"`

	// Signature algorithms that are accepted: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA.
	Algorithms []string `yaml:"algorithms"`

	// How far clocks may differ.
	Leeway unit.Duration `yaml:"leeway"`

	// Claim that is the user. Claims inside of objects are named with dots: realm_access.roles.
	UserClaim string `yaml:"user_claim"`

	// Claim that holds the groups of the user; empty is none.
	GroupsClaim string `yaml:"groups_claim"`

	// Claim that must hold the client ID; empty is none.
	ClientIDClaim string `yaml:"client_id_claim"`

	// Claims that hold topic filters which the token allows to publish to and to subscribe to. They come after the rules of
	// the ACL file. When a token has one of them, what neither they nor the file allow is denied. Empty is none.
	PublishClaim string `yaml:"publish_claim"`

	// See publish_claim.
	SubscribeClaim string `yaml:"subscribe_claim"`

	// Require that the user name of the CONNECT is the user of the token.
	CheckUserName bool `yaml:"check_user_name"`

	// Accept tokens without an expiry. Others end the connection when they expire.
	AllowNoExpiry bool `yaml:"allow_no_expiry"`
}

// HTTPConfig is about the service that is asked.
type HTTPConfig struct {
	// Address that is posted to; https, or http on a loopback address.
	URL string `yaml:"url"`

	// File with a token that is sent as Authorization: Bearer.
	TokenFile string `yaml:"token_file"`

	// Certificates (PEM) of the authorities that url is verified with. Empty: those of the system.
	CAFile string `yaml:"ca_file"`

	// Time in which it has to answer.
	Timeout unit.Duration `yaml:"timeout"`

	// Requests at the same time; more wait, within the timeout.
	MaxRequests int `yaml:"max_requests"`

	// How long an answer is remembered, a refusal five seconds at most; 0 is never.
	CacheTTL unit.Duration `yaml:"cache_ttl"`

	// Answers that are remembered.
	CacheSize int `yaml:"cache_size"`

	// What happens while it does not answer: deny, cached (who was let in within cached_for is let in again, others are
	// denied) or next (the next method is tried).
	WhenDown string `yaml:"when_down"`

	// See when_down.
	CachedFor unit.Duration `yaml:"cached_for"`
}

// What becomes of a publish that is not allowed, of an MQTT 3.1.1 client.
const (
	DeniedDrop       = "drop"
	DeniedDisconnect = "disconnect"
)

// ACLConfig is about rules.
type ACLConfig struct {
	// File of rules. Empty: clients that are let in may do everything, but for what their token or the hook limits.
	File string `yaml:"file"`

	// What becomes of a publish that is not allowed, of an MQTT 3.1.1 client, which cannot be told: disconnect, or drop (it
	// is acknowledged and lost, and counted). MQTT 5 clients are answered with 0x87.
	Denied311 string `yaml:"denied_311"`
}

// BanConfig is about the ban list.
type BanConfig struct {
	// File of bans, one a line: client=GLOB user=GLOB address=CIDR until=TIME reason="words". Bans made while running
	// (forebay ban) are added to it, and those that are over are taken out. Empty: the file bans in gateway.data_dir.
	File string `yaml:"file"`

	// Bans without asking.
	Auto AutoBanConfig `yaml:"auto"`
}

// AutoBanConfig is about bans for failures.
type AutoBanConfig struct {
	// Refused credentials from one address (of IPv6 a /64) after which nobody comes in from there for some time; who is in
	// stays. 0 bans nobody: failures are slowed all the same, see throttle. Many devices behind one address are kept out
	// together.
	Failures int `yaml:"failures"`

	// Time in which they have to come.
	Within unit.Duration `yaml:"within"`

	// How long the ban lasts.
	For unit.Duration `yaml:"for"`

	// Addresses and networks (CIDR) that are never banned so, such as that of a NAT.
	Except []string `yaml:"except"`
}

// ThrottleConfig is about failures.
type ThrottleConfig struct {
	// Failures of one address (of IPv6 a /64) or one user before the next attempts are slowed; 0 slows nobody.
	Failures int `yaml:"failures"`

	// First pause between attempts; it doubles with each further failure.
	Delay unit.Duration `yaml:"delay"`

	// Longest pause. Who would have to wait longer is refused at once.
	MaxDelay unit.Duration `yaml:"max_delay"`

	// Time after which one failure is forgotten.
	Forget unit.Duration `yaml:"forget"`

	// How long a user who came in is not slowed at the address that he came from.
	Remember unit.Duration `yaml:"remember"`
}

// DefaultConfig is the configuration of an empty file.
func DefaultConfig() Config {
	return Config{
		Password: PasswordConfig{
			Memory: 128 << 20, Queue: 10000, QueueTimeout: unit.Duration(8 * time.Second), CacheTTL: unit.Duration(time.Hour),
		},
		Certificate: CertificateConfig{Identity: FromCommonName},
		JWT: JWTConfig{
			Refresh: unit.Duration(15 * time.Minute), MaxAge: unit.Duration(24 * time.Hour), Timeout: unit.Duration(5 * time.Second),
			Algorithms: []string{"RS256", "ES256", "EdDSA"}, Leeway: unit.Duration(30 * time.Second), UserClaim: "sub",
		},
		HTTP: HTTPConfig{
			Timeout: unit.Duration(3 * time.Second), MaxRequests: 32, CacheTTL: unit.Duration(time.Minute), CacheSize: 100_000,
			WhenDown: WhenDownDeny, CachedFor: unit.Duration(time.Hour),
		},
		ACL: ACLConfig{Denied311: DeniedDisconnect},
		Ban: BanConfig{Auto: AutoBanConfig{Within: unit.Duration(5 * time.Minute), For: unit.Duration(15 * time.Minute)}},
		Throttle: ThrottleConfig{
			Failures: 10, Delay: unit.Duration(250 * time.Millisecond), MaxDelay: unit.Duration(5 * time.Second),
			Forget: unit.Duration(10 * time.Second), Remember: unit.Duration(7 * 24 * time.Hour),
		},
		ReloadInterval: unit.Duration(5 * time.Second),
	}
}

var methods = []Method{MethodPassword, MethodScram, MethodCertificate, MethodJWT, MethodHTTP, MethodAnonymous}

// Uses reports whether a method is in the chain of c or of one of the listeners.
func (c Config) uses(m Method, listeners []ListenerConfig) bool {
	if slices.Contains(c.Methods, string(m)) {
		return true
	}
	return slices.ContainsFunc(listeners, func(l ListenerConfig) bool { return slices.Contains(l.Methods, string(m)) })
}

// Validate reports everything that is wrong, each with the key that has to change, below mqtt. Listeners are those of the front,
// in the order of the configuration.
func (c Config) Validate(listeners ...ListenerConfig) error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	span := func(key string, v unit.Duration, low, high time.Duration) {
		if v.Std() < low || v.Std() > high {
			fault("auth.%s: %v is not between %v and %v", key, v, unit.Duration(low), unit.Duration(high))
		}
	}
	between := func(key string, v, low, high int) {
		if v < low || v > high {
			fault("auth.%s: %d is not between %d and %d", key, v, low, high)
		}
	}
	list := func(key string, names []string) {
		for i, name := range names {
			switch {
			case !slices.Contains(methods, Method(name)):
				fault("%s[%d]: %q is not one of %v", key, i, name, methods)
			case slices.Contains(names[:i], name):
				fault("%s[%d]: %s stands twice", key, i, name)
			}
		}
	}
	list("auth.methods", c.Methods)
	any := len(c.Methods) > 0
	for i, l := range listeners {
		list(fmt.Sprintf("listeners[%d].auth.methods", i), l.Methods)
		any = any || len(l.Methods) > 0
	}
	if len(c.Methods) == 0 && any {
		for i, l := range listeners {
			if len(l.Methods) == 0 {
				fault("listeners[%d].auth.methods: others have methods and this has none: say anonymous to let everybody in", i)
			}
		}
	}
	if !any && c.ACL.File != "" {
		fault("auth.methods: is empty and auth.acl.file is not: say anonymous to let everybody in")
	}
	uses := func(m Method) bool { return c.uses(m, listeners) }
	if (uses(MethodPassword) || uses(MethodScram)) && c.Password.File == "" {
		fault("auth.password.file: is missing; methods password and scram need it")
	}
	if c.Password.Memory < 1<<20 || c.Password.Memory > 64<<30 {
		fault("auth.password.memory: %v is not between 1MiB and 64GiB", c.Password.Memory)
	}
	between("password.parallel", c.Password.Parallel, 0, 1024)
	between("password.queue", c.Password.Queue, 0, 1<<20)
	span("password.queue_timeout", c.Password.QueueTimeout, 10*time.Millisecond, time.Hour)
	span("password.cache_ttl", c.Password.CacheTTL, 0, 7*24*time.Hour)
	c.Certificate.validate(fault)
	c.JWT.validate(uses(MethodJWT), fault, span)
	c.HTTP.validate(uses(MethodHTTP), fault, span, between)
	if c.ACL.Denied311 != DeniedDrop && c.ACL.Denied311 != DeniedDisconnect {
		fault("auth.acl.denied_311: %q is neither %s nor %s", c.ACL.Denied311, DeniedDrop, DeniedDisconnect)
	}
	between("ban.auto.failures", c.Ban.Auto.Failures, 0, 1<<20)
	span("ban.auto.within", c.Ban.Auto.Within, time.Second, 30*24*time.Hour)
	span("ban.auto.for", c.Ban.Auto.For, time.Second, 365*24*time.Hour)
	for i, s := range c.Ban.Auto.Except {
		if _, err := ParseAddress(s); err != nil {
			fault("auth.ban.auto.except[%d]: %w", i, err)
		}
	}
	between("throttle.failures", c.Throttle.Failures, 0, 1<<20)
	span("throttle.delay", c.Throttle.Delay, time.Millisecond, time.Hour)
	span("throttle.max_delay", c.Throttle.MaxDelay, time.Millisecond, time.Hour)
	span("throttle.forget", c.Throttle.Forget, time.Millisecond, 30*24*time.Hour)
	span("throttle.remember", c.Throttle.Remember, 0, 365*24*time.Hour)
	if c.ReloadInterval != 0 {
		span("reload_interval", c.ReloadInterval, 10*time.Millisecond, 24*time.Hour)
	}
	return errors.Join(errs...)
}

func (c CertificateConfig) validate(fault func(string, ...any)) {
	kinds := []string{FromCommonName, FromDNS, FromURI, FromEmail, FromFingerprint}
	if !slices.Contains(kinds, c.Identity) {
		fault("auth.certificate.identity: %q is not one of %v", c.Identity, kinds)
	}
	for i, u := range c.Users {
		if u.Match == "" {
			fault("auth.certificate.users[%d].match: is missing", i)
		}
		if err := CheckUserName(u.User); err != nil {
			fault("auth.certificate.users[%d].user: %w", i, err)
		}
	}
	if c.OnlyListed && len(c.Users) == 0 {
		fault("auth.certificate.only_listed: nobody could come in: users is empty")
	}
}

type (
	spanFunc    = func(key string, v unit.Duration, low, high time.Duration)
	betweenFunc = func(key string, v, low, high int)
)

func (c JWTConfig) validate(used bool, fault func(string, ...any), span spanFunc) {
	switch {
	case c.JWKSFile != "" && c.JWKSURL != "":
		fault("auth.jwt.jwks_url: there is a jwks_file too: want one of them")
	case used && c.JWKSFile == "" && c.JWKSURL == "":
		fault("auth.jwt.jwks_file: is missing, and jwks_url too; method jwt needs one of them")
	}
	if used && c.Issuer == "" {
		fault("auth.jwt.issuer: is missing; method jwt needs it")
	}
	if used && len(c.Audience) == 0 {
		fault("auth.jwt.audience: is missing; method jwt needs it, or a token for another service would be good here")
	}
	if c.JWKSURL != "" {
		if err := checkURL(c.JWKSURL); err != nil {
			fault("auth.jwt.jwks_url: %w", err)
		}
	}
	if err := checkAlgorithms(c.Algorithms); err != nil {
		fault("auth.jwt.algorithms: %w", err)
	}
	if c.UserClaim == "" {
		fault("auth.jwt.user_claim: is empty")
	}
	span("jwt.refresh", c.Refresh, jwksMinWait, 30*24*time.Hour)
	span("jwt.max_age", c.MaxAge, c.Refresh.Std(), 365*24*time.Hour)
	span("jwt.timeout", c.Timeout, 10*time.Millisecond, time.Minute)
	span("jwt.leeway", c.Leeway, 0, 10*time.Minute)
}

func (c HTTPConfig) validate(used bool, fault func(string, ...any), span spanFunc, between betweenFunc) {
	if used && c.URL == "" {
		fault("auth.http.url: is missing; method http needs it")
	}
	if c.URL != "" {
		if err := checkURL(c.URL); err != nil {
			fault("auth.http.url: %w", err)
		}
	}
	switch c.WhenDown {
	case WhenDownDeny, WhenDownCached, WhenDownNext:
	default:
		fault("auth.http.when_down: %q is not deny, cached or next", c.WhenDown)
	}
	span("http.timeout", c.Timeout, 10*time.Millisecond, time.Minute)
	span("http.cache_ttl", c.CacheTTL, 0, 24*time.Hour)
	span("http.cached_for", c.CachedFor, c.CacheTTL.Std(), 30*24*time.Hour)
	between("http.max_requests", c.MaxRequests, 1, 10000)
	between("http.cache_size", c.CacheSize, 0, 10_000_000)
}

// checkURL wants credentials and keys to travel encrypted, or not to leave the machine.
func checkURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return err
	case u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("%q is not an https address", s)
	case u.User != nil:
		return errors.New("holds a user or password: put a token into a file")
	case u.Scheme == "http" && !slices.Contains([]string{"127.0.0.1", "::1", "localhost"}, u.Hostname()):
		return fmt.Errorf("%q: http is for loopback addresses only, others need https", s)
	}
	return nil
}

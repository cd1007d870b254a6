package auth

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ScramSHA256 is the authentication method of RFC 7677.
const ScramSHA256 = "SCRAM-SHA-256"

// DefaultScramIterations is the cost of a SCRAM credential. RFC 7677 asks for at least 4096, in 2015; the client computes them
// at every connect, and clients are small.
const DefaultScramIterations = 15000

const (
	minScramIterations = 4096
	maxScramIterations = 10_000_000
)

// scramKeys are what a server keeps of a password (RFC 5802, 3). In a file they are
//
//	$scram-sha-256$i=15000$SALT$STORED$SERVER
//
// in base64 without padding.
type scramKeys struct {
	salt           []byte
	iterations     int
	stored, server []byte
}

func newScramKeys(password string, iterations int) (*scramKeys, error) {
	if iterations == 0 {
		iterations = DefaultScramIterations
	}
	if iterations < minScramIterations || iterations > maxScramIterations {
		return nil, fmt.Errorf("%d iterations are not between %d and %d", iterations, minScramIterations, maxScramIterations)
	}
	salt := make([]byte, 16)
	_, _ = rand.Read(salt) // never fails
	return deriveScramKeys(password, salt, iterations)
}

func deriveScramKeys(password string, salt []byte, iterations int) (*scramKeys, error) {
	prepared, err := saslPrep(password)
	if err != nil {
		return nil, fmt.Errorf("password: %w", err)
	}
	salted, err := pbkdf2.Key(sha256.New, prepared, salt, iterations, sha256.Size)
	if err != nil {
		return nil, err
	}
	stored := sha256.Sum256(mac(salted, "Client Key"))
	return &scramKeys{salt: salt, iterations: iterations, stored: stored[:], server: mac(salted, "Server Key")}, nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

func (k *scramKeys) verify(password string) bool {
	other, err := deriveScramKeys(password, k.salt, k.iterations)
	return err == nil && subtle.ConstantTimeCompare(other.stored, k.stored) == 1
}

// String writes the keys as parseScramKeys reads them.
func (k *scramKeys) String() string {
	b64 := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$scram-sha-256$i=%d$%s$%s$%s", k.iterations, b64(k.salt), b64(k.stored), b64(k.server))
}

func parseScramKeys(s string) (*scramKeys, error) {
	parts := strings.Split(s, "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "scram-sha-256" || !strings.HasPrefix(parts[2], "i=") {
		return nil, errors.New("scram is not $scram-sha-256$i=...$salt$stored$server: forebay passwd --scram writes it")
	}
	k := &scramKeys{}
	var err error
	k.iterations, err = strconv.Atoi(parts[2][2:])
	if err != nil || k.iterations < minScramIterations || k.iterations > maxScramIterations {
		return nil, fmt.Errorf("scram: %q: iterations are not between %d and %d", parts[2], minScramIterations, maxScramIterations)
	}
	for i, dst := range []*[]byte{&k.salt, &k.stored, &k.server} {
		if *dst, err = base64.RawStdEncoding.DecodeString(parts[3+i]); err != nil {
			return nil, errors.New("scram: not base64 without padding")
		}
	}
	if len(k.salt) < 8 || len(k.salt) > 64 || len(k.stored) != sha256.Size || len(k.server) != sha256.Size {
		return nil, errors.New("scram: want a salt of 8 to 64 bytes and two keys of 32")
	}
	return k, nil
}

// scram is the server's side of one exchange (RFC 5802, 5).
type scram struct {
	file  *Passwords
	nonce string // the server's part; tests set it

	user   string
	known  *credential // nil: unknown, and the exchange goes on against decoy keys
	keys   *scramKeys
	gs2    string
	bare   string // client-first-message-bare
	first  string // server-first-message
	joined string // both nonces
}

func newScram(file *Passwords) *scram {
	var b [18]byte
	_, _ = rand.Read(b[:]) // never fails
	return &scram{file: file, nonce: base64.StdEncoding.EncodeToString(b[:])}
}

// begin reads the client-first-message and returns the server-first-message.
func (s *scram) begin(message string) (string, error) {
	gs2, bare, authzid, err := splitGS2(message)
	if err != nil {
		return "", err
	}
	attrs := strings.Split(bare, ",")
	if len(attrs) < 2 || !strings.HasPrefix(attrs[0], "n=") || !strings.HasPrefix(attrs[1], "r=") { // m= in front is a mandatory extension
		return "", ErrProtocol
	}
	name, ok := decodeName(attrs[0][2:])
	nonce := attrs[1][2:]
	if !ok || !printable(nonce) || len(nonce) > 256 || len(bare) > 4096 {
		return "", ErrProtocol
	}
	if authzid != "" && authzid != name { // nobody acts for others
		return "", ErrBadCredentials
	}
	if prepared, err := saslPrep(name); err == nil {
		name = prepared
	}
	s.user, s.gs2, s.bare = name, gs2, bare
	if s.known = s.file.users[name]; s.known != nil && s.known.scram != nil {
		s.keys = s.known.scram
	} else {
		s.known, s.keys = nil, s.file.decoyScram(name)
	}
	s.joined = nonce + s.nonce
	s.first = fmt.Sprintf("r=%s,s=%s,i=%d", s.joined, base64.StdEncoding.EncodeToString(s.keys.salt), s.keys.iterations)
	return s.first, nil
}

// finish reads the client-final-message and returns the server-final-message.
func (s *scram) finish(message string) (string, error) {
	without, proofText, ok := cutLast(message, ",p=")
	attrs := strings.Split(without, ",")
	if !ok || len(attrs) < 2 || len(message) > 4096 {
		return "", ErrProtocol
	}
	proof, err := base64.StdEncoding.DecodeString(proofText)
	if err != nil || len(proof) != sha256.Size {
		return "", ErrProtocol
	}
	if attrs[0] != "c="+base64.StdEncoding.EncodeToString([]byte(s.gs2)) || attrs[1] != "r="+s.joined {
		return "", ErrBadCredentials
	}
	message = s.bare + "," + s.first + "," + without
	key := mac(s.keys.stored, message)
	subtle.XORBytes(key, key, proof)
	sum := sha256.Sum256(key)
	if subtle.ConstantTimeCompare(sum[:], s.keys.stored) != 1 || s.known == nil {
		return "", ErrBadCredentials
	}
	return "v=" + base64.StdEncoding.EncodeToString(mac(s.keys.server, message)), nil
}

// splitGS2 cuts the header with the channel binding flag and the authorisation identity from the client-first-message.
func splitGS2(message string) (header, bare, authzid string, err error) {
	parts := strings.SplitN(message, ",", 3)
	if len(parts) != 3 {
		return "", "", "", ErrProtocol
	}
	switch {
	case parts[0] == "n", parts[0] == "y":
	default: // p=: the client wants a channel binding, which was not offered
		return "", "", "", ErrProtocol
	}
	if parts[1] != "" {
		name, ok := strings.CutPrefix(parts[1], "a=")
		if ok {
			authzid, ok = decodeName(name)
		}
		if !ok {
			return "", "", "", ErrProtocol
		}
	}
	return parts[0] + "," + parts[1] + ",", parts[2], authzid, nil
}

// decodeName reads a saslname: =2C is a comma, =3D an equals sign, others are refused.
func decodeName(s string) (string, bool) {
	if s == "" || strings.ContainsRune(s, 0) {
		return "", false
	}
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(s, "=")
		b.WriteString(before)
		if !ok {
			return b.String(), true
		}
		switch {
		case strings.HasPrefix(after, "2C"):
			b.WriteByte(',')
		case strings.HasPrefix(after, "3D"):
			b.WriteByte('=')
		default:
			return "", false
		}
		s = after[2:]
	}
}

// printable are the characters of a nonce.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e || s[i] == ',' {
			return false
		}
	}
	return s != ""
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// processSeed stands in for a file without SCRAM credentials.
var processSeed = func() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return b
}()

// decoyScram are keys that an unknown user could have: the same each time it is asked for, and no password fits.
func (p *Passwords) decoyScram(user string) *scramKeys {
	seed := p.scramSeed
	if seed == nil {
		seed = processSeed
	}
	return &scramKeys{
		salt:       mac(seed, "salt "+user)[:16],
		iterations: p.scramIterations,
		stored:     mac(processSeed, "stored "+user),
		server:     mac(processSeed, "server "+user),
	}
}

package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Passwords is the content of a password file. It is never changed.
//
// A line is
//
//	USER:HASH:SCRAM:GROUPS
//
// HASH is an argon2id hash, SCRAM what SCRAM-SHA-256 needs; either may be empty, and then the user cannot come in that way.
// GROUPS are joined by commas. Trailing empty fields may be left out. Lines that start with # are comments.
type Passwords struct {
	users map[string]*credential

	// decoy has the costs that most users have, and a sum that no password has. Unknown users are verified against it.
	decoy *hash

	// scramSeed keeps the salts of unknown users steady as long as the first user's credential is.
	scramSeed       []byte
	scramIterations int
}

type credential struct {
	user   string
	line   int
	hash   *hash
	scram  *scramKeys
	groups []string
	stamp  string // changes with the line
}

// ParsePasswords reads a password file; file is what errors call it. No hash may cost more than maxMemory KiB, 0 is no limit.
func ParsePasswords(file string, data []byte, maxMemory uint32) (*Passwords, error) {
	p := &Passwords{users: map[string]*credential{}, scramIterations: DefaultScramIterations}
	costs := map[HashParams]int{}
	err := eachLine(file, data, func(line int, text string) error {
		c, err := parseCredential(text)
		if err != nil {
			return err
		}
		c.line = line
		if first, twice := p.users[c.user]; twice {
			return fmt.Errorf("user %q is already in line %d", c.user, first.line)
		}
		if c.hash != nil {
			if maxMemory > 0 && c.hash.Memory > maxMemory {
				return fmt.Errorf("hash: m=%d KiB is more than the memory for hashing, %d KiB", c.hash.Memory, maxMemory)
			}
			costs[c.hash.HashParams]++
		}
		if c.scram != nil && p.scramSeed == nil {
			sum := sha256.Sum256(append([]byte("forebay scram salt "), c.scram.server...))
			p.scramSeed, p.scramIterations = sum[:], c.scram.iterations
		}
		p.users[c.user] = c
		return nil
	})
	if err != nil {
		return nil, err
	}
	params, most := DefaultHashParams, 0
	for cost, n := range costs {
		if n > most || n == most && cost.Memory > params.Memory {
			params, most = cost, n
		}
	}
	if maxMemory > 0 && params.Memory > maxMemory {
		params.Memory = maxMemory
	}
	p.decoy = &hash{HashParams: params, salt: make([]byte, 16), sum: make([]byte, 32)}
	return p, nil
}

func parseCredential(text string) (*credential, error) {
	fields := strings.Split(text, ":")
	if len(fields) < 2 || len(fields) > 4 {
		return nil, errors.New("want USER:HASH, USER:HASH:SCRAM or USER:HASH:SCRAM:GROUPS")
	}
	for len(fields) < 4 {
		fields = append(fields, "")
	}
	if err := CheckUserName(fields[0]); err != nil {
		return nil, err
	}
	c := &credential{user: fields[0]}
	var err error
	if fields[1] != "" {
		if c.hash, err = parseHash(fields[1]); err != nil {
			return nil, err
		}
	}
	if fields[2] != "" {
		if c.scram, err = parseScramKeys(fields[2]); err != nil {
			return nil, err
		}
	}
	if fields[3] != "" {
		if c.groups, err = ParseGroups(fields[3]); err != nil {
			return nil, err
		}
	}
	sum := sha256.Sum256([]byte(text))
	c.stamp = hex.EncodeToString(sum[:16])
	return c, nil
}

// CheckUserName says what is wrong with a user name for a password file.
func CheckUserName(s string) error {
	switch {
	case s == "":
		return errors.New("user name is empty")
	case len(s) > 1024:
		return errors.New("user name is longer than 1024 bytes")
	case strings.HasPrefix(s, "#"), strings.Contains(s, ":"):
		return fmt.Errorf("user name %q: may not start with # nor hold a colon", s)
	case strings.TrimSpace(s) != s, strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("user name %q: space around it or control characters", s)
	}
	return nil
}

// ParseGroups reads groups joined by commas.
func ParseGroups(s string) ([]string, error) {
	groups := strings.Split(s, ",")
	for _, g := range groups {
		if g == "" || strings.TrimSpace(g) != g || strings.ContainsAny(g, ":#") || strings.ContainsFunc(g, unicode.IsControl) {
			return nil, fmt.Errorf("group %q: want names joined by commas", g)
		}
	}
	return groups, nil
}

func (c *credential) String() string {
	fields := []string{c.user, "", "", strings.Join(c.groups, ",")}
	if c.hash != nil {
		fields[1] = c.hash.String()
	}
	if c.scram != nil {
		fields[2] = c.scram.String()
	}
	return strings.TrimRight(strings.Join(fields[:], ":"), ":") + strings.Repeat(":", b2i(fields[1] == "" && fields[2] == "" && fields[3] == ""))
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// User is what a listing shows of a user.
type User struct {
	Name     string   `json:"user"`
	Password bool     `json:"password"`
	Scram    bool     `json:"scram"`
	Groups   []string `json:"groups"`
}

// Users lists the users by name.
func (p *Passwords) Users() []User {
	var out []User
	for _, c := range p.users {
		out = append(out, User{Name: c.user, Password: c.hash != nil, Scram: c.scram != nil, Groups: append([]string{}, c.groups...)})
	}
	slices.SortFunc(out, func(a, b User) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Len is the number of users.
func (p *Passwords) Len() int { return len(p.users) }

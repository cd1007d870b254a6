package auth

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Ban keeps out whom all of its conditions match; an empty condition is none.
type Ban struct {
	Client  string       `json:"client,omitempty"` // glob
	User    string       `json:"user,omitempty"`   // glob
	Address netip.Prefix `json:"address"`
	Until   time.Time    `json:"until"` // zero is for ever
	Reason  string       `json:"reason,omitempty"`
}

// Validate says what is wrong with a ban.
func (b Ban) Validate() error {
	if b.Client == "" && b.User == "" && !b.Address.IsValid() {
		return errors.New("want client=, user= or address=: this bans everybody")
	}
	if strings.ContainsAny(b.Client+b.User+b.Reason, "\n\r\x00") {
		return errors.New("a line break or NUL in a value")
	}
	return nil
}

// String writes the ban as a line of the file.
func (b Ban) String() string {
	var words []string
	add := func(key, value string) {
		if value != "" {
			words = append(words, key+`="`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value)+`"`)
		}
	}
	add("client", b.Client)
	add("user", b.User)
	if b.Address.IsValid() {
		words = append(words, "address="+b.Address.String())
	}
	if !b.Until.IsZero() {
		words = append(words, "until="+b.Until.UTC().Format(time.RFC3339))
	}
	add("reason", b.Reason)
	return strings.Join(words, " ")
}

func (b Ban) over(now time.Time) bool { return !b.Until.IsZero() && !now.Before(b.Until) }

func (b Ban) matches(client, user string, remote netip.Addr) bool {
	switch {
	case b.Client != "" && !pattern(b.Client).match(client):
		return false
	case b.User != "" && (user == "" || !pattern(b.User).match(user)):
		return false
	case b.Address.IsValid() && !b.Address.Contains(remote.Unmap().WithZone("")):
		return false
	}
	return true
}

// ParseBans reads a ban list; file is what errors call it. A line is one ban:
//
//	[client=GLOB] [user=GLOB] [address=ADDRESS or CIDR] [until=2026-12-01T00:00:00Z] [reason="words"]
func ParseBans(file string, data []byte) ([]Ban, error) {
	var bans []Ban
	err := eachLine(file, data, func(_ int, text string) error {
		words, err := splitWords(text)
		if err != nil || len(words) == 0 {
			return err
		}
		var b Ban
		seen := map[string]bool{}
		for _, word := range words {
			key, value, ok := strings.Cut(word, "=")
			if !ok || value == "" {
				return fmt.Errorf("%q: want key=value", word)
			}
			if seen[key] {
				return fmt.Errorf("%s stands twice", key)
			}
			seen[key] = true
			if err := b.key(key, value); err != nil {
				return err
			}
		}
		bans = append(bans, b)
		return b.Validate()
	})
	if err != nil {
		return nil, err
	}
	return bans, nil
}

func (b *Ban) key(key, value string) (err error) {
	switch key {
	case "client":
		b.Client = value
	case "user":
		b.User = value
	case "reason":
		b.Reason = value
	case "address":
		b.Address, err = ParseAddress(value)
	case "until":
		if b.Until, err = time.Parse(time.RFC3339, value); err != nil {
			err = fmt.Errorf("until: %q is not a time such as 2026-12-01T00:00:00Z", value)
		}
	default:
		err = fmt.Errorf("%s: key is not known; there are client, user, address, until and reason", key)
	}
	return err
}

// ParseAddress reads an address or a CIDR.
func ParseAddress(s string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked(), nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("address: %q is neither an address nor a CIDR such as 192.0.2.0/24", s)
	}
	a = a.Unmap()
	return a.Prefix(a.BitLen())
}

// bans are those of the file and, without a file, those made while running.
type bans struct {
	file *source[[]Ban] // nil without a file
	now  func() time.Time

	mu    sync.Mutex
	added []Ban // without a file
}

func (b *bans) list() []Ban {
	var all []Ban
	if b.file != nil {
		all = slices.Clone(b.file.load())
	}
	b.mu.Lock()
	all = append(all, b.added...)
	b.mu.Unlock()
	now := b.now()
	return slices.DeleteFunc(all, func(x Ban) bool { return x.over(now) })
}

// banned reports whether some ban matches. user is the claimed one before authentication, the real one after.
func (b *bans) banned(client, user string, remote netip.Addr) bool {
	now := b.now()
	hit := func(x Ban) bool { return !x.over(now) && x.matches(client, user, remote) }
	if b.file != nil && slices.ContainsFunc(b.file.load(), hit) {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.added, hit)
}

// add puts a ban into the file, so that it outlives a restart, or without one into memory.
func (b *bans) add(x Ban) error {
	if err := x.Validate(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.file == nil {
		now := b.now()
		b.added = append(slices.DeleteFunc(b.added, func(o Ban) bool { return o.over(now) }), x)
		return nil
	}
	return b.rewriteLocked(func(lines []string) []string { return append(lines, x.String()) })
}

// remove takes all bans away that are exactly x, whatever their end and reason; it returns how many.
func (b *bans) remove(x Ban) (n int, err error) {
	same := func(o Ban) bool { return o.Client == x.Client && o.User == x.User && o.Address == x.Address }
	b.mu.Lock()
	defer b.mu.Unlock()
	before := len(b.added)
	b.added = slices.DeleteFunc(b.added, same)
	n = before - len(b.added)
	if b.file == nil || !slices.ContainsFunc(b.file.load(), same) {
		return n, nil
	}
	return n, b.rewriteLocked(func(lines []string) []string {
		return slices.DeleteFunc(lines, func(line string) bool {
			one, err := ParseBans("", []byte(line))
			gone := err == nil && len(one) == 1 && same(one[0])
			n += b2i(gone)
			return gone
		})
	})
}

func (b *bans) rewriteLocked(change func(lines []string) []string) error {
	name := b.file.name
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	data, err := readFile(name)
	if err != nil {
		return err
	}
	if _, err := ParseBans(name, data); err != nil {
		return err
	}
	var lines []string
	if text := strings.TrimSuffix(string(data), "\n"); text != "" {
		lines = strings.Split(text, "\n")
	}
	if err := replaceFile(name, []byte(strings.Join(append(change(lines), ""), "\n")), dir); err != nil {
		return err
	}
	return b.file.reload()
}

package auth

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode/utf8"
)

// Ban keeps out whom all of its conditions match; an empty condition is none.
type Ban struct {
	Client  string       `json:"client,omitempty"` // glob
	User    string       `json:"user,omitempty"`   // glob
	Address netip.Prefix `json:"address,omitzero"`
	Until   time.Time    `json:"until,omitzero"` // zero is for ever
	Reason  string       `json:"reason,omitempty"`

	// Automatic bans are for failures. They keep out who comes, and end no connection: others may be behind the same address.
	Automatic bool `json:"automatic,omitempty"`
}

// Validate says what is wrong with a ban.
func (b Ban) Validate() error {
	if b.Client == "" && b.User == "" && !b.Address.IsValid() {
		return errors.New("want client=, user= or address=: this bans everybody")
	}
	text := b.Client + b.User + b.Reason
	switch {
	case strings.ContainsAny(text, "\n\r\x00"):
		return errors.New("a line break or NUL in a value")
	case !utf8.ValidString(b.Client) || !utf8.ValidString(b.User) || !utf8.ValidString(b.Reason):
		return errors.New("a value is not text")
	case len(text) > maxLine/4: // the line has more: keys, and what is escaped
		return fmt.Errorf("values are longer than %d bytes", maxLine/4)
	case !b.Until.IsZero() && (b.Until.UTC().Year() < 1 || b.Until.UTC().Year() > 9999):
		return errors.New("until: the year is not one that can be written; a ban without until is for ever")
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
		switch {
		case !p.Addr().Is4In6():
			return p.Masked(), nil
		case p.Bits() >= 96: // an IPv4 network in another spelling: clients never have that one
			return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96).Masked(), nil
		}
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("address: %q is neither an address nor a CIDR such as 192.0.2.0/24", s)
	}
	a = a.Unmap()
	return a.Prefix(a.BitLen())
}

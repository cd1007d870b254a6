package unit

import (
	"encoding"
	"fmt"
	"strings"
)

// Rate is an amount of bytes per second: "5MiB/s". Zero usually means that there is no limit; the key that takes a Rate says.
type Rate Bytes

var (
	_ encoding.TextMarshaler   = Rate(0)
	_ encoding.TextUnmarshaler = (*Rate)(nil)
)

// RateAllowed says in a message what ParseRate takes.
const RateAllowed = "a size per second, such as 64KiB/s or 5MiB/s"

// ParseRate reads a rate.
func ParseRate(s string) (Rate, error) {
	if s == "0" {
		return 0, nil
	}
	size, ok := strings.CutSuffix(s, "/s")
	if !ok {
		return 0, fmt.Errorf("%q is not a rate: want %s", s, RateAllowed)
	}
	b, err := ParseBytes(strings.TrimSuffix(size, " "))
	if err != nil {
		return 0, fmt.Errorf("%q is not a rate: want %s", s, RateAllowed)
	}
	return Rate(b), nil
}

// String writes the rate as ParseRate reads it.
func (r Rate) String() string {
	if r == 0 {
		return "0"
	}
	return Bytes(r).String() + "/s"
}

// MarshalText writes the rate as String does.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the rate as ParseRate does.
func (r *Rate) UnmarshalText(text []byte) error {
	v, err := ParseRate(string(text))
	if err != nil {
		return err
	}
	*r = v
	return nil
}

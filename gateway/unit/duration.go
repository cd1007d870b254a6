package unit

import (
	"encoding"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration that also reads days and weeks, never negative when it came from text: "250ms", "1h30m",
// "72h", "7d", "2w". A day is 24 hours.
type Duration time.Duration

// Days and weeks, as constants of Duration for defaults.
const (
	Second = Duration(time.Second)
	Minute = Duration(time.Minute)
	Hour   = Duration(time.Hour)
	Day    = 24 * Hour
	Week   = 7 * Day
)

var (
	_ encoding.TextMarshaler   = Duration(0)
	_ encoding.TextUnmarshaler = (*Duration)(nil)
)

// DurationAllowed says in a message what ParseDuration takes.
const DurationAllowed = "a duration with its unit, such as 250ms, 30s, 5m, 1h30m, 72h or 7d"

// durationUnits is ordered from large to small: String takes what fits, one after the other.
var durationUnits = []struct {
	name string
	size Duration
}{
	{"d", Day},
	{"h", Hour},
	{"m", Minute},
	{"s", Second},
	{"ms", Duration(time.Millisecond)},
	{"us", Duration(time.Microsecond)},
	{"ns", 1},
}

// Std is d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// ParseDuration reads a duration: one or more numbers, each followed by its unit.
func ParseDuration(s string) (Duration, error) {
	if s == "0" {
		return 0, nil
	}
	if s == "" {
		return 0, fmt.Errorf("%q is not a duration: want %s", s, DurationAllowed)
	}
	total := new(big.Rat)
	for rest := s; rest != ""; {
		number, tail := split(rest)
		value, ok := new(big.Rat).SetString(number)
		if !ok {
			return 0, fmt.Errorf("%q is not a duration: want %s", s, DurationAllowed)
		}
		n := 0
		for n < len(tail) && tail[n] != '.' && (tail[n] < '0' || tail[n] > '9') {
			n++
		}
		unit := strings.TrimSpace(tail[:n])
		if unit == "" {
			return 0, fmt.Errorf("%q has no unit: want %s", s, DurationAllowed)
		}
		size, ok := durationUnit(unit)
		if !ok {
			return 0, fmt.Errorf("%q has the unknown unit %q: want ns, us, ms, s, m, h, d or w", s, unit)
		}
		total.Add(total, value.Mul(value, new(big.Rat).SetInt64(int64(size))))
		rest = tail[n:]
	}
	if total.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) > 0 {
		return 0, fmt.Errorf("%q is longer than 292 years", s)
	}
	// Below a nanosecond there is nothing to wait for; the quotient drops it.
	return Duration(new(big.Int).Quo(total.Num(), total.Denom()).Int64()), nil
}

func durationUnit(name string) (Duration, bool) {
	switch name {
	case "w":
		return Week, true
	case "µs", "μs": // U+00B5 and U+03BC, as in time.ParseDuration
		return Duration(time.Microsecond), true
	}
	for _, u := range durationUnits {
		if u.name == name {
			return u.size, true
		}
	}
	return 0, false
}

// String writes d without zero parts: "7d", "1h30m", "250ms".
func (d Duration) String() string {
	if d == 0 {
		return "0"
	}
	var out strings.Builder
	rest := uint64(d)
	if d < 0 {
		out.WriteByte('-')
		rest = -rest
	}
	for _, u := range durationUnits {
		if n := rest / uint64(u.size); n > 0 {
			out.WriteString(strconv.FormatUint(n, 10) + u.name)
			rest %= uint64(u.size)
		}
	}
	return out.String()
}

// MarshalText writes the duration as String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the duration as ParseDuration does.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := ParseDuration(string(text))
	if err != nil {
		return err
	}
	*d = v
	return nil
}

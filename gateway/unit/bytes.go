package unit

import (
	"encoding"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// Bytes is an amount of memory or disk, never negative when it came from text: "64KiB", "1.5GiB", "1MB".
type Bytes int64

// Binary multiples, the ones that configuration is usually written in.
const (
	B   Bytes = 1
	KiB       = 1024 * B
	MiB       = 1024 * KiB
	GiB       = 1024 * MiB
	TiB       = 1024 * GiB
	PiB       = 1024 * TiB
)

var (
	_ encoding.TextMarshaler   = Bytes(0)
	_ encoding.TextUnmarshaler = (*Bytes)(nil)
)

// BytesAllowed says in a message what ParseBytes takes.
const BytesAllowed = "a size with its unit, such as 512B, 64KiB, 10GiB or 1MB"

// binaryUnits is ordered from large to small: String takes the first that divides the value.
var binaryUnits = []struct {
	name string
	size Bytes
}{{"PiB", PiB}, {"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", B}}

// byteUnits is keyed by lower case: nobody should have to remember whether it is kB or KB.
var byteUnits = map[string]Bytes{
	"b": B, "kib": KiB, "mib": MiB, "gib": GiB, "tib": TiB, "pib": PiB,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "pb": 1e15,
}

// ParseBytes reads a size. The number may have a fraction if the size is a whole number of bytes.
func ParseBytes(s string) (Bytes, error) {
	number, unit := split(s)
	if number == "" {
		return 0, fmt.Errorf("%q is not a size: want %s", s, BytesAllowed)
	}
	value, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, fmt.Errorf("%q is not a size: want %s", s, BytesAllowed)
	}
	if unit == "" {
		if value.Sign() == 0 {
			return 0, nil
		}
		return 0, fmt.Errorf("%q has no unit: want %s", s, BytesAllowed)
	}
	size, ok := byteUnits[strings.ToLower(unit)]
	if len(unit) == 2 && unit[0] < 'a' && unit[1] == 'b' { // elsewhere that is bits
		return 0, fmt.Errorf("%q: %s may be bits: write %sB or %siB", s, unit, unit[:1], unit[:1])
	}
	if !ok {
		return 0, fmt.Errorf("%q has the unknown unit %q: want B, KiB, MiB, GiB, TiB, PiB, kB, MB, GB, TB or PB", s, unit)
	}
	value.Mul(value, new(big.Rat).SetInt64(int64(size)))
	if !value.IsInt() {
		return 0, fmt.Errorf("%q is not a whole number of bytes", s)
	}
	if value.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) > 0 {
		return 0, fmt.Errorf("%q is more than %d bytes", s, int64(math.MaxInt64))
	}
	return Bytes(value.Num().Int64()), nil
}

// String is the size in the largest binary unit that divides it: "64KiB", "1500B".
func (b Bytes) String() string {
	if b == 0 {
		return "0"
	}
	for _, u := range binaryUnits {
		if b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	panic("BUG: every size divides by one byte")
}

// Approx is the size for people, with at most one digit behind the point: 22.5MiB.
func (b Bytes) Approx() string {
	for _, u := range binaryUnits {
		if b >= u.size && u.size > 1 {
			return strings.TrimSuffix(strconv.FormatFloat(float64(b)/float64(u.size), 'f', 1, 64), ".0") + u.name
		}
	}
	if b == 0 {
		return "0B" // "0" alone is for a configuration
	}
	return b.String()
}

// MarshalText writes the size as String does.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads the size as ParseBytes does.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, err := ParseBytes(string(text))
	if err != nil {
		return err
	}
	*b = v
	return nil
}

// split cuts s into its leading plain decimal number ("12", "1.5") and the rest. The number is empty when there is none;
// signs, exponents and hexadecimal are not numbers here.
func split(s string) (number, unit string) {
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.') {
		i++
	}
	number, unit = s[:i], strings.TrimPrefix(s[i:], " ")
	// A number longer than this is a mistake, and big.Rat would take it at any length.
	if len(number) > 40 || strings.HasPrefix(number, ".") || strings.HasSuffix(number, ".") {
		return "", s
	}
	return number, unit
}

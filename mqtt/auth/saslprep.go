package auth

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

var errNotPreparable = errors.New("holds characters that SASLprep prohibits")

// saslPrep is what SCRAM does to names and passwords, so that one password typed on two keyboards is the same (RFC 4013): other
// spaces become a space, invisible characters go, the rest is normalised (NFKC). Right-to-left rules are not checked: who
// breaks them gets a credential that strict clients cannot use.
func saslPrep(s string) (string, error) {
	if !utf8.ValidString(s) {
		return "", errNotPreparable
	}
	s = norm.NFKC.String(strings.Map(func(r rune) rune {
		switch {
		case r != ' ' && unicode.Is(unicode.Zs, r), r == 0x200B:
			return ' '
		case r == 0x00AD, r == 0x034F, r == 0x1806, r >= 0x180B && r <= 0x180D, r == 0x200C, r == 0x200D, r == 0x2060,
			r >= 0xFE00 && r <= 0xFE0F, r == 0xFEFF:
			return -1
		}
		return r
	}, s))
	prohibited := func(r rune) bool {
		return unicode.IsControl(r) || r != ' ' && unicode.Is(unicode.Zs, r) || unicode.In(r, unicode.Co, unicode.Cf, unicode.Zl, unicode.Zp) ||
			r >= 0xFFF9 && r <= 0xFFFD || r&0xFFFE == 0xFFFE || r >= 0xFDD0 && r <= 0xFDEF || r >= 0x2FF0 && r <= 0x2FFB
	}
	if strings.ContainsFunc(s, prohibited) {
		return "", errNotPreparable
	}
	return s, nil
}

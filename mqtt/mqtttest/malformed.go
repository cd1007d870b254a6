package mqtttest

import (
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

//go:embed malformed.txt
var malformed string

// A Malformed is one line of malformed.txt: bytes that a server must refuse.
type Malformed struct {
	State  string // "first", "v5" or "v4": what the connection has seen before
	Reason byte   // the reason code of MQTT 5
	Answer string // "c5", "c4", "d5" or "-": how the reason is told
	Clause string
	Name   string
	Bytes  []byte
}

// MalformedPackets returns the corpus of bad packets.
func MalformedPackets(t testing.TB) []Malformed {
	t.Helper()
	var all []Malformed
	for i, line := range strings.Split(malformed, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m, err := parseMalformed(line)
		if err != nil {
			t.Fatalf("malformed.txt:%d: %v", i+1, err)
		}
		all = append(all, m)
	}
	return all
}

func parseMalformed(line string) (m Malformed, err error) {
	col := strings.SplitN(line, "|", 5)
	if len(col) != 5 {
		return m, fmt.Errorf("%d columns, not 5", len(col))
	}
	for i := range col {
		col[i] = strings.TrimSpace(col[i])
	}
	reason, answer, _ := strings.Cut(col[1], " ")
	code, err := strconv.ParseUint(reason, 16, 8)
	if err != nil {
		return m, err
	}
	m = Malformed{State: col[0], Reason: byte(code), Answer: strings.TrimSpace(answer), Clause: col[2], Name: col[3]}
	m.Bytes, err = parseBytes(col[4])
	return m, err
}

// Bytes turns the notation of malformed.txt into bytes: hex digits; len for the Remaining Length of all that follows;
// [ ... ] for bytes with their length as a variable byte integer in front; "abc" for bytes; s"abc" for a string with its
// length in front.
func Bytes(t testing.TB, notation string) []byte {
	t.Helper()
	b, err := parseBytes(notation)
	if err != nil {
		t.Fatalf("%s: %v", notation, err)
	}
	return b
}

func parseBytes(s string) ([]byte, error) {
	b, rest, err := parseUntil(s, false)
	if err == nil && rest != "" {
		err = fmt.Errorf("left over: %s", rest)
	}
	return b, err
}

// parseUntil parses up to the end of s, or up to the bracket that closes a group.
func parseUntil(s string, group bool) (b []byte, rest string, err error) {
	for {
		s = strings.TrimSpace(s)
		switch {
		case s == "" && group:
			return nil, "", fmt.Errorf("group without an end")
		case s == "":
			return b, "", nil
		case s[0] == ']' && group:
			return b, s[1:], nil
		case s[0] == '[', strings.HasPrefix(s, "len"):
			var inner []byte
			if s[0] == '[' {
				inner, s, err = parseUntil(s[1:], true)
			} else {
				inner, s, err = parseUntil(s[3:], false)
			}
			if err != nil {
				return nil, "", err
			}
			b = append(binary.AppendUvarint(b, uint64(len(inner))), inner...)
		case s[0] == '"', strings.HasPrefix(s, `s"`):
			text, after, ok := strings.Cut(s[strings.IndexByte(s, '"')+1:], `"`)
			if !ok {
				return nil, "", fmt.Errorf("string without an end: %s", s)
			}
			if s[0] == 's' {
				b = binary.BigEndian.AppendUint16(b, uint16(len(text)))
			}
			b, s = append(b, text...), after
		default:
			n := 0
			for n < len(s) && strings.IndexByte("0123456789abcdef", s[n]) >= 0 {
				n++
			}
			v, err := hex.DecodeString(s[:n])
			if n == 0 || err != nil {
				return nil, "", fmt.Errorf("neither hex nor notation: %s", s)
			}
			b, s = append(b, v...), s[n:]
		}
	}
}

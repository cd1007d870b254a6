package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing that is wrong with a configuration, and where to repair it.
type Fault struct {
	// File, Line and Column are where the fault stands, when it stands in the file.
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`

	// From names the variable or flag the value came from, when it did not come from the file.
	From string `json:"from,omitempty"`

	// Key is the path of the key, such as spool.streams[1].ttl; empty when the fault is not about a key.
	Key string `json:"key,omitempty"`

	// Problem says what is wrong and what is allowed.
	Problem string `json:"problem"`
}

// Error is "configs/forebay.yaml:14:5: spool.fsnyc: unknown key (did you mean fsync?)".
func (f Fault) Error() string {
	var parts []string
	switch {
	case f.From != "":
		parts = append(parts, f.From)
	case f.Line > 0 && f.Column > 0:
		parts = append(parts, fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column))
	case f.Line > 0:
		parts = append(parts, fmt.Sprintf("%s:%d", f.File, f.Line))
	case f.File != "":
		parts = append(parts, f.File)
	}
	if f.Key != "" {
		parts = append(parts, f.Key)
	}
	return strings.Join(append(parts, f.Problem), ": ")
}

// MaxFaults is how many faults are told: nobody reads more, and each of the hundred thousand lines of another file would be one.
const MaxFaults = 100

// Faults are the faults of one configuration, in the order of the file, then environment, then flags: all of them, or the first
// MaxFaults and one that says that there are more.
type Faults []Fault

// Error has one line for each fault.
func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// sort puts fs into the order in which somebody repairs them: down the file first.
func (fs Faults) sort() {
	slices.SortStableFunc(fs, func(a, b Fault) int {
		return cmp.Or(
			cmp.Compare(a.From, b.From),
			cmp.Compare(rank(a.Line), rank(b.Line)),
			cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Key, b.Key),
		)
	})
}

// told are the faults as they are shown: sorted, and if there are too many, the first of them and a word about the others.
func (fs Faults) told(file string) Faults {
	fs.sort()
	if len(fs) <= MaxFaults {
		return fs
	}
	return append(fs[:MaxFaults:MaxFaults], Fault{File: file, Problem: fmt.Sprintf("has more faults than these %d", MaxFaults)})
}

// rank puts faults without a line last.
func rank(line int) int {
	if line == 0 {
		return 1 << 30
	}
	return line
}

// covers says whether fs already speak about the key at path, so that what Validate has to say about it would be an echo: the
// key itself, a key above or below it, or an unknown key beside it, which may well be this one misspelt.
func (fs Faults) covers(path string) bool {
	for _, f := range fs {
		if f.From == "" && f.Key == "" {
			return true // the file as a whole
		}
		if f.Key != "" && (f.Key == path || under(path, f.Key) || under(f.Key, path)) {
			return true
		}
		if strings.HasPrefix(f.Problem, unknownKey) && parent(f.Key) == parent(path) {
			return true
		}
	}
	return false
}

// under says whether path lies below top: a.b and a[1] lie below a.
func under(path, top string) bool {
	rest, ok := strings.CutPrefix(path, top)
	return ok && rest != "" && (rest[0] == '.' || rest[0] == '[')
}

// parent is path without its last step: a.b[1] of a.b[1].c, a.b of a.b[1], "" of a.
func parent(path string) string {
	i := strings.LastIndexAny(path, ".[")
	return path[:max(i, 0)]
}

package bridge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/forebay-gateway/forebay/spool"
)

// marks are the offsets of one partition that are dealt with out of order: ascending ranges that do not touch. They are state
// of the spool,
//
//	key    <partition>/<first offset>
//	value  1 <next offset behind the range>
//
// where 1 is the version.
type marks struct {
	partition int
	ranges    []span
}

// span is the offsets [from, to).
type span struct{ from, to spool.Offset }

const (
	marksSpace   = "deadletters"
	marksVersion = "1"
)

func (m *marks) key(from spool.Offset) string { return fmt.Sprintf("%d/%d", m.partition, from) }

// has reports whether o is marked.
func (m *marks) has(o spool.Offset) bool {
	i, found := slices.BinarySearchFunc(m.ranges, o, func(s span, o spool.Offset) int {
		if s.to <= o {
			return -1
		}
		if s.from > o {
			return 1
		}
		return 0
	})
	return found && m.ranges[i].from <= o
}

// with is m and some spans more, without what is below start, and where everything below is dealt with.
func (m *marks) with(more []span, start spool.Offset) (_ marks, next spool.Offset) {
	all := append(slices.Clone(m.ranges), more...)
	slices.SortFunc(all, func(a, b span) int {
		switch {
		case a.from < b.from:
			return -1
		case a.from > b.from:
			return 1
		}
		return 0
	})
	out := marks{partition: m.partition}
	for _, s := range all {
		if s.from <= start {
			start = max(start, s.to)
			continue
		}
		if n := len(out.ranges); n > 0 && s.from <= out.ranges[n-1].to {
			out.ranges[n-1].to = max(out.ranges[n-1].to, s.to)
			continue
		}
		out.ranges = append(out.ranges, s)
	}
	return out, start
}

// changes lead from m to n.
func (m *marks) changes(n *marks) []spool.Change {
	var out []spool.Change
	after := make(map[span]bool, len(n.ranges))
	from := make(map[spool.Offset]bool, len(n.ranges))
	for _, s := range n.ranges {
		after[s], from[s.from] = true, true
	}
	before := make(map[span]bool, len(m.ranges))
	for _, s := range m.ranges {
		before[s] = true
		if !from[s.from] {
			out = append(out, spool.Change{Space: marksSpace, Key: m.key(s.from)})
		}
	}
	for _, s := range n.ranges {
		if !before[s] {
			out = append(out, spool.Change{Space: marksSpace, Key: m.key(s.from), Value: fmt.Appendf(nil, "%s %d", marksVersion, s.to)})
		}
	}
	return out
}

// loadMark reads one entry.
func loadMark(key string, value []byte) (partition int, s span, err error) {
	p, o, ok := strings.Cut(key, "/")
	version, to, ok2 := strings.Cut(string(value), " ")
	if ok2 && version != marksVersion {
		return 0, s, fmt.Errorf("dead-letter mark %q: %w", key, spool.ErrUnsupported)
	}
	partition, err1 := strconv.Atoi(p)
	first, err2 := strconv.ParseUint(o, 10, 64)
	next, err3 := strconv.ParseUint(to, 10, 64)
	if !ok || !ok2 || err1 != nil || err2 != nil || err3 != nil || next <= first {
		return 0, s, fmt.Errorf("dead-letter mark %q = %q is damaged", key, value)
	}
	return partition, span{spool.Offset(first), spool.Offset(next)}, nil
}

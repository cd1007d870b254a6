package mapping

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// timestamp is the time of the Kafka record, and that of reception. device is what the device said, when it was not used.
func (m *Mapper) timestamp(s *Scratch) (at, received time.Time, device string) {
	received = time.Unix(0, s.rec.ReceivedAt)
	if m.time == nil {
		return received, received, ""
	}
	text, missing, err := m.time.appendTo(s.buf[:0], s)
	s.buf = text
	if err != nil || missing != nil {
		m.counts.faults[BadTimestamp].Add(1)
		return received, received, ""
	}
	t := m.cfg.Timestamp
	if at, ok := parseTime(string(text), t.Unit); ok && !at.Before(received.Add(-t.MaxPast.Std())) && !at.After(received.Add(t.MaxFuture.Std())) {
		return at, received, ""
	}
	m.counts.faults[BadTimestamp].Add(1)
	return received, received, string(text[:min(len(text), maxTimeText)])
}

const maxTimeText = 64 // bytes of what a device calls a time

// OldestTime is the oldest timestamp that a record may have that was received at t or later.
func (m *Mapper) OldestTime(t time.Time) time.Time {
	if m.time == nil {
		return t
	}
	return t.Add(-m.cfg.Timestamp.MaxPast.Std())
}

// parseTime reads a time: RFC 3339, or a number since 1970 of a unit. auto tells the unit of a number by its size: seconds until the
// year 5138, then milliseconds, microseconds and nanoseconds, each a thousand times as many.
func parseTime(text, unit string) (time.Time, bool) {
	text = strings.TrimSpace(text)
	if text == "" || len(text) > maxTimeText {
		return time.Time{}, false
	}
	if strings.ContainsAny(text, ":Tt") {
		t, err := time.Parse(time.RFC3339Nano, text)
		return t, err == nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return parseFraction(text, unit)
	}
	const seconds = 100_000_000_000 // since 1970: the year 5138
	if unit == "auto" {
		switch abs := max(n, -n); {
		case abs < seconds:
			unit = "s"
		case abs < seconds*1000:
			unit = "ms"
		case abs < seconds*1000_000:
			unit = "us"
		default:
			unit = "ns"
		}
	}
	per := units[unit]
	if n > math.MaxInt64/per || n < math.MinInt64/per {
		return time.Time{}, false
	}
	return time.Unix(0, n*per), true
}

var units = map[string]int64{"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1}

// parseFraction reads a number that is not whole, such as 1700000000.25 seconds, without losing digits to a float.
func parseFraction(text, unit string) (time.Time, bool) {
	if strings.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune("0123456789.eE+-", r) }) >= 0 {
		return time.Time{}, false
	}
	if _, exp, ok := strings.Cut(strings.ToLower(text), "e"); ok {
		if e, err := strconv.Atoi(exp); err != nil || e < -30 || e > 30 { // or a few bytes would cost much memory
			return time.Time{}, false
		}
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return time.Time{}, false
	}
	if unit == "auto" {
		f, _ := r.Float64()
		switch f = math.Abs(f); {
		case f < 1e11:
			unit = "s"
		case f < 1e14:
			unit = "ms"
		case f < 1e17:
			unit = "us"
		default:
			unit = "ns"
		}
	}
	r.Mul(r, new(big.Rat).SetInt64(units[unit]))
	ns := new(big.Int).Quo(r.Num(), r.Denom())
	if !ns.IsInt64() {
		return time.Time{}, false
	}
	return time.Unix(0, ns.Int64()), true
}

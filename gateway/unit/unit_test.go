package unit

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseBytes(t *testing.T) {
	f := func(in string, want Bytes) {
		t.Helper()
		if got, err := ParseBytes(in); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	f("0", 0)
	f("0B", 0)
	f("512B", 512)
	f("64KiB", 64<<10)
	f("10GiB", 10<<30)
	f("10 GiB", 10<<30)
	f("10gib", 10<<30)
	f("1MB", 1_000_000)
	f("1kB", 1000)
	f("1.5GiB", 3<<29)
	f("9223372036854775807B", math.MaxInt64)
}

func TestParseBytesRefuses(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got, err := ParseBytes(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseBytes(%q) = %d, %v, want an error with %q", in, got, err, want)
		}
	}
	f("5", "has no unit")
	f("", "is not a size")
	f("GiB", "is not a size")
	f("-1GiB", "is not a size")
	f("1.GiB", "is not a size")
	f("1.2.3GiB", "is not a size")
	f("10G", `unknown unit "G"`)
	f("10 Gi B", "unknown unit")
	f("0.3B", "whole number of bytes")
	f("9223372036854775808B", "more than")
	f(strings.Repeat("9", 100)+"B", "is not a size")
}

func TestApproxIsForPeople(t *testing.T) {
	for b, want := range map[Bytes]string{0: "0B", 1: "1B", 1023: "1023B", KiB: "1KiB", 23592960: "22.5MiB", 10 * GiB: "10GiB", 10*GiB - 1: "10GiB", -1: "-1B"} {
		if got := b.Approx(); got != want {
			t.Errorf("%d: %s, want %s", int64(b), got, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	f := func(in string, want time.Duration) {
		t.Helper()
		if got, err := ParseDuration(in); err != nil || got.Std() != want {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	f("0", 0)
	f("0s", 0)
	f("250ms", 250*time.Millisecond)
	f("100us", 100*time.Microsecond)
	f("100µs", 100*time.Microsecond)
	f("72h", 72*time.Hour)
	f("7d", 7*24*time.Hour)
	f("2w", 14*24*time.Hour)
	f("1d12h", 36*time.Hour)
	f("1h30m", 90*time.Minute)
	f("1.5h", 90*time.Minute)
	f("9223372036854775807ns", math.MaxInt64)
}

func TestParseDurationRefuses(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got, err := ParseDuration(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseDuration(%q) = %v, %v, want an error with %q", in, got, err, want)
		}
	}
	f("5", "has no unit")
	f("1h30", "has no unit")
	f("", "is not a duration")
	f("-5s", "is not a duration")
	f("h", "is not a duration")
	f("soon", "is not a duration")
	f("5y", `unknown unit "y"`)
	f("300000d", "longer than")
}

func TestParseRate(t *testing.T) {
	f := func(in string, want Rate) {
		t.Helper()
		if got, err := ParseRate(in); err != nil || got != want {
			t.Errorf("ParseRate(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	f("0", 0)
	f("5MiB/s", 5<<20)
	f("5 MiB/s", 5<<20)
	for _, in := range []string{"5", "5MiB", "5/s", "-5MiB/s", "5MiB/m", "", "/s"} {
		if got, err := ParseRate(in); err == nil || !strings.Contains(err.Error(), RateAllowed) {
			t.Errorf("ParseRate(%q) = %d, %v, want an error that says what is allowed", in, got, err)
		}
	}
}

func TestStringReadsBack(t *testing.T) {
	for _, want := range []Bytes{0, 1, 1023, 1024, 1025, 1500, 10 * GiB, 1e9, math.MaxInt64} {
		if got, err := ParseBytes(want.String()); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", want.String(), got, err, want)
		}
		if got, err := ParseRate(Rate(want).String()); err != nil || got != Rate(want) {
			t.Errorf("ParseRate(%q) = %d, %v, want %d", Rate(want).String(), got, err, want)
		}
	}
	for _, want := range []Duration{0, 1, 1500, Second, 90 * Minute, Day, Week, 36 * Hour, Day + 1, math.MaxInt64} {
		if got, err := ParseDuration(want.String()); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %d, %v, want %d", want.String(), got, err, want)
		}
	}
}

func TestStringOfNegativeDuration(t *testing.T) {
	if got := (-90 * Minute).String(); got != "-1h30m" {
		t.Errorf("String() = %q, want -1h30m", got)
	}
	if got := Duration(math.MinInt64).String(); !strings.HasPrefix(got, "-106751d") {
		t.Errorf("String() = %q, want the longest negative duration", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("10GiB")
	f.Add("1h30m")
	f.Add("5MiB/s")
	f.Fuzz(func(t *testing.T, s string) {
		if b, err := ParseBytes(s); err == nil {
			if again, err := ParseBytes(b.String()); err != nil || again != b || b < 0 {
				t.Errorf("ParseBytes(%q) = %d, prints as %q, reads back as %d, %v", s, b, b, again, err)
			}
		}
		if d, err := ParseDuration(s); err == nil {
			if again, err := ParseDuration(d.String()); err != nil || again != d || d < 0 {
				t.Errorf("ParseDuration(%q) = %d, prints as %q, reads back as %d, %v", s, d, d, again, err)
			}
		}
		if r, err := ParseRate(s); err == nil {
			if again, err := ParseRate(r.String()); err != nil || again != r || r < 0 {
				t.Errorf("ParseRate(%q) = %d, prints as %q, reads back as %d, %v", s, r, r, again, err)
			}
		}
	})
}

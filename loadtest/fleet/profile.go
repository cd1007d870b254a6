package fleet

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Profile is how a device spreads its messages over time. Its average is always the rate.
type Profile struct {
	Name   string
	Period time.Duration // length of one cycle; 0 is no cycle: evenly spread
	Active float64       // part of the cycle in which the device publishes, 0..1
}

// Steady spreads the messages evenly, each device with its own phase. Bursty is what an ingest gateway has to live
// with: the devices of a site wake together (a shift begins, a network is back), publish what gathered and fall silent.
var (
	Steady = Profile{Name: "steady"}
	Bursty = Profile{Name: "bursty", Period: 2 * time.Second, Active: 0.25}
)

// ParseProfile reads "steady", "bursty" or "bursty:PERIOD:ACTIVE" as in "bursty:5s:0.1".
func ParseProfile(s string) (Profile, error) {
	name, rest, detailed := strings.Cut(s, ":")
	if name == Steady.Name && !detailed {
		return Steady, nil
	}
	if name != Bursty.Name {
		return Profile{}, fmt.Errorf("profile %q is not steady or bursty", s)
	}
	p := Bursty
	if !detailed {
		return p, nil
	}
	period, active, _ := strings.Cut(rest, ":")
	var err error
	if p.Period, err = time.ParseDuration(period); err != nil || p.Period <= 0 {
		return Profile{}, fmt.Errorf("profile %q: %q is no period like 5s", s, period)
	}
	if active != "" {
		if p.Active, err = strconv.ParseFloat(active, 64); err != nil || p.Active <= 0 || p.Active > 1 {
			return Profile{}, fmt.Errorf("profile %q: %q is not in 0..1", s, active)
		}
	}
	return p, nil
}

// Bursty reports whether the profile has cycles.
func (p Profile) Bursty() bool { return p.Period > 0 }

// due is when message n of a device is to be sent, counted from the start; rate is the device's, phase is 0..1 and
// keeps steady devices apart. Bursty devices have no phase: that they meet is the point.
func (p Profile) due(n int, rate, phase float64) time.Duration {
	if !p.Bursty() {
		return time.Duration((float64(n) + phase) / rate * float64(time.Second))
	}
	at := float64(n) / (rate * p.Period.Seconds()) // in cycles
	cycle, within := math.Modf(at)
	return time.Duration((cycle + within*p.Active) * float64(p.Period))
}

// Mix holds the shares of QoS 0, 1 and 2.
type Mix [3]int

// ParseMix reads "0:10,1:80,2:10"; a QoS that is not named has no share.
func ParseMix(s string) (Mix, error) {
	var m Mix
	for part := range strings.SplitSeq(s, ",") {
		name, share, ok := strings.Cut(strings.TrimSpace(part), ":")
		if !ok {
			share = "1"
		}
		q, err := strconv.Atoi(name)
		n, err2 := strconv.Atoi(share)
		if err != nil || err2 != nil || q < 0 || q > 2 || n < 0 || n > 1_000_000 {
			return Mix{}, fmt.Errorf("QoS mix %q: %q is not QoS:SHARE", s, part)
		}
		m[q] += n
	}
	if m == (Mix{}) {
		return Mix{}, fmt.Errorf("QoS mix %q has no share at all", s)
	}
	return m, nil
}

// QoS is the quality of service of a device's message. It depends on nothing else, so that nobody needs to store it.
func (m Mix) QoS(device, seq int) uint8 {
	// Fibonacci hashing spreads the levels without a pattern that could hide between two devices.
	h := (uint64(device)<<32 | uint64(seq)) * 0x9e3779b97f4a7c15
	n := int((h >> 32) % uint64(m[0]+m[1]+m[2]))
	switch {
	case n < m[0]:
		return 0
	case n < m[0]+m[1]:
		return 1
	}
	return 2
}

// String is the form that ParseMix reads.
func (m Mix) String() string { return fmt.Sprintf("0:%d,1:%d,2:%d", m[0], m[1], m[2]) }

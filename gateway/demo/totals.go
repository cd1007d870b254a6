package demo

import (
	"fmt"
	"strings"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// totals is what remains on the terminal.
func totals(r *fleet.Report, spooled, disk int64) string {
	var b strings.Builder
	v := r.Verdict
	row := func(name string, n int64, rest string, args ...any) {
		fmt.Fprintf(&b, "  %-13s%13s   %s\n", name, number(n), fmt.Sprintf(rest, args...))
	}
	row("published", v.Sent.Total(), "by %d devices in %.1f s: QoS 0 %s, QoS 1 %s, QoS 2 %s",
		r.Config.Devices, r.Seconds, number(v.Sent[0]), number(v.Sent[1]), number(v.Sent[2]))
	row("acknowledged", v.Acknowledged.Total(), "%s refused, %s never settled", number(v.Refused.Total()), number(v.Unsettled))
	row("spooled", spooled, "%s on disk", size(disk))
	for _, c := range v.Checks {
		name := "delivered"
		if c.Name == "kafka" {
			name = "bridged"
		}
		row(name, c.Unique.Total(), "%s missing, %s doubled, %s out of order", number(c.Missing.Total()), number(c.Doubled.Total()), number(c.Reordered))
	}
	for _, c := range append([]fleet.Check{{Name: "acknowledged"}}, v.Checks...) {
		if l := r.Latency[c.Name]; l.Count > 0 {
			fmt.Fprintf(&b, "  %-26s   p50 %s, p99 %s, max %s\n", "to "+c.Name, millis(l.P50), millis(l.P99), millis(l.Max))
		}
	}
	for _, o := range v.Offenders {
		fmt.Fprintf(&b, "  ! %s\n", o)
	}
	if v.Reconciled {
		b.WriteString("reconciled: every acknowledged message reached the subscriber and Kafka\n")
	} else {
		fmt.Fprintf(&b, "NOT RECONCILED: %s\n", strings.Join(v.Faults, "; "))
	}
	return b.String()
}

package demo

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

// style marks a piece of a line; its value is the number of the terminal's attribute.
type style string

const (
	normal style = ""
	bold   style = "1"
	dim    style = "2"
	good   style = "32"
	warn   style = "33"
	bad    style = "31;1"
	flow   style = "36"
)

// line is one line of the picture. Pieces are kept apart, so that cutting it never cuts an escape sequence.
type line []piece

type piece struct {
	style style
	text  string
}

// add appends a piece.
func (l *line) add(s style, format string, args ...any) {
	*l = append(*l, piece{s, fmt.Sprintf(format, args...)})
}

// render writes at most width columns. Every rune that we use is one column wide.
func (l line) render(b *strings.Builder, width int, colour bool) {
	for _, p := range l {
		if width <= 0 {
			return
		}
		text := p.text
		if n := utf8.RuneCountInString(text); n > width {
			text = string([]rune(text)[:width])
		}
		width -= utf8.RuneCountInString(text)
		if colour && p.style != normal {
			fmt.Fprintf(b, "\x1b[%sm%s\x1b[0m", p.style, text)
		} else {
			b.WriteString(text)
		}
	}
}

// wide is the width from which there is room for the small charts.
const wide = 64

// frame draws v. The most important lines come first: a low window shows those.
func frame(v view, width int) []line {
	chart := min(maxHistory, width-42)
	var out []line
	row := func() *line {
		out = append(out, line{})
		return &out[len(out)-1]
	}
	head := row()
	head.add(bold, "Forebay demo")
	head.add(normal, "  %s  %s", v.phase, clock(v.elapsed, v.duration))
	if v.shutdown != "" {
		head.add(dim, "   %s", v.shutdown)
	}
	row()
	way := row()
	if width >= wide {
		way.add(normal, "%d devices ", v.devices)
		way.add(flow, "─▶")
		way.add(normal, " gateway ")
		way.add(flow, "─▶")
		way.add(normal, " spool ")
		way.add(flow, "─▶")
		way.add(normal, " subscriber, ")
	}
	way.add(normal, "Kafka ")
	switch {
	case v.outage > 0:
		way.add(bad, "DOWN, back in %.0f s", v.outage.Seconds()+0.5)
	case !v.upstreamUp:
		way.add(bad, "DOWN")
	default:
		way.add(good, "up")
	}
	row()

	count := func(name string, n int64, rate float64, tail func(*line)) {
		l := row()
		l.add(normal, "  %-13s", name)
		l.add(bold, "%12s", number(n))
		l.add(dim, "%9s/s", number(int64(rate)))
		if tail != nil {
			tail(l)
		}
	}
	f := v.fleet
	count("published", f.Published, v.now.published, func(l *line) {
		if chart > 0 && width >= wide {
			l.add(flow, "   %s", sparks(v.history, chart))
		}
	})
	count("acknowledged", f.Acknowledged, v.now.acknowledged, func(l *line) { l.add(dim, "   %s in flight", number(f.InFlight)) })
	count("spooled", v.spooled, v.now.spooled, func(l *line) { l.add(dim, "   %s on disk", size(v.disk)) })
	count("delivered", f.Delivered, v.now.delivered, nil)
	count("bridged", f.Bridged, v.now.bridged, nil)
	l := row()
	l.add(normal, "  %-13s", "lag")
	lagStyle := bold
	if v.lag > 0 && !v.upstreamUp {
		lagStyle = warn
	}
	l.add(lagStyle, "%12s", number(v.lag))
	l.add(dim, "%11s", "to Kafka")
	if chart > 0 && width >= wide {
		l.add(warn, "   %s", sparks(v.lags, chart))
	}
	row()
	l = row()
	l.add(dim, "  %-13s%12s%11s", "latency", "p50", "p99")
	for _, t := range []struct {
		name string
		fleet.Latency
	}{{"acknowledged", v.ack}, {"subscriber", v.deliver}, {"Kafka", v.bridge}} {
		l = row()
		l.add(normal, "  %-13s", t.name)
		l.add(bold, "%12s", millis(t.P50))
		l.add(normal, "%11s", millis(t.P99))
	}
	row()
	l = row()
	l.add(dim, "  refused %s · doubled %s · out of order %s · reconnects %s · memory %s",
		number(f.Refused), number(f.Doubled), number(f.Reordered), number(f.Reconnects), size(v.memory))
	if v.problem != "" {
		row().add(warn, "  %s", v.problem)
	}
	return out
}

// plain is v in one line, for where there is no terminal.
func plain(v view) string {
	up := "up"
	if !v.upstreamUp {
		up = "down"
	}
	f := v.fleet
	return fmt.Sprintf("%s %s: published %d (%.0f/s), acknowledged %d, spooled %d, delivered %d, bridged %d, lag %d, ack p50 %s p99 %s, kafka p50 %s p99 %s, upstream %s",
		clock(v.elapsed, 0), v.phase, f.Published, v.now.published, f.Acknowledged, v.spooled, f.Delivered, f.Bridged, v.lag,
		millis(v.ack.P50), millis(v.ack.P99), millis(v.bridge.P50), millis(v.bridge.P99), up)
}

// clock is minutes and seconds, of how many if that is known.
func clock(d, of time.Duration) string {
	mmss := func(d time.Duration) string { return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60) }
	if of > 0 {
		return mmss(min(d, of)) + " of " + mmss(of)
	}
	return mmss(d)
}

// number groups the digits, as people read them.
func number(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// size is bytes in the largest unit that leaves a digit.
func size(n int64) string {
	f, unit := float64(n), 0
	for f >= 1024 && unit < 4 {
		f /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, [...]string{"B", "KiB", "MiB", "GiB", "TiB"}[unit])
}

// millis is a time in the unit that reads best.
func millis(ms float64) string {
	switch {
	case ms == 0:
		return "-"
	case ms < 1000:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.1f s", ms/1000)
}

// sparks draws the last n values as small bars, the highest of them full.
func sparks(values []float64, n int) string {
	const bars = "▁▂▃▄▅▆▇█"
	values = values[max(0, len(values)-n):]
	top := 1.0
	for _, v := range values {
		top = max(top, v)
	}
	var b strings.Builder
	for _, v := range values {
		b.WriteString(bars[3*int(v/top*7+0.5):][:3]) // each bar is three bytes of UTF-8
	}
	return b.String()
}

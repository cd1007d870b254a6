package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/forebay-gateway/forebay/loadtest/fleet"
)

const (
	defaultDuration = 10 * time.Second
	liveEvery       = 250 * time.Millisecond // on a terminal, in place
	plainEvery      = 3 * time.Second        // elsewhere, a line each
)

// showProgress writes one line about the run: over and over in place on a terminal, a new one now and then elsewhere.
// The returned function ends it.
func showProgress(w *os.File, f *fleet.Fleet) (done func()) {
	live := term.IsTerminal(int(w.Fd()))
	every := plainEvery
	if live {
		every = liveEvery
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(every)
		defer t.Stop()
		var last fleet.Snapshot
		for {
			select {
			case <-quit:
				if live {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			case <-t.C:
			}
			s := f.Snapshot()
			line := progressLine(s, last, every)
			last = s
			if !live {
				fmt.Fprintln(w, line)
				continue
			}
			if width, _, err := term.GetSize(int(w.Fd())); err == nil && width > 1 && len(line) >= width {
				line = line[:width-1] // a line that wraps cannot be overwritten
			}
			fmt.Fprint(w, "\r", line, "\x1b[K")
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// progressLine says where the run stands.
func progressLine(s, last fleet.Snapshot, every time.Duration) string {
	rate := float64(s.Published-last.Published) / every.Seconds()
	line := fmt.Sprintf("%-10s %4.0fs  %d published (%.0f/s), %d acknowledged, %d in flight, %d delivered, %d in kafka, ack p50 %.1f p99 %.1f ms",
		s.Phase, s.Elapsed.Seconds(), s.Published, rate, s.Acknowledged, s.InFlight, s.Delivered, s.Bridged, s.Ack.P50, s.Ack.P99)
	if s.Reconnects > 0 {
		line += fmt.Sprintf(", %d reconnects", s.Reconnects)
	}
	return line
}

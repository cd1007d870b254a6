package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// bar shows how far long work is: one line that is written over on a terminal, a line now and then elsewhere.
type bar struct {
	w        io.Writer
	terminal bool
	width    int
	began    time.Time
	shown    time.Time
	used     bool
}

const (
	barEvery  = 100 * time.Millisecond
	lineEvery = 10 * time.Second // nothing at all for short work: a script's log is read by people too
)

// newBar draws on w, which is the standard error.
func newBar(w io.Writer) *bar {
	b := &bar{w: w, began: time.Now(), shown: time.Now(), width: 80}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		b.terminal = true
		b.shown = time.Time{}
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			b.width = n
		}
	}
	return b
}

// show is told how far the work is.
func (b *bar) show(done, total int64, what string) {
	every := lineEvery
	if b.terminal {
		every = barEvery
	}
	if now := time.Now(); now.Sub(b.shown) < every {
		return
	}
	b.shown = time.Now()
	line := b.line(done, total, what, time.Since(b.began))
	if !b.terminal {
		fmt.Fprintln(b.w, line)
		return
	}
	b.used = true
	fmt.Fprintf(b.w, "\r\x1b[K%s", line)
}

// count is show for work whose end is not known.
func (b *bar) count(line string) {
	every := lineEvery
	if b.terminal {
		every = barEvery
	}
	if time.Since(b.shown) < every {
		return
	}
	b.shown = time.Now()
	if !b.terminal {
		fmt.Fprintln(b.w, line)
		return
	}
	b.used = true
	fmt.Fprintf(b.w, "\r\x1b[K%s", line[:min(len(line), b.width-1)])
}

// progress shows work whose share is known.
func (b *bar) progress(share float64, what string) {
	text := fmt.Sprintf("%3.0f%%  %s", share*100, what)
	if b.terminal {
		full := int(share * barCells)
		text = "[" + strings.Repeat("#", full) + strings.Repeat(".", barCells-full) + "] " + text
	}
	b.count(text)
}

const barCells = 24

func (b *bar) line(done, total int64, what string, took time.Duration) string {
	share := 1.0
	if total > 0 {
		share = float64(done) / float64(total)
	}
	rate := ""
	if s := took.Seconds(); s > 0 {
		rate = size(int64(float64(done)/s)) + "/s"
	}
	text := fmt.Sprintf("%3.0f%%  %s of %s  %s  %s", share*100, size(done), size(total), rate, what)
	if b.terminal {
		full := int(share * barCells)
		text = "[" + strings.Repeat("#", full) + strings.Repeat(".", barCells-full) + "] " + text
		text = text[:min(len(text), b.width-1)]
	}
	return text
}

// end takes the bar off the screen.
func (b *bar) end() {
	if b.used {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}

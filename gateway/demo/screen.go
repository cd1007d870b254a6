package demo

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// screen shows views. On a terminal it owns the alternate screen, so that what was there before comes back, and the
// totals that are printed after Close stay.
type screen struct {
	out    io.Writer
	fd     int // -1: not a terminal
	colour bool
}

// newScreen takes out over. It is a terminal if it says so and is able to move the cursor.
func newScreen(out io.Writer) *screen {
	s := &screen{out: out, fd: -1}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		s.fd = int(f.Fd())
		s.colour = os.Getenv("NO_COLOR") == ""
		io.WriteString(out, enterScreen)
	}
	return s
}

const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // alternate screen, cursor hidden
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	beginFrame  = "\x1b[?2026h\x1b[H" // synchronised update, where it is known; cursor home
	endFrame    = "\x1b[J\x1b[?2026l"
	endLine     = "\x1b[K"
)

// live reports whether views change in place; otherwise each is one line more.
func (s *screen) live() bool { return s.fd >= 0 }

// Show draws v with one write, over the picture before it: nothing is cleared first, so nothing flickers. The size is
// asked for each time, which is all that a resize needs.
func (s *screen) Show(v view) {
	if !s.live() {
		io.WriteString(s.out, plain(v)+"\n")
		return
	}
	width, height, err := term.GetSize(s.fd)
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	io.WriteString(s.out, s.compose(v, width, height))
}

// compose is the picture for a window of this size. The last line gets no line end, and no line fills the window: either
// could scroll it.
func (s *screen) compose(v view, width, height int) string {
	var b strings.Builder
	b.WriteString(beginFrame)
	lines := frame(v, width-1)
	lines = lines[:min(len(lines), height)]
	for i, l := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		l.render(&b, width-1, s.colour)
		b.WriteString(endLine)
	}
	b.WriteString(endFrame)
	return b.String()
}

// Close gives the terminal back. It may be called twice.
func (s *screen) Close() {
	if s.live() {
		io.WriteString(s.out, leaveScreen)
		s.fd = -1
	}
}

// Package screen draws lines over the lines that it has drawn before.
package screen

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// Live reports whether out is a terminal, where lines can be drawn again.
func Live(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// Screen is a terminal.
type Screen struct {
	Out   io.Writer
	lines int // that were drawn
}

// Draw draws the lines over those of the call before.
func (s *Screen) Draw(lines ...string) {
	// A terminal that is too narrow for a line would break it in two, which could not be drawn
	// again. So the terminal cuts it.
	const cut, wrap = "\x1b[?7l", "\x1b[?7h"
	s.Clear()
	fmt.Fprintf(s.Out, "%s%s\n%s", cut, strings.Join(lines, "\n"), wrap)
	s.lines = len(lines)
}

// Clear removes the lines that were drawn.
func (s *Screen) Clear() {
	if s.lines > 0 {
		fmt.Fprintf(s.Out, "\x1b[%dA\r\x1b[J", s.lines)
	}
	s.lines = 0
}

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

const legend = "+ answered  X refused by the API  - refused by us  . waiting"

// screen is where the program shows what happens.
type screen struct {
	out  io.Writer
	live bool // a terminal, where lines can be drawn again
}

// isTerminal reports whether lines can be drawn again in f.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// printf writes to the screen. If that fails, there is no place to say so.
func (s screen) printf(format string, args ...any) { fmt.Fprintf(s.out, format, args...) }

// watch shows the ways until done is closed: in a terminal one line for each, drawn again and
// again; else a line per second for each that has changed.
func (s screen) watch(ways []*way, done <-chan struct{}) {
	start := time.Now()
	every := time.Second
	if s.live {
		every = 50 * time.Millisecond
		s.printf("%s", strings.Repeat("\n", len(ways))) // the first drawing goes up over these
	}
	tick := time.NewTicker(every)
	defer tick.Stop()

	shown := make(map[*way]string)
	for last := false; !last; {
		select {
		case <-tick.C:
		case <-done:
			last = true
		}
		var lines strings.Builder
		for _, w := range ways {
			line := strings.TrimRight(w.line(), string(unmade))
			switch {
			case s.live:
				fmt.Fprintf(&lines, "%-12s %s\n", w.name, line)
			case shown[w] != line:
				fmt.Fprintf(&lines, "%2.0f s  %-12s %s\n", time.Since(start).Seconds(), w.name, line)
			}
			shown[w] = line
		}
		if s.live {
			s.printf("%s", again(len(ways), lines.String(), last))
		} else {
			s.printf("%s", &lines)
		}
	}
}

// again puts lines in the place of the last n. A terminal that is too narrow would break a
// line in two, which could not be drawn again. So again makes the terminal cut it, except the
// last time.
func again(n int, lines string, last bool) string {
	const clear, cut, wrap = "\x1b[J", "\x1b[?7l", "\x1b[?7h"
	lines = fmt.Sprintf("\x1b[%dA\r", n) + clear + lines
	if last {
		return lines
	}
	return cut + lines + wrap
}

// table prints what became of the calls, and what that shows. It has less than 60 columns, as
// all output does.
func (s screen) table(d *demo) {
	s.printf("\n%-12s %6s %9s %12s %8s %6s\n", "", "calls", "answered", "refused by", "seconds", "quota")
	s.printf("%-12s %6s %9s %7s %4s %8s %6s\n", "", "", "", "API", "us", "", "used")
	for _, w := range d.ways {
		t := w.tally()
		s.printf("%-12s %6d %9d %7d %4d %8.2f %4.0f %%\n",
			w.name, t.made, t.answered, t.refusedByAPI, t.refusedByUs, t.took.Seconds(), 100*t.used(d.rate))
	}
	s.printf("\n")
	for _, w := range d.ways {
		s.printf("%-13s %s\n", w.name+":", w.shows)
		if t := w.tally(); t.failed > 0 {
			s.printf("%d calls failed, the first with: %v\n", t.failed, t.failure)
		}
	}
	t := d.queue.tally()
	if t.answered < calls {
		return // there is nothing to compare with the ideal
	}
	s.printf("\nThe queue keeps to %v at once and %.3f per second.\nIdeal: (%d - %v) / %.3f = %.2f s.\nIt took %.2f s, %.3f times that.\n",
		d.limit.Capacity, d.limit.LeakRate, calls, d.limit.Capacity, d.limit.LeakRate, d.ideal().Seconds(),
		t.took.Seconds(), t.took.Seconds()/d.ideal().Seconds())
}

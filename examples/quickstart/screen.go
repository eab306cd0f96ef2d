package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

const legend = "+ answered   X refused by the API   - refused by us   . waiting"

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

// printf writes to the screen. Nobody could be told that this failed.
func (s screen) printf(format string, args ...any) { fmt.Fprintf(s.out, format, args...) }

// watch shows the ways until done is closed: in a terminal one line for each, drawn
// again and again; else a line per second for each that has changed.
func (s screen) watch(ways []*way, done <-chan struct{}) {
	start := time.Now()
	every := time.Second
	if s.live {
		every = 50 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()

	shown := make(map[*way]string)
	draw := func() {
		if s.live && len(shown) > 0 {
			s.printf("\x1b[%dA", len(ways)) // up to the first of the lines
		}
		for _, w := range ways {
			line := w.line()
			switch {
			case s.live:
				s.printf("\r%-12s %s\x1b[K\n", w.name, line)
			case shown[w] != line:
				s.printf("%2.0f s  %-12s %s\n", time.Since(start).Seconds(), w.name, strings.TrimRight(line, string(unmade)))
			}
			shown[w] = line
		}
	}
	if s.live {
		draw()
	}
	for {
		select {
		case <-tick.C:
			draw()
		case <-done:
			draw()
			return
		}
	}
}

// table prints what became of the calls, and what that shows.
func (s screen) table(d *demo) {
	s.printf("\n%-12s %5s %8s %14s %13s %7s %10s\n",
		"", "calls", "answered", "refused by API", "refused by us", "seconds", "quota used")
	for _, w := range d.ways {
		t := w.tally()
		s.printf("%-12s %5d %8d %14d %13d %7.2f %8.0f %%\n",
			w.name, t.made, t.answered, t.refusedByAPI, t.refusedByUs, t.took.Seconds(), 100*t.used(d.rate))
	}
	s.printf("\n")
	for _, w := range d.ways {
		s.printf("%-13s %s\n", w.name+":", w.shows)
		if t := w.tally(); t.failed > 0 {
			s.printf("%-13s %d calls failed, the first with: %v\n", "", t.failed, t.failure)
		}
	}
	t := d.queue.tally()
	if t.answered < calls {
		return // there is nothing to compare with the ideal
	}
	s.printf("\nThe queue keeps to %v at once and %.3f per second. Ideal: (%d - %v) / %.3f = %.2f s.\nIt took %.2f s, %.3f times that.\n",
		d.limit.Capacity, d.limit.LeakRate, calls, d.limit.Capacity, d.limit.LeakRate, d.ideal().Seconds(),
		t.took.Seconds(), t.took.Seconds()/d.ideal().Seconds())
}

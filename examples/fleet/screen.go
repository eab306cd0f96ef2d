package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// screen is where the program shows what happens.
type screen struct {
	out  io.Writer
	live bool // a terminal, where lines can be drawn again

	drawn int // lines of the table on the terminal
}

const legend = `quota:   what was used of burst + rate * seconds
refused: by the API, with 429
Jain:    fairness, 1 if all got the same, 1/N if one got all
wait:    until a call is answered, retries included
Redis:   scripts that it has run for each call to the API`

// isTerminal reports whether lines can be drawn again.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// printf writes to the screen. If that fails, there is no place to say so.
func (s *screen) printf(format string, args ...any) { fmt.Fprintf(s.out, format, args...) }

// every is how often to draw.
func (s *screen) every() time.Duration {
	if s.live {
		return 200 * time.Millisecond
	}
	return time.Second
}

var shows = map[mode]string{
	none:   "nobody paces; what is refused is tried again.",
	share:  "each worker keeps to its part of the limit.",
	shared: "all keep to one limit in Redis, and wait in line.",
}

func (s *screen) intro(o *outcome) {
	p := &o.Parameters
	s.printf("%s\n", summary)
	s.printf("%d processes with %d callers each call as fast as they\nmay, for %v s in each way.\n\n", p.Workers, p.Waiters, p.Seconds)
	s.printf("limit: %s\nAPI:   %s\n", o.Bucket, o.API)
	if o.Redis != "" {
		s.printf("Redis: %s\n", o.Redis)
	}
	if p.Kill > 0 {
		s.printf("kill:  %d workers in each way, started anew\n", p.Kill)
	}
	s.printf("seed:  %d\n\n", p.Seed)
	for _, m := range p.Modes {
		s.printf("%-7s %s\n", m+":", shows[m])
	}
	s.printf("\n%s\n\n", legend)
}

// draw shows the results so far: on a terminal all of them, over those drawn before; else a
// line for the last.
func (s *screen) draw(results []result) {
	last := &results[len(results)-1]
	if !s.live {
		s.printf("%3.0f s  %-6s %5.1f %% used, %d answered, %d refused\n", last.Seconds, last.Mode, 100*last.Used, last.Answered, last.refusals())
		return
	}
	lines := append(table(results), "", workersLine(last))
	s.printf("%s%s%s%s", cut, s.back(), strings.Join(lines, "\n")+"\n", wrap)
	s.drawn = len(lines)
}

// end shows all results for good.
func (s *screen) end(results []result) {
	between := "\n"
	if s.live {
		between = s.back()
	}
	s.printf("%s%s\n", between, strings.Join(table(results), "\n"))
}

// A terminal that is too narrow breaks a line in two, which the program could not draw again.
// So it makes the terminal cut such lines.
const cut, wrap = "\x1b[?7l", "\x1b[?7h"

// back goes to the first of the lines that were drawn, and clears them.
func (s *screen) back() string {
	if s.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", s.drawn)
}

// table shows the results in less than 60 columns, as all output does.
func table(results []result) []string {
	lines := []string{
		fmt.Sprintf("%-6s %5s %8s %7s %6s %4s %11s %5s", "", "quota", "answered", "refused", "failed", "Jain", "wait, s", "Redis"),
		fmt.Sprintf("%-6s %5s %8s %7s %6s %4s %5s %5s", "", "%", "", "", "", "", "p50", "p99"),
	}
	for i := range results {
		lines = append(lines, results[i].row())
	}
	return lines
}

func (r *result) row() string {
	perCall := "-"
	if r.CountedBy != "" {
		perCall = fmt.Sprintf("%.2f", r.PerCall)
	}
	return fmt.Sprintf("%-6s %5.1f %8d %7d %6d %4.2f %5.2f %5.2f %5s",
		r.Mode, 100*r.Used, r.Answered, r.refusals(), r.Failed, r.Jain, r.WaitP50, r.WaitP99, perCall)
}

// workersLine tells what each worker has got, as far as there is space.
func workersLine(r *result) string {
	line := fmt.Sprintf("%s, %.0f s, by worker:", r.Mode, r.Seconds)
	for i, w := range r.Workers {
		next := fmt.Sprintf(" %d", w.Answered)
		if len(line)+len(next) > 44 {
			return fmt.Sprintf("%s … (%d more)", line, len(r.Workers)-i)
		}
		line += next
	}
	return line
}

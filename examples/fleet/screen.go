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

const legend = `quota: what was used of burst + rate * seconds   refused: by the API, with 429
Jain: fairness over the workers, 1 if all got the same; one alone has 1/N
wait: from when a caller wants to call until it is answered, retries included
Redis/call: scripts run by the server, for each call to the API`

// isTerminal reports whether lines can be drawn again.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// printf writes to the screen. Nobody could be told that this failed.
func (s *screen) printf(format string, args ...any) { fmt.Fprintf(s.out, format, args...) }

// every is how often to draw.
func (s *screen) every() time.Duration {
	if s.live {
		return 200 * time.Millisecond
	}
	return time.Second
}

var shows = map[mode]string{
	none:   "nobody paces, and what is refused is tried again.",
	share:  "each worker keeps to its own part of the limit, in memory.",
	shared: "all keep to one limit in Redis, and wait in a queue.",
}

func (s *screen) intro(o *outcome) {
	p := &o.Parameters
	s.printf("%d workers, each a process with %d callers, call as fast as they may for %v s.\n", p.Workers, p.Waiters, p.Seconds)
	s.printf("limit: %s\nAPI:   %s\n", o.Bucket, o.API)
	if o.Redis != "" {
		s.printf("Redis: %s\n", o.Redis)
	}
	if p.Kill > 0 {
		s.printf("In each way %d workers are killed and started anew.\n", p.Kill)
	}
	s.printf("seed:  %d\n\n", p.Seed)
	for _, m := range p.Modes {
		s.printf("%-7s %s\n", m+":", shows[m])
	}
	s.printf("\n%s\n\n", legend)
}

// draw shows the results so far: on a terminal all of them, in place of what was
// there; else a line for the last.
func (s *screen) draw(results []result) {
	last := &results[len(results)-1]
	if !s.live {
		s.printf("%3.0f s  %s\n", last.Seconds, strings.TrimSpace(last.row()))
		return
	}
	s.redraw(append(table(results), "", workersLine(last)))
}

// end shows all results for good.
func (s *screen) end(results []result) {
	if s.live {
		s.redraw(table(results))
		return
	}
	s.printf("\n%s\n", strings.Join(table(results), "\n"))
}

func (s *screen) redraw(lines []string) {
	if s.drawn > 0 {
		s.printf("\x1b[%dA", s.drawn) // up to the first of the lines
	}
	for _, line := range lines {
		s.printf("\r%s\x1b[K\n", line)
	}
	s.printf("\x1b[J") // there may have been more
	s.drawn = len(lines)
}

// table shows the results in less than 80 columns: a line that a terminal breaks
// could not be drawn again.
func table(results []result) []string {
	lines := []string{fmt.Sprintf("%-6s %8s %8s %7s %6s %6s %9s %9s %10s",
		"", "quota", "answered", "refused", "failed", "Jain", "wait p50", "wait p99", "Redis/call")}
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
	return fmt.Sprintf("%-6s %6.1f %% %8d %7d %6d %6.4f %7.3f s %7.3f s %10s",
		r.Mode, 100*r.Used, r.Answered, r.refusals(), r.Failed, r.Jain, r.WaitP50, r.WaitP99, perCall)
}

// workersLine tells what each worker has got, as far as there is room.
func workersLine(r *result) string {
	line := fmt.Sprintf("%s, %.0f s, answered by worker:", r.Mode, r.Seconds)
	for i, w := range r.Workers {
		next := fmt.Sprintf(" %d", w.Answered)
		if len(line)+len(next) > 64 {
			return fmt.Sprintf("%s … (%d more)", line, len(r.Workers)-i)
		}
		line += next
	}
	return line
}

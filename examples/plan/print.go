package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// print prints the result, in 60 columns. If that fails, there is no place to say so.
func (r *result) print(out io.Writer) {
	printf := func(format string, args ...any) { fmt.Fprintf(out, format, args...) }
	printf("%s\n", shows)
	printf("%s, made by %s with %s each.\n", count(r.calls, "call"), count(r.workers, "worker"), count(r.callers, "caller"))
	printf("Once it goes, a call takes %v.\n\n", r.latency)
	printf("duration   %s, %s\n", short(r.Took), r.pace())
	printf("waits      p50 %s, p95 %s, longest %s\n", short(r.Wait(0.5)), short(r.Wait(0.95)), short(r.Wait(1)))
	printf("refusals   %d\n", r.Refused)
	if r.Refused > 0 {
		printf("           A call that would wait too long is refused,\n           and comes back when it is told.\n")
	}
	printf("\n%-24s %5s %20s %7s\n", "limit", "used", "most at a time", "binds")
	for _, l := range r.limits {
		most := fmt.Sprintf("%.0f of %s", r.Departures.Worst(l.per).Units, strconv.FormatFloat(l.n, 'f', -1, 64))
		printf("%-24s %5s %20s %7s\n", l.Name, percent(l.used(r.calls, r.Took)), most, percent(r.bound(l.Name)))
	}
	printf("%-24s %5s %20s %7s\n\n", byCallers, "", "", percent(r.bound(byCallers)))

	what := r.bounds()
	printf("What bounds it: %s, %s of the time.\n", what, percent(r.bound(what)))
	for _, l := range r.limits {
		if l.Name == what && !l.window && l.per > time.Second && l.n >= 1 {
			printf("%[1]s spaces calls evenly.\nTry %[1]s:window, too.\n", what)
		}
	}
	if least, next := r.least(what); least > 0 {
		printf("Without that it takes %s or more: %s.\n", short(least), next)
	}
}

// pace returns how many calls went in a unit of time in which it is more than one.
func (r *result) pace() string {
	if r.Took == 0 {
		return "all at once"
	}
	for _, unit := range []struct {
		name string
		of   time.Duration
	}{{"a second", time.Second}, {"a minute", time.Minute}, {"an hour", time.Hour}} {
		if n := float64(r.calls) / r.Took.Seconds() * unit.of.Seconds(); n >= 1 {
			return fmt.Sprintf("%.4g calls %s", n, unit.name)
		}
	}
	return "less than one call an hour"
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// short returns a time with three digits or so.
func short(d time.Duration) string {
	switch {
	case d >= 100*time.Hour:
		d = d.Round(time.Hour)
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		d = d.Round(time.Millisecond)
	default:
		d = d.Round(time.Microsecond)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

package watch

import (
	"fmt"
	"strconv"
	"time"
)

// count is a number of things, in words.
func count(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// plural is the word for one thing, or for n.
func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// brief is a duration in two units at most, "8 min 52 s", as the page's dur has it.
func brief(d time.Duration) string {
	const day, year = 24 * time.Hour, 31_556_952 * time.Second
	two := func(d, big time.Duration, name string, small time.Duration, smallName string) string {
		s := strconv.Itoa(int(d/big)) + " " + name
		if n := d % big / small; n > 0 {
			s += " " + strconv.Itoa(int(n)) + " " + smallName
		}
		return s
	}
	switch d = max(0, d); {
	case d >= 2*year:
		return strconv.Itoa(int(d/year)) + " years"
	case d.Round(time.Minute) >= day:
		return two(d.Round(time.Hour), day, "d", time.Hour, "h")
	case d.Round(time.Second) >= time.Hour:
		return two(d.Round(time.Minute), time.Hour, "h", time.Minute, "min")
	case d.Round(time.Second) >= time.Minute:
		return two(d.Round(time.Second), time.Minute, "min", time.Second, "s")
	case d >= 10*time.Second:
		return d.Round(time.Second).String()[:2] + " s"
	case d.Round(time.Millisecond) >= time.Second || d < time.Microsecond/2:
		return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + " s"
	case d.Round(time.Microsecond) >= time.Millisecond:
		return strconv.FormatInt(d.Round(time.Millisecond).Milliseconds(), 10) + " ms"
	}
	return strconv.FormatInt(d.Round(time.Microsecond).Microseconds(), 10) + " µs"
}

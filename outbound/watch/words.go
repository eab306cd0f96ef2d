package watch

import (
	"fmt"
	"math"
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

// brief is a duration in words without digits that nobody reads, "8 min 52 s", as the page's dur has it.
func brief(d time.Duration) string {
	const day, year = 24 * time.Hour, 31_556_952 * time.Second
	unit := time.Microsecond
	switch {
	case d >= day:
		unit = time.Hour
	case d >= time.Hour:
		unit = time.Minute
	case d >= 10*time.Second:
		unit = time.Second
	case d >= time.Second:
		unit = 100 * time.Millisecond
	case d >= time.Millisecond:
		unit = time.Millisecond
	}
	d = max(0, min(d, math.MaxInt64-unit))
	d = (d + unit/2) / unit * unit // the nearest multiple of the unit
	two := func(big time.Duration, name string, small time.Duration, smallName string) string {
		s := strconv.Itoa(int(d/big)) + " " + name
		if n := d % big / small; n > 0 {
			s += " " + strconv.Itoa(int(n)) + " " + smallName
		}
		return s
	}
	switch {
	case d >= 2*year:
		return strconv.Itoa(int(d/year)) + " years"
	case d >= day:
		return two(day, "d", time.Hour, "h")
	case d >= time.Hour:
		return two(time.Hour, "h", time.Minute, "min")
	case d >= time.Minute:
		return two(time.Minute, "min", time.Second, "s")
	case d >= time.Second || d == 0:
		return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s"
	case d >= time.Millisecond:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	return strconv.FormatInt(d.Microseconds(), 10) + " µs"
}

package store

import (
	"math"
	"time"
)

// growth is how much a slow clock speeds up per second: 10 % a minute.
var growth = math.Log(1.1) / 60

// dialOf returns how far the dial advances in real time x from speed v, and the speed after
// that. It rounds the advance down, so that the dial is never ahead.
func dialOf(v float64, x time.Duration) (time.Duration, float64) {
	if v >= 1 || x <= 0 {
		return x, min(v, 1)
	}
	up := math.Log(1/v) / growth // seconds until full speed
	if sec := x.Seconds(); sec < up {
		return min(x, floor(v/growth*math.Expm1(growth*sec))), v * math.Exp(growth*sec)
	}
	lost := up - (1-v)/growth
	return max(0, x-ceil(lost)), 1
}

// realOf is the inverse of dialOf: the real time in which the dial advances by y from speed
// v, rounded up.
func realOf(v float64, y time.Duration) time.Duration {
	if v >= 1 || y <= 0 {
		return y
	}
	return slowed(v, y)
}

func slowed(v float64, y time.Duration) time.Duration {
	sec := y.Seconds()
	if sec >= (1-v)/growth {
		lost := math.Log(1/v)/growth - (1-v)/growth
		return add(add(y, ceil(lost)), 1)
	}
	return add(max(y, ceil(math.Log1p(growth*sec/v)/growth)), 1)
}

// recovery returns the real time in which a clock of speed v speeds up to 1.
func recovery(v float64) time.Duration {
	if v >= 1 {
		return 0
	}
	return max(0, ceil(math.Log(1/v)/growth))
}

// lasts returns how long n units take to run out at this rate, rounded up. Less than a
// nanosecond is rounding, and counts as 0.
func lasts(n, rate float64) time.Duration { return lasting(n / rate) }

// lasting returns so many seconds, rounded as those of lasts.
func lasting(sec float64) time.Duration {
	if sec*1e9 < 1 {
		return 0
	}
	return ceil(sec)
}

// ceil and floor make a duration of seconds.
func ceil(sec float64) time.Duration  { return whole(math.Ceil(sec * 1e9)) }
func floor(sec float64) time.Duration { return whole(math.Floor(sec * 1e9)) }

// whole makes a duration of nanoseconds. It saturates instead of overflowing.
func whole(ns float64) time.Duration {
	if ns < math.MaxInt64 {
		return time.Duration(ns)
	}
	return math.MaxInt64
}

// add and sub saturate instead of overflowing.
func add(a, b time.Duration) time.Duration {
	c := a + b
	switch {
	case a > 0 && b > 0 && c < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && c >= 0:
		return math.MinInt64
	}
	return c
}

func sub(a, b time.Duration) time.Duration {
	if b == math.MinInt64 {
		return add(add(a, math.MaxInt64), 1)
	}
	return add(a, -b)
}

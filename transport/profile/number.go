package profile

import (
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	// forever is what longer times count as: 2^31 seconds, 68 years. HTTP's caches stop
	// counting there, too, and a time.Duration is far from its end.
	forever = (1 << 31) * time.Second
	// maxReset is the longest reset that counts. APIs count by the month at most.
	maxReset  = 40 * 24 * time.Hour
	maxDigits = 20
)

// number reads digits, and decimals. strconv.ParseFloat would take NaN, Inf, 0x1p4, 1e9, +5
// and 1_000, too.
func number(v string) (float64, bool) {
	whole, part, decimal := strings.Cut(v, ".")
	if !allDigits(whole) || len(whole) > maxDigits || decimal && !allDigits(part) {
		return 0, false
	}
	if !decimal && len(whole) <= 15 { // most numbers are, and are exact in a float64
		n := int64(0)
		for i := range len(whole) {
			n = 10*n + int64(whole[i]-'0')
		}
		return float64(n), true
	}
	f, err := strconv.ParseFloat(v, 64)
	return f, err == nil
}

func allDigits(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}

// duration returns n times the unit, which is not negative. A part of a nanosecond counts as
// a whole one: the API refuses a call that comes early.
func duration(n float64, unit time.Duration) time.Duration {
	d := math.Ceil(n * float64(unit))
	if !(d < float64(forever)) {
		return forever
	}
	return max(0, time.Duration(d))
}

// span reads a number in the given unit, a duration as Go writes it, or a word: minute, 1 hour, 7d.
func span(v string, unit time.Duration) (time.Duration, bool) {
	if n, ok := number(v); ok {
		return duration(n, unit), true
	}
	if d, ok := goDuration(v); ok {
		return d, true
	}
	d := windowOf(v)
	return d, d > 0
}

// windowOf returns the time that a word says, such as second, Daily, perhour and 3Min, or 0.
func windowOf(word string) time.Duration {
	name := strings.TrimLeft(word, "0123456789.")
	n, counted := number(word[:len(word)-len(name)])
	if name = strings.TrimPrefix(name, " "); !counted {
		n, name = 1, strings.TrimPrefix(strings.TrimPrefix(name, "Per"), "per")
		if len(name) == 1 {
			return 0
		}
	} else if n != 1 && len(name) > 1 {
		name = strings.TrimSuffix(name, "s")
	}
	return duration(n, windows[name])
}

// windows are the words for windows.
var windows = spelled(map[time.Duration]string{
	time.Second: "s sec second secondly", time.Minute: "m min minute minutely", time.Hour: "h hour hourly",
	day: "d day daily", 7 * day: "w week weekly", 30 * day: "month monthly", 365 * day: "year yearly",
})

// goDuration reads a duration as Go writes it: 6m0s, 12ms, 2m59.56s.
func goDuration(v string) (time.Duration, bool) {
	if v == "" || !isDigit(v[0]) || strings.IndexByte("hms", v[len(v)-1]) < 0 {
		return 0, false // without the cost of an error
	}
	d, err := time.ParseDuration(v)
	return min(d, forever), err == nil
}

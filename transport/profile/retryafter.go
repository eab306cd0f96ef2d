package profile

import (
	"strings"
	"time"
)

// retryAfter reads Retry-After and its relatives. One in milliseconds that agrees with the
// seconds is the same wait before the API rounded it; otherwise the longer one counts.
func (r *reader) retryAfter() {
	const family = 1<<hRetryAfter | 1<<hRetryAfterMs | 1<<hMsRetryAfterMs | 1<<hAmzRetryAfter | 1<<hXRetryAfter
	if r.seen&family == 0 {
		return
	}
	for _, n := range [...]int{hRetryAfter, hXRetryAfter} {
		for v := range r.each(r.known(n)) {
			r.delays(v, seconds1970)
		}
	}
	longest, found := time.Duration(0), false
	for _, n := range [...]int{hRetryAfterMs, hMsRetryAfterMs, hAmzRetryAfter} {
		for v := range r.each(r.known(n)) {
			for i := 0; v != "" && i < maxLines; i++ {
				var one string
				one, v, _ = strings.Cut(v, joined)
				if n, numeric := number(one); numeric {
					longest, found = max(longest, duration(n, time.Millisecond)), true
				}
			}
		}
	}
	s := &r.s
	if found && (!s.HasRetryAfter || longest > s.RetryAfter ||
		!s.Absolute && longest > 0 && s.RetryAfter-longest <= time.Second) {
		s.RetryAfter, s.HasRetryAfter, s.Absolute = longest, true, false
	}
}

// joined is what a proxy puts between lines that it joins. A comma alone may be a decimal
// one.
const joined = ", "

// delays counts what a line says, or each of several values in one.
func (r *reader) delays(v string, unit time.Duration) {
	if r.offer(v, unit) || !strings.Contains(v, joined) {
		return
	}
	for i := 0; v != "" && i < maxLines; i++ {
		end := part(v, 0)
		if !r.offer(v[:end], unit) { // a date has the separator in it
			two := part(v, end+len(joined))
			if (i > 0 || two < len(v)) && two > end && r.offer(v[:two], unit) {
				end = two
			}
		}
		v = v[min(len(v), end+len(joined)):]
	}
}

// part returns where the part of a joined line ends that begins at from.
func part(v string, from int) int {
	if from >= len(v) {
		return len(v)
	}
	if n := strings.Index(v[from:], joined); n >= 0 {
		return from + n
	}
	return len(v)
}

// offer counts one value of several; the longest counts.
func (r *reader) offer(v string, unit time.Duration) bool {
	d, absolute, ok := delay(v, unit, r.clock)
	s := &r.s
	if ok && (!s.HasRetryAfter || d > s.RetryAfter) {
		s.RetryAfter, s.HasRetryAfter, s.Absolute = d, true, absolute
	}
	return ok
}

// seconds1970 is the unit of Retry-After: seconds, as in RFC 9110. But a number that is a time
// since 1970 within 40 days of the API's clock is that time. It would be a delay of half a century,
// and APIs send such: github.com/openclaw/clawhub/issues/407, and Moneybird by
// github.com/ArjanCodes/moneysnake/pull/24.
const seconds1970 time.Duration = -1

// delay reads how long to wait: a number in the given unit, or a point in time. Without a unit a
// number is in seconds, or a time since 1970. A time that is over is no wait, and gets no second
// for rounding from Wait.
func delay(v string, unit time.Duration, clock func() time.Time) (d time.Duration, absolute, ok bool) {
	n, numeric := number(v)
	if numeric && unit > 0 {
		return duration(n, unit), false, true
	}
	var at time.Time
	if !numeric {
		if at, ok = timestamp(v); !ok {
			return 0, false, false
		}
	} else {
		if at, ok = epoch(n, clock); ok && unit == seconds1970 {
			ok = between(at, clock()).Abs() <= maxReset
		}
		if !ok {
			return duration(n, time.Second), false, true
		}
	}
	d = between(clock(), at)
	return max(0, d), d > 0, true
}

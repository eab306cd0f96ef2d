package profile

import (
	"cmp"
	"strings"
	"time"
)

// joined is what a proxy puts between lines that it joins. A comma alone may be a decimal
// one.
const joined = ", "

// parts calls read with a line, or if that is not understood, with each of the values that a proxy
// has joined in it.
func parts(v string, read func(string) bool) {
	if read(v) || !strings.Contains(v, joined) {
		return
	}
	all := strings.SplitN(v, joined, maxLines+1)
	for i, one := range all[:min(len(all), maxLines)] {
		if !read(one) && i > 0 && len(all) > 2 {
			read(all[i-1] + joined + one) // a date has the separator in it
		}
	}
}

// delays counts what a line says of the wait after a refusal; the longest value counts.
func (r *reader) delays(v string, unit time.Duration) {
	parts(v, func(one string) bool {
		d, absolute, ok := delay(one, unit, r.clock)
		s := &r.s
		if ok && unit == time.Millisecond {
			r.ms = max(r.ms, d)
		} else if ok && (!s.HasRetryAfter || d > s.RetryAfter) {
			s.RetryAfter, s.HasRetryAfter, s.Absolute = d, true, absolute
		}
		return ok
	})
}

// milliseconds takes the wait in milliseconds if it is longer than the one in seconds. If it is at
// most a second shorter, it is the same wait before the API rounded it.
func (r *reader) milliseconds() {
	s := &r.s
	if r.ms >= 0 && (!s.HasRetryAfter || r.ms > s.RetryAfter || !s.Absolute && r.ms > 0 && s.RetryAfter-r.ms <= time.Second) {
		s.RetryAfter, s.HasRetryAfter, s.Absolute = r.ms, true, false
	}
}

// seconds1970 is the unit of Retry-After: seconds, as in RFC 9110. But a number that is a time
// since 1970 within 40 days of the API's clock is that time. It would be a delay of half a century,
// and APIs send such: github.com/openclaw/clawhub/issues/407, and Moneybird by
// github.com/ArjanCodes/moneysnake/pull/24.
const seconds1970 time.Duration = -1

// delay reads how long it is until a wait or a limit ends. That is a number in the given unit, a
// point in time, or a duration as Go writes it, which Retry-After does not take. Without a unit a
// number is in seconds, or a time since 1970. Nothing is left of a time that is over.
func delay(v string, unit time.Duration, clock func() time.Time) (d time.Duration, absolute, ok bool) {
	if d, ok = goDuration(v); ok {
		return d, false, unit != seconds1970
	}
	n, numeric := number(v)
	var at time.Time
	if !numeric {
		at, ok = timestamp(v)
	} else if at, ok = epoch(n, clock); unit > 0 || !ok || unit == seconds1970 && between(at, clock()).Abs() > maxReset {
		return duration(n, cmp.Or(max(unit, 0), time.Second)), false, true
	}
	d = between(clock(), at)
	return max(0, d), d >= 0, ok
}

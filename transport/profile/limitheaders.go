package profile

import (
	"slices"
	"strings"
	"time"
)

// quota adds what the drafts 00 to 07 say of a limit: how much in how long.
func (r *reader) quota(limit int64, window bare) {
	if w, ok := seconds(window); ok && w > 0 && limit >= 0 && !slices.ContainsFunc(r.s.Policies(), func(q Policy) bool {
		return q.quota && q.Limit == float64(limit) && q.Window == w
	}) {
		r.s.push(Policy{Limit: float64(limit), Window: w, quota: true, Remaining: None, Reset: None, used: None})
	}
}

// seconds returns the time that an integer is in seconds.
func seconds(b bare) (time.Duration, bool) {
	return duration(float64(b.n), time.Second), b.kind == integer && b.n >= 0
}

// limit reads what is allowed. If there are several, the least counts. In the drafts 00 to 03,
// quotas follow it.
func (r *reader) limit(p *Policy, lines []string) {
	for v := range r.each(lines) {
		r.limitOf(p, v)
	}
}

// limitOf reads one line of a limit.
func (r *reader) limitOf(p *Policy, v string) {
	if n, ok := number(v); ok {
		p.least(&p.Limit, n)
		return
	}
	if n, window, ok := rate(v); ok {
		p.least(&p.Limit, n)
		p.Window = max(p.Window, window)
		return
	}
	r.list(v, func(it *item) {
		switch window, ok := seconds(it.w); {
		case it.value.n < 0:
		case p.Limit < 0 && ok && window > 0: // one with its own window
			p.Limit, p.Window = float64(it.value.n), window
		case it.w.kind != none:
			r.quota(it.value.n, it.w)
		default:
			p.least(&p.Limit, float64(it.value.n))
		}
	})
}

// rate reads a limit with its window: 150/15m, 60r/m, 100 per 1 minute.
func rate(v string) (n float64, window time.Duration, ok bool) {
	amount, per, found := strings.Cut(v, "/")
	if !found {
		amount, per, found = strings.Cut(v, " per ")
	}
	if !found {
		return 0, 0, false
	}
	n, ok = number(strings.TrimRight(amount, "r "))
	window, timed := span(trim(per), time.Second)
	return n, window, ok && timed && window > 0
}

// remaining reads what remains. If there are several, the least counts.
func (r *reader) remaining(p *Policy, lines []string) {
	for v := range r.each(lines) {
		if n, ok := p.remains(v); ok {
			r.s.overdrawn = r.s.overdrawn || n < -1
		} else {
			r.list(v, func(it *item) {
				if it.value.n < 0 {
					r.s.overdrawn = r.s.overdrawn || it.value.n < -1
					p.below(float64(-it.value.n))
				} else {
					p.least(&p.Remaining, float64(it.value.n))
				}
			})
		}
	}
}

// remains counts a number as what remains, and returns it. It may be less than nothing.
func (p *Policy) remains(v string) (n float64, ok bool) {
	if n, ok = number(v); ok {
		p.least(&p.Remaining, n)
	} else if n, ok = number(strings.TrimPrefix(v, "-")); ok {
		p.below(n)
		n = -n
	}
	return n, ok
}

// least keeps the lesser of two numbers, the first of which may be None.
func (p *Policy) least(to *float64, n float64) {
	if *to < 0 || n < *to {
		*to = n
	}
}

// below counts what remains as less than nothing.
func (p *Policy) below(by float64) {
	if by == 1 {
		p.minusOne = true
	} else {
		p.Remaining = 0
	}
}

// list calls f with the integers of a list. A malformed list and a number with commas in it have
// none.
func (r *reader) list(v string, f func(it *item)) {
	if thousands(v) || !wellFormed(v, false) {
		return
	}
	var it item
	for l := (fields{s: v}); l.item(&it); {
		if it.value.kind == integer {
			f(&it)
		}
	}
}

// reset reads when the limit is there again. If there are several, the latest counts.
func (r *reader) reset(p *Policy, lines []string, unit time.Duration) {
	for v := range r.each(lines) {
		if v == "" || r.resetAt(p, v, unit) {
			continue
		}
		if i := strings.IndexByte(v, ';'); i > 0 { // with parameters, which add nothing
			r.resetAt(p, strings.TrimRight(v[:i], " \t"), unit)
		} else if isDigit(v[0]) && !thousands(v) {
			for one := range strings.SplitSeq(v, ",") {
				r.resetAt(p, trim(one), unit)
			}
		}
	}
}

// resetAt reads one reset. It reports whether it understood it, and keeps it only if it may
// be true.
func (r *reader) resetAt(p *Policy, v string, unit time.Duration) bool {
	d, absolute := time.Duration(0), false
	if n, ok := number(v); ok {
		switch {
		case unit > 0:
			d = duration(n, unit)
		case n >= 1e14:
			return true // no time at all
		default:
			at, ok := epoch(n, r.clock)
			if n < 1e9 { // it may be milliseconds
				d = duration(n, r.unit(n))
				ok = ok && d > maxReset
			}
			if ok {
				d, absolute = r.until(at)
			}
		}
	} else if d, ok = goDuration(v); ok {
	} else if at, ok := timestamp(v); ok {
		d, absolute = r.until(at)
	} else if _, ok := number(strings.TrimPrefix(v, "-")); !ok {
		return false
	}
	if d <= maxReset && (d > p.Reset || d == p.Reset && absolute) {
		p.Reset, p.Absolute = d, absolute
	}
	return true
}

// until returns how long it is until a point in time. A time that is over is a 0 without meaning.
func (r *reader) until(at time.Time) (d time.Duration, absolute bool) {
	d = between(r.clock(), at)
	return max(0, d), d >= 0
}

// unit finds out whether a number is in milliseconds, by a Retry-After with the same time in
// seconds.
func (r *reader) unit(n float64) time.Duration {
	s := &r.s
	if s.HasRetryAfter && !s.Absolute && s.RetryAfter > 0 {
		if ms := float64(s.RetryAfter) / float64(time.Millisecond); n >= 0.95*ms && n <= 1.05*ms {
			return time.Millisecond
		}
	}
	return time.Second
}

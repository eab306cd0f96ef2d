package profile

import (
	"cmp"
	"math"
	"strings"
	"time"
)

// quota adds what the drafts 00 to 07 say of a limit: how much in how long.
func (r *reader) quota(limit float64, window time.Duration) {
	if window > 0 {
		r.s.push(Policy{Limit: limit, Window: window, quota: true, Remaining: None, Reset: None, used: None})
	}
}

// limit reads what is allowed. If there are several, the least counts. In the drafts 00 to 03,
// quotas follow it.
func (r *reader) limit(p *Policy, v string) {
	if n, ok := number(v); ok {
		p.least(&p.Limit, n)
		return
	}
	if n, window, ok := rate(v); ok {
		p.least(&p.Limit, n)
		p.Window = max(p.Window, window)
		return
	}
	if !strings.ContainsAny(v, " ;") || !wellFormed(v) { // a comma alone may be between thousands
		return
	}
	var it item
	for l := (fields{s: v}); l.item(&it); {
		n, ok := it.value.integer()
		w := it.get("w", "window")
		switch window, timed := w.seconds(); {
		case !ok:
		case p.Limit < 0 && timed && window > 0: // one with its own window
			p.Limit, p.Window = n, window
		case w.kind != none:
			r.quota(n, window)
		default:
			p.least(&p.Limit, n)
		}
	}
}

// rate reads a limit with its window: 150/15m, 60r/m, 100 per 1 minute.
func rate(v string) (n float64, window time.Duration, ok bool) {
	amount, per, _ := strings.Cut(strings.Replace(v, " per ", "/", 1), "/")
	n, ok = number(strings.TrimRight(amount, "r "))
	window, timed := span(trim(per), time.Second)
	return n, window, ok && timed && window > 0
}

// remains counts a number as what remains, and returns it. It may be less than nothing.
// The least of several counts.
func (p *Policy) remains(v string) (n float64, ok bool) {
	v, _, _ = strings.Cut(v, ";") // parameters add nothing
	digits, negative := strings.CutPrefix(trim(v), "-")
	switch n, ok = number(digits); {
	case !ok:
	case !negative:
		p.least(&p.Remaining, n)
	case n == 1:
		p.minusOne = true
	default:
		p.Remaining = 0
	}
	if negative {
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

// reset reads when the limit is there again. If there are several, the latest counts.
func (r *reader) reset(p *Policy, lines []string, unit time.Duration) {
	for v := range r.each(lines) {
		v, _, _ = strings.Cut(v, ";") // parameters add nothing
		parts(v, func(one string) bool {
			one, over := strings.CutPrefix(one, "-")
			d, absolute, ok := delay(trim(one), cmp.Or(unit, r.unit(one)), r.clock)
			if over {
				d = 0
			}
			if ok && d <= maxReset && (d > p.Reset || d == p.Reset && absolute) {
				p.Reset, p.Absolute = d, absolute
			}
			return ok
		})
	}
}

// unit finds out whether a number is in milliseconds, by a Retry-After with the same time in
// seconds.
func (r *reader) unit(v string) time.Duration {
	if s := &r.s; s.RetryAfter > 0 && !s.Absolute {
		if n, _ := number(v); math.Abs(n/1e3/s.RetryAfter.Seconds()-1) <= 0.05 {
			return time.Millisecond
		}
	}
	return 0
}

package profile

import "time"

// retryAfter reads Retry-After and its relatives. Those in milliseconds are the
// same wait before it was rounded, if they agree with it; otherwise the longer
// one counts.
func (r *reader) retryAfter() {
	const family = 1<<hRetryAfter | 1<<hRetryAfterMs | 1<<hMsRetryAfterMs | 1<<hAmzRetryAfter | 1<<hXRetryAfter
	if r.seen&family == 0 {
		return
	}
	for _, n := range [...]int{hRetryAfter, hXRetryAfter} {
		for _, v := range r.known(n) {
			if v, ok := r.take(v); ok {
				r.offer(delay(v, 0, r.clock))
			}
		}
	}
	longest, found := time.Duration(0), false
	for _, n := range [...]int{hRetryAfterMs, hMsRetryAfterMs, hAmzRetryAfter} {
		for _, v := range r.known(n) {
			v, ok := r.take(v)
			if n, numeric := number(v); ok && numeric {
				longest, found = max(longest, span(n, time.Millisecond)), true
			}
		}
	}
	s := &r.s
	if found && (!s.HasRetryAfter || longest > s.RetryAfter ||
		!s.Absolute && longest > 0 && s.RetryAfter-longest <= time.Second) {
		s.RetryAfter, s.HasRetryAfter, s.Absolute = longest, true, false
	}
}

// offer counts one value of several; the longest is right.
func (r *reader) offer(d time.Duration, absolute, ok bool) {
	s := &r.s
	if ok && (!s.HasRetryAfter || d > s.RetryAfter) {
		s.RetryAfter, s.HasRetryAfter, s.Absolute = d, true, absolute
	}
}

// delay reads how long to wait: a number in the given unit, 0: seconds, or a
// point in time. One that is over is no wait, whatever it was rounded to.
func delay(v string, unit time.Duration, clock func() time.Time) (d time.Duration, absolute, ok bool) {
	if n, ok := number(v); ok {
		if unit <= 0 {
			unit = time.Second
		}
		return span(n, unit), false, true
	}
	at, ok := stamp(v)
	if !ok {
		return 0, false, false
	}
	d = between(clock(), at)
	return max(0, d), d > 0, true
}

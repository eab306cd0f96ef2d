package transport

import (
	"net/http"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// crowded is the longest pause after a refusal of too many calls at once: one of
// them ends soon, and a limit AtOnce is the cure.
const crowded = time.Second

// told is what a call has been told of its refusal before its body was there: that it
// was refused because of its pace or a quota, and for how long all wait.
type told struct {
	refused bool
	wait    time.Duration
}

// heed tells the call what the API has said: so it comes to the bucket that
// admitted the call, and to all who share that, and to no other.
func (t *Transport) heed(s *profile.Signal, before told, c outbound.Call) told {
	wait := min(s.Wait, t.maxHold())
	switch {
	case s.Throttled:
		return t.refused(s.Reason, wait, before, c)
	case s.Cached: // it says nothing about the API now
	default:
		policies := s.Policies()
		for i := range policies {
			if p := &policies[i]; p.Kind == profile.Window {
				t.remaining(p, c)
			}
		}
	}
	return before
}

// refused tells the call that the API has refused it. What was told before counts as
// one with this: only a longer wait is news.
func (t *Transport) refused(why profile.Reason, wait time.Duration, before told, c outbound.Call) told {
	answer := outbound.Answer{Kind: outbound.AnswerRefused, MaxWait: t.maxHold()}
	switch why {
	case profile.Rate:
		answer.Reason = outbound.ReasonRate
	case profile.Quota:
		answer.Reason = outbound.ReasonQuota
	case profile.Concurrency:
		if wait == 0 {
			wait = t.maxHold()
		}
		wait = min(wait, crowded)
		answer.Reason = outbound.ReasonConcurrency
	case profile.Unknown: // it may be down, or busy: that is no proof that we are too fast
	default: // not this quota: whoever tries again waits, and nobody else
		return before
	}
	answer.Wait = wait
	switch pace := why == profile.Rate || why == profile.Quota; {
	case pace && !before.refused:
		c.Answered(answer)
		return told{true, max(wait, unsaid)}
	case wait > before.wait:
		answer.Kind = outbound.AnswerHold
		c.Answered(answer)
		before.wait = wait
	}
	return before
}

// unsaid is how long a refusal that does not say so holds all at least.
const unsaid = time.Second

// soon is a reset that a success does not wait for, as [outbound.AnswerLeft] says.
const soon = 2 * time.Second

// remaining tells the call what the API has left of one policy.
func (t *Transport) remaining(p *profile.Policy, c outbound.Call) {
	unit, ok := t.unit(p)
	if !ok || p.Reset <= soon { // as the API said it: Wait has a second more for points in time
		return
	}
	left := outbound.Cost{-1, -1, -1, -1}
	left[unit] = p.Remaining
	c.Answered(outbound.Answer{Kind: outbound.AnswerLeft, Left: left, Wait: min(p.Wait(), t.maxHold())})
}

// unit returns which number of a Cost a policy counts.
func (t *Transport) unit(p *profile.Policy) (int, bool) {
	if t.Units == nil {
		return 0, p.Unit == "" || p.Unit == "requests"
	}
	unit, ok := t.Units[p.Name]
	if !ok {
		unit, ok = t.Units[p.Unit]
	}
	return unit, ok && unit >= 0 && unit < outbound.Units
}

// early has a call hear what the headers say of a refusal whose body is late, so that
// nobody else goes meanwhile.
func (t *Transport) early(resp *http.Response, s profile.Signal, foreign bool, c outbound.Call) told {
	if foreign {
		return told{}
	}
	if t.OnSignal != nil {
		t.OnSignal(resp, &s)
	}
	return t.heed(&s, told{}, c)
}

// apply has a call hear what the response says, as the user's functions have it.
func (t *Transport) apply(resp *http.Response, s profile.Signal, foreign bool, before told, c outbound.Call) {
	// Neither what a cache or another host has answered nor a refusal that is another
	// limiter's tells that this one's pace is right.
	success := !s.Cached && !s.Throttled && !foreign && before == told{}
	if t.OnSignal != nil {
		t.OnSignal(resp, &s)
	}
	if !foreign {
		before = t.heed(&s, before, c)
	}
	if !success && !before.refused {
		c.Answered(outbound.Answer{Kind: outbound.AnswerNone})
	}
	if t.Used != nil && !foreign {
		if used, ok := t.Used(resp); ok {
			c.Settle(used)
		}
	}
}

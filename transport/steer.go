package transport

import (
	"net/http"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// hearer is a call that hears what the API has answered.
type hearer interface {
	Settle(outbound.Cost)
	Because(outbound.Reason)
	Refused(time.Duration)
	Hold(time.Duration)
	Remaining(outbound.Cost, time.Duration)
	noSuccess()
}

// quick is a call that nobody follows to its body's end.
type quick struct{ *outbound.Permit }

func (q quick) noSuccess() { q.Failed() }

// crowded is the longest pause after a refusal of too many calls at once: one of
// them ends soon, and a limit AtOnce is the cure.
const crowded = time.Second

// heed tells the call what the API has said: so it comes to the bucket that
// admitted the call, and to all who share that, and to no other.
func (t *Transport) heed(s *profile.Signal, c hearer) {
	wait := min(s.Wait, t.maxHold())
	switch {
	case s.Throttled:
		t.refused(s.Reason, wait, c)
	case s.Cached: // it says nothing about the API now
	default:
		policies := s.Policies()
		for i := range policies {
			if p := &policies[i]; p.Kind == profile.Window {
				t.remaining(p, c)
			}
		}
	}
}

func (t *Transport) refused(why profile.Reason, wait time.Duration, c hearer) {
	switch why {
	case profile.Rate:
		c.Because(outbound.ReasonRate)
		c.Refused(wait)
	case profile.Quota:
		c.Because(outbound.ReasonQuota)
		c.Refused(wait)
	case profile.Concurrency:
		if wait == 0 {
			wait = t.maxHold()
		}
		c.Because(outbound.ReasonConcurrency)
		c.Hold(min(wait, crowded))
	case profile.Unknown:
		// It may be down, or busy: that is no proof that we are too fast.
		if wait > 0 {
			c.Hold(wait)
		}
	default: // not this quota: whoever tries again waits, and nobody else
	}
}

// soon is a reset that a success does not wait for, as [outbound.Permit.Remaining] says.
const soon = 2 * time.Second

// remaining tells the call what the API has left of one policy.
func (t *Transport) remaining(p *profile.Policy, c hearer) {
	unit, ok := t.unit(p)
	if !ok || p.Reset <= soon { // as the API said it: Wait has a second more for points in time
		return
	}
	left := outbound.Cost{-1, -1, -1, -1}
	left[unit] = p.Remaining
	c.Remaining(left, min(p.Wait(), t.maxHold()))
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

// apply has a call hear what the response says, as the user's functions have it.
func (t *Transport) apply(resp *http.Response, s profile.Signal, foreign bool, c hearer) {
	// Neither what a cache or another host has answered nor a refusal that is another
	// limiter's tells that this one's pace is right.
	success := !s.Cached && !s.Throttled && !foreign
	if t.OnSignal != nil {
		t.OnSignal(resp, &s)
	}
	if !foreign {
		t.heed(&s, c)
	}
	if !success {
		c.noSuccess()
	}
	if t.Used != nil && !foreign {
		if used, ok := t.Used(resp); ok {
			c.Settle(used)
		}
	}
}

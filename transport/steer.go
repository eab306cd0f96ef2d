package transport

import (
	"cmp"
	"net/http"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport/profile"
)

const (
	// slotHold is the longest hold after a refusal of too many calls at once: one of them
	// ends soon, and a limit InFlight is the cure.
	slotHold = time.Second
	// holdUntold is the hold after a refusal by pace or quota that names no wait, as
	// [outbound.Permit.Refused] says.
	holdUntold = time.Second
	// soon is a reset that a success does not wait for, as [outbound.AnswerRemaining] says.
	soon = 2 * time.Second
)

// reported is what the transport has told a call of its refusal before the body was there.
type reported struct {
	refused bool          // by pace or quota
	wait    time.Duration // how long all wait
}

// judge applies what the response says. Either a has the call and ends later, or permit has
// it and nothing happens until the body's end: then judge ends the call.
func (t *Transport) judge(resp *http.Response, permit *outbound.Permit, a *attempt, redirected bool) {
	var call outbound.Call // nil: permit's, which has nothing to hear yet
	if a != nil {
		call = a
	}
	var before reported
	// If the body is late, the headers count first, so that no call goes meanwhile.
	s := t.Profile.ReadEarly(resp, time.Time{}, func(s profile.Signal) {
		if call == nil {
			call = onHeap(permit)
		}
		if !redirected {
			before = t.applySignal(resp, &s, false, before, call)
		}
	})
	if call == nil {
		if !s.Throttled && !s.Cached && resp.StatusCode < 500 && len(s.Policies()) == 0 && t.OnSignal == nil && t.Used == nil && !redirected {
			permit.Done() // in place: it allocates nothing
			return
		}
		call = onHeap(permit)
	}
	t.apply(resp, s, redirected, before, call)
	if a == nil {
		call.Done()
	}
}

// onHeap returns a copy of a permit, so that the permit itself stays on the stack.
func onHeap(permit *outbound.Permit) outbound.Call {
	p := *permit
	return &p
}

// apply tells the call what the response says and what the call has cost. It takes the
// Signal by value, because that is on the heap once OnSignal may keep it.
func (t *Transport) apply(resp *http.Response, s profile.Signal, redirected bool, before reported, c outbound.Call) {
	// An answer of a cache, of another host or for a server that is down does not show that
	// this limiter's pace is right, and neither does a refusal that another limiter has to heed.
	success := !s.Cached && !s.Throttled && !redirected && resp.StatusCode < 500 && before == reported{}
	before = t.applySignal(resp, &s, redirected, before, c)
	if !success && !before.refused {
		c.Answered(outbound.Answer{})
	}
	t.settle(resp, redirected, c)
}

// settle tells the call what it has cost, if Used knows. What another host says of that has
// nothing to do with this limiter.
func (t *Transport) settle(resp *http.Response, redirected bool, c outbound.Call) {
	if t.Used == nil || redirected {
		return
	}
	if used, ok := t.Used(resp); ok {
		c.Settle(used)
	}
}

// applySignal tells the call what the API has said, after OnSignal. The call passes that on
// to the bucket that admitted it, for all who share the bucket.
func (t *Transport) applySignal(resp *http.Response, s *profile.Signal, redirected bool, before reported, c outbound.Call) reported {
	if t.OnSignal != nil {
		t.OnSignal(resp, s)
	}
	if redirected || s.Cached { // it says nothing about the API now
		return before
	}
	policies := s.Policies()
	for i := range policies {
		t.tell(&policies[i], c)
	}
	if s.Throttled {
		return t.applyRefusal(s, before, c)
	}
	for i := range policies {
		if p := &policies[i]; p.Kind == profile.Window {
			t.applyRemaining(p, c)
		}
	}
	return before
}

// tell has those who listen to the call hear what the API has told of one policy.
func (t *Transport) tell(p *profile.Policy, c outbound.Call) {
	if p.Limit < 0 && p.Remaining < 0 {
		return
	}
	number, ok := t.unit(p)
	if !ok {
		number = -1
	}
	c.Answered(outbound.Answer{Kind: outbound.AnswerQuota, Budget: outbound.Budget{
		Policy: p.Name, Unit: p.Unit, Limit: p.Limit, Remaining: p.Remaining, Reset: p.Reset, Window: p.Window, Number: number,
	}})
}

// applyRefusal tells the call that the API has refused it. What the call has heard before
// is the same refusal, so only a longer wait is news.
func (t *Transport) applyRefusal(s *profile.Signal, before reported, c outbound.Call) reported {
	answer := outbound.Answer{Kind: outbound.AnswerHold, Wait: min(s.Wait, t.maxHold()), MaxWait: t.maxHold()}
	paced := false
	switch s.Reason {
	case profile.Rate:
		paced, answer.Reason = true, "rate"
	case profile.Quota:
		paced, answer.Reason = true, "quota"
	case profile.Concurrency:
		if answer.Wait == 0 {
			answer.Wait = t.maxHold()
		}
		answer.Wait, answer.Reason = min(answer.Wait, slotHold), "concurrency"
	case profile.Unknown: // the API may be down or busy, which does not show that calls are too fast
	default: // not this quota: the caller waits before it tries again, and nobody else
		return before
	}
	switch {
	case paced && !before.refused:
		answer.Kind = outbound.AnswerRefused
		before = reported{true, cmp.Or(answer.Wait, holdUntold)}
	case answer.Wait > before.wait:
		before.wait = answer.Wait
	default:
		return before
	}
	c.Answered(answer)
	return before
}

// applyRemaining tells the call what the API has left of one policy.
func (t *Transport) applyRemaining(p *profile.Policy, c outbound.Call) {
	unit, ok := t.unit(p)
	if !ok || p.Reset <= soon { // as the API said it: Wait adds a second to points in time
		return
	}
	left := outbound.Cost{-1, -1, -1, -1}
	left[unit] = p.Remaining
	c.Answered(outbound.Answer{Kind: outbound.AnswerRemaining, Remaining: left, Wait: min(p.Wait(), t.maxHold())})
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
	return unit, ok && unit >= 0 && unit < len(outbound.Cost{})
}

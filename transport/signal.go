package transport

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport/profile"
)

const (
	// slotHold is the longest hold after a refusal of too many calls in flight: one of them ends
	// soon, and a limit InFlight is the cure.
	slotHold = time.Second
	// defaultHold is the hold after a refusal by rate or quota without a time: see
	// [outbound.Permit.Refused].
	defaultHold = time.Second
	// soon is a reset that a success does not wait for: see [outbound.AnswerRemaining].
	soon = 2 * time.Second
)

// reported is what was reported to a call of its refusal before the body arrived.
type reported struct {
	refused bool          // by rate or quota
	wait    time.Duration // how long the bucket holds
}

// judge applies what the response reports. Either a has the call and ends later, or permit has it
// and nothing happens until the body's end: then judge ends the call.
func (t *Transport) judge(resp *http.Response, permit *outbound.Permit, a *attempt, redirected bool) {
	var call outbound.Call // or nil for permit's, which has no answer yet
	if a != nil {
		call = a
	}
	var before reported
	// If the body is late, the headers count first, so that no call leaves meanwhile.
	s := t.Profile.ReadEarly(resp, time.Time{}, func(s profile.Signal) {
		if call == nil {
			call = onHeap(permit)
		}
		if !redirected {
			before = t.applySignal(resp, &s, false, before, call)
		}
	})
	if call == nil {
		if !s.Throttled && !s.Cached && resp.StatusCode < 500 && len(s.Policies()) == 0 && t.OnSignal == nil && t.Used == nil && !s.Free && !redirected {
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

// apply reports the response and the cost to the call. It takes the Signal by value, because that
// is on the heap once OnSignal may keep it.
func (t *Transport) apply(resp *http.Response, s profile.Signal, redirected bool, before reported, c outbound.Call) {
	// Some answers do not show that this limiter's pace is right: those of a cache, of another host
	// or for a server that is down, and refusals for another limiter.
	success := !s.Cached && !s.Throttled && !redirected && resp.StatusCode < 500 && before == reported{}
	before = t.applySignal(resp, &s, redirected, before, c)
	if !success && !before.refused {
		c.Answered(outbound.Answer{})
	}
	t.settle(resp, &s, redirected, c)
}

// settle reports the cost to the call, if Used knows it, or else the signal. What another host
// reports does not concern this limiter.
func (t *Transport) settle(resp *http.Response, s *profile.Signal, redirected bool, c outbound.Call) {
	switch {
	case redirected:
	case t.Used != nil:
		if used, ok := t.Used(resp); ok {
			c.Settle(used)
		}
	case s.Free && t.Units == nil:
		if t.keepsQuotas(resp.Request) {
			c.Settle(outbound.Cost{})
		}
	case s.Free, s.TooLarge:
		c.Settle(t.left(resp.Request, s))
	}
}

// keepsQuotas reports whether all limits of a request's bucket span an hour or more. What such a
// quota does not count may still count for a limit on bursts.
func (t *Transport) keepsQuotas(req *http.Request) bool {
	l, _ := t.limiter(req)
	b, _ := outbound.As[*outbound.Bucket](l)
	if q, ok := outbound.As[interface{ Bucket() *outbound.Bucket }](l); ok {
		b = q.Bucket()
	}
	return b != nil && !slices.ContainsFunc(b.Limits(), func(l outbound.Limit) bool {
		_, window := l.Each()
		return window > 0 && window < time.Hour
	})
}

// left returns the part of a request's cost that the API has counted. A free request returns the
// numbers of its policies, and one that is too large its tokens.
func (t *Transport) left(req *http.Request, s *profile.Signal) outbound.Cost {
	cost := t.cost(req, ctxCostOf(req.Context()))
	switch {
	case s.Free:
		for i := range s.Policies() {
			if n, ok := t.unit(&s.Policies()[i]); ok {
				cost[n] = 0
			}
		}
	case t.Units == nil:
		return outbound.Cost{cost[0]}
	}
	for name, n := range t.Units {
		if s.TooLarge && name != "requests" && n >= 0 && n < len(cost) {
			cost[n] = 0
		}
	}
	return cost
}

// applySignal reports the API's signal to the call, after OnSignal. The call passes that on to the
// bucket that admitted it, for all processes that share the bucket.
func (t *Transport) applySignal(resp *http.Response, s *profile.Signal, redirected bool, before reported, c outbound.Call) reported {
	t.learn(s)
	if t.OnSignal != nil {
		t.OnSignal(resp, s)
	}
	if redirected { // it is not about the API that was asked
		return before
	}
	policies := s.Policies()
	for i := range policies {
		t.applyQuota(&policies[i], c)
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

// applyQuota notifies the call's listeners of one policy of the API.
func (t *Transport) applyQuota(p *profile.Policy, c outbound.Call) {
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

// applyRefusal reports to the call that the API has refused it. The call has learned of the same
// refusal before, so only a longer wait is news.
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
	default: // not this quota: only the caller waits before it tries again
		return before
	}
	switch {
	case paced && !before.refused:
		answer.Kind = outbound.AnswerRefused
		before = reported{true, cmp.Or(answer.Wait, defaultHold)}
	case answer.Wait > before.wait:
		before.wait = answer.Wait
	default:
		return before
	}
	c.Answered(answer)
	return before
}

// applyRemaining reports to the call what remains of one policy.
func (t *Transport) applyRemaining(p *profile.Policy, c outbound.Call) {
	unit, ok := t.unit(p)
	if !ok || p.Reset <= soon { // as the API reports it: Wait adds a second to points in time
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

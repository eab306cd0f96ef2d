package transport

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport/internal/early"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// Transport is an [http.RoundTripper] that has every request admitted by an
// [outbound.Limiter] before it hands it on. The zero Transport paces nothing.
// It is safe for concurrent use, and its fields are not to be changed once it
// is in use.
//
// A request that is not admitted fails with the limiter's error and is never
// sent; [errors.As] finds the [*outbound.ThrottledError] through the
// [*url.Error] of an [http.Client].
type Transport struct {
	// Base sends the requests that were admitted. nil: http.DefaultTransport.
	Base http.RoundTripper
	// Limiter admits the requests. What a host answers to which only a redirect has
	// led does not steer it. nil: they are not paced.
	Limiter outbound.Limiter
	// For returns another limiter for some requests: see [ByHost], [ByHeader]
	// and [ByRoute]. It must not change the request or read its body. Where it
	// returns nil, Limiter admits; return [outbound.Unlimited] to let a request
	// go unpaced. nil: Limiter admits all.
	For func(*http.Request) outbound.Limiter
	// Cost returns what a request takes, unless [WithCost] has said so. It must
	// not change the request or read its body. nil: Cost{1}.
	Cost func(*http.Request) outbound.Cost
	// Profile reads from a response what the API says of its limits: see package
	// profile, which knows some vendors. nil: [profile.Generic].
	Profile *profile.Profile
	// Units says which number of a Cost a policy of the API counts, by the policy's
	// name or else by its unit, such as {"requests": 0, "tokens": 1}. Policies
	// that it does not have are not heeded. nil: requests, and what the API does
	// not name a unit of, are number 0.
	Units map[string]int
	// OnSignal is called with what each response says, before it is heeded, and
	// may change it: what it sets to the zero Signal is not heeded at all, such as
	// a refusal of another scope than this limiter's, which is no success either.
	// It sees what the API has asked for before MaxHold caps it, and runs even if
	// the Signal says nothing. It is called twice for a refusal whose body is looked at
	// and late: with what the headers say, and with all. nil: nothing is called.
	OnSignal func(*http.Response, *profile.Signal)
	// Used returns what a call has really cost, and whether that is known, by its
	// response's headers, such as nothing for a 304. The call is settled with it.
	// Where only the body tells, see [AtEnd]. nil: nothing is settled.
	Used func(*http.Response) (outbound.Cost, bool)
	// MaxHold is the longest hold that one response may cause, so that a wrong
	// or malicious Retry-After cannot stop all calls for days, nor refusals in a row
	// for longer than that each: what they double ends there, and at 1 h. It binds
	// what the permits that OnResponse and [WithCost] hand out are told as well.
	// With 2 s or less, a success that says that nothing remains holds nobody. 0 or
	// less: 1 h.
	MaxHold time.Duration
	// OnResponse is called with every response as soon as its headers are
	// there, before the transport judges it. It can settle the call's cost, say
	// how the API has answered, or wrap the body to do so when it has been read:
	// the permit stays in use until the body's end. After its Done, or an answer other than
	// [outbound.AnswerLeft], as by Refused, the transport does not judge the response
	// itself: [outbound.AnswerNone] is the way to say that a 429 has nothing to do with
	// this quota. nil: nothing is called.
	OnResponse func(*http.Response, *outbound.Permit)
	// OnRefusal is called with a request that was not admitted, and the reason,
	// which may also be a bad cost, a context that is done or a store that
	// failed. What it returns is what RoundTrip returns; a nil response with a
	// nil error is the reason itself. The request's body has been closed: it is
	// not for sending the request elsewhere. [TooManyRequests] fits. nil: the
	// reason is returned.
	OnRefusal func(*http.Request, error) (*http.Response, error)
}

// errNoResponse is the error of a Base that breaks its contract.
var errNoResponse = errors.New("transport: Base returned neither a response nor an error")

// RoundTrip has the request admitted and hands it on to Base. It waits only if
// the limiter does, no longer than the request's context allows. The request
// is not changed, its body is not buffered, and nothing is sent twice.
func (t *Transport) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	// Whatever happens before Base has taken the request's body and the caller
	// the response's, a panic of the user's functions or of Base included, they
	// are closed here.
	ours, passed := true, false
	defer func() {
		if ours {
			closeRequest(req)
		}
		if !passed {
			closeResponse(resp)
		}
	}()
	var permit outbound.Permit
	costed := costOf(req.Context())
	limiter, foreign := t.limiter(req)
	if limiter != nil {
		permit, err = limiter.Acquire(req.Context(), t.cost(req, costed))
	}
	if err != nil {
		ours, passed = false, true
		closeRequest(req)
		return t.refuse(req, err)
	}
	if costed != nil || t.OnResponse != nil || permit.Pending() {
		passed = true // by follow, or closed
		return t.follow(req, permit, costed, foreign, &ours)
	}
	if resp, err = t.send(req, &ours); err != nil {
		if errors.Is(err, early.Err) {
			permit.Settle(outbound.Cost{})
		}
		return nil, err
	}
	// Nothing but a success comes of Done, so nobody needs to watch the body,
	// and an error, which is none, can do without.
	if limiter != nil || t.OnSignal != nil {
		t.judge(resp, permit, foreign)
	}
	passed = true
	return resp, nil
}

// follow is RoundTrip for a permit that is used until the body's end.
func (t *Transport) follow(req *http.Request, permit outbound.Permit, costed *costed, foreign bool, ours *bool) (resp *http.Response, err error) {
	watch := t.OnResponse != nil || permit.Pending()
	a := &attempt{permit: permit, maxHold: t.maxHold()}
	if costed != nil {
		costed.use(a)
	}
	passed := false
	defer func() {
		if passed {
			return
		}
		if resp == nil {
			a.Answered(outbound.Answer{Kind: outbound.AnswerNone})
		}
		a.Done()
		closeResponse(resp)
	}()
	if resp, err = t.send(req, ours); err != nil {
		if errors.Is(err, early.Err) {
			a.Settle(outbound.Cost{})
		}
		return nil, err
	}
	if t.OnResponse != nil {
		if resp.Body == nil { // as fakes have it; so that it can be wrapped
			resp.Body = http.NoBody
		}
		p := outbound.NewPermit(a)
		t.OnResponse(resp, &p)
	}
	if !a.judged() {
		var before told
		s := t.Profile.ReadEarly(resp, time.Time{}, func(s profile.Signal) { before = t.early(resp, s, foreign, a) })
		t.apply(resp, s, foreign, before, a)
	}
	if watch {
		resp.Body = a.until(req.Context(), resp)
	} else {
		a.Done()
	}
	passed = true
	return resp, nil
}

// judge has a call that nobody follows hear what the response says, and ends it.
func (t *Transport) judge(resp *http.Response, permit outbound.Permit, foreign bool) {
	var before told
	s := t.Profile.ReadEarly(resp, time.Time{}, func(s profile.Signal) {
		p := permit
		before = t.early(resp, s, foreign, &p)
		permit = p
	})
	if before == (told{}) && !s.Throttled && !s.Cached && len(s.Policies()) == 0 && t.OnSignal == nil && t.Used == nil && !foreign {
		permit.Done() // in place, so that nothing of it escapes
		return
	}
	p := permit
	t.apply(resp, s, foreign, before, &p)
	p.Done()
}

// limiter returns what admits the request; nil: nothing does. It is foreign if only a
// redirect has brought the request to it.
func (t *Transport) limiter(req *http.Request) (l outbound.Limiter, foreign bool) {
	if t.For != nil {
		if l := t.For(req); l != nil {
			return l, false
		}
	}
	return t.Limiter, req.Response != nil && strayed(req)
}

// strayed reports whether redirects have led to another host than was asked for.
func strayed(req *http.Request) bool {
	first := req
	for first.Response != nil {
		if first = first.Response.Request; first == nil {
			return true // as far as anybody knows
		}
	}
	return hostKey(first.URL) != hostKey(req.URL)
}

func (t *Transport) cost(req *http.Request, costed *costed) outbound.Cost {
	switch {
	case costed != nil:
		return costed.cost
	case t.Cost != nil:
		return t.Cost(req)
	}
	return outbound.Cost{1}
}

// refuse returns what comes back for a request that was not admitted.
func (t *Transport) refuse(req *http.Request, reason error) (*http.Response, error) {
	if t.OnRefusal == nil {
		return nil, reason
	}
	resp, err := t.OnRefusal(req, reason)
	switch {
	case err != nil:
		closeResponse(resp)
		return nil, err
	case resp == nil:
		return nil, reason
	}
	return resp, nil
}

// send hands the request on, with its body, and holds Base to its contract: a
// response or an error.
func (t *Transport) send(req *http.Request, ours *bool) (*http.Response, error) {
	resp, err := t.base().RoundTrip(req)
	*ours = false
	switch {
	case err != nil:
		closeResponse(resp)
		return nil, err
	case resp == nil:
		return nil, errNoResponse
	case resp.Request == nil: // as fakes have it; what is asked for next may have come of it
		resp.Request = req
	}
	return resp, nil
}

// CloseIdleConnections closes those of Base, if it has such a method, as
// [http.Client.CloseIdleConnections] asks for.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base == nil {
		return http.DefaultTransport
	}
	return t.Base
}

func (t *Transport) maxHold() time.Duration {
	if t.MaxHold <= 0 {
		return time.Hour
	}
	return t.MaxHold
}

func closeRequest(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

func closeResponse(resp *http.Response) {
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close()
	}
}

var _ http.RoundTripper = (*Transport)(nil)

// costOf returns what WithCost has put into the context, or nil.
func costOf(ctx context.Context) *costed {
	c, _ := ctx.Value(costKey{}).(*costed)
	return c
}

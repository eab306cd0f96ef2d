package transport

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// Transport is an [http.RoundTripper] that asks an [outbound.Limiter] to admit every
// request before it hands it on to Base. The zero Transport paces nothing. It is safe for
// concurrent use. Do not change its fields once it is in use.
//
// A request that the limiter refuses fails with the limiter's error before it is sent. [errors.As]
// finds the [*outbound.ThrottledError] through the [*url.Error] of an [http.Client].
type Transport struct {
	// Base sends the admitted requests. If it is nil, http.DefaultTransport does.
	Base http.RoundTripper
	// Limiter admits the requests. The answer of a host that only a redirect has led to does not
	// adjust it. If it is nil, every request is admitted immediately.
	Limiter outbound.Limiter
	// For returns another limiter for some requests: see [ByHost], [ByHeader] and [ByRoute]. It must
	// not change the request or read its body. If it returns nil, or is nil, Limiter admits the
	// request. Return [outbound.Unlimited] for an unpaced request.
	For func(*http.Request) outbound.Limiter
	// Cost returns what a request takes, unless [WithCost] has said so. It must not change the
	// request or read its body. If it is nil, each request takes outbound.Cost{1}. A result without
	// the bucket's first number is [outbound.ErrInvalid]. A free request has [outbound.Free] there.
	Cost func(*http.Request) outbound.Cost
	// Profile reads from a response what the API reports of its limits: see package profile, which
	// has many vendors. If it is nil, it is [profile.Generic].
	Profile *profile.Profile
	// Judge selects whether the transport judges responses. If it is zero, the outermost of nested
	// transports does: see [JudgeOutermost].
	Judge Judge
	// Units has the index of a Cost's number that a policy of the API counts, by the policy's name or
	// by its unit, such as {"requests": 0, "tokens": 1}. The transport ignores policies that Units
	// does not have. If Units is nil, number 0 counts requests and policies without a unit. A free
	// response returns the numbers of its policies. If Units is nil, it returns the whole cost if all
	// limits of the bucket span an hour or more.
	Units map[string]int
	// OnSignal, if not nil, is called with the Signal of each response, even a zero one, before the
	// transport applies it. It may change the Signal. Set it to the zero Signal to ignore a response,
	// such as a refusal of another scope than this limiter's; a refusal still counts as no success.
	// The Signal has what the API asked for, before MaxHold caps it. OnSignal is called twice for a
	// refusal with a late body that the profile reads: with the headers, and with all. If another
	// transport judges the response, or by [JudgeNever], OnSignal is not called, and the permit gets
	// no AnswerQuota.
	OnSignal func(*http.Response, *profile.Signal)
	// Used returns what a call has really cost, such as nothing for a 304, and whether that is known
	// by its response's headers. The transport settles the call with it, unless the call is settled
	// already, or only a redirect has led to the host that answers. For a cost in the body see
	// [AtEnd]. If Used is nil, the transport settles only what the profile reports as free or as too
	// large: see [profile.Signal].
	Used func(*http.Response) (outbound.Cost, bool)
	// MaxHold is the longest hold that one response may cause, so that a wrong or malicious
	// Retry-After cannot stop all calls for years. It also bounds each of several refusals in a row:
	// their doubled holds end there, and at 1 h. It binds the permits that OnResponse and [WithCost]
	// hand out as well. With 2 s or less, a success that reports an exhausted quota does not hold. If
	// it is zero or less, it is 24 h, because bans and quotas of a day grow with each call in them.
	MaxHold time.Duration
	// Timeout bounds the time from a request's admission to the end of its response's body, so that
	// the wait for the limiter does not count. After it the request, or the Read of the body, fails
	// with [ErrTimeout]. The Timeout of an [http.Client] counts the wait too. A connection that has
	// switched protocols has no bound. If Timeout is zero or less, only the request's context
	// bounds the request.
	Timeout time.Duration
	// OnResponse, if not nil, is called with every response as soon as its headers have arrived,
	// before the transport judges it. It can settle the call's cost, report the API's answer, or wrap
	// the body to do so later: the permit stays in use until the body's end. If it reports an answer
	// other than [outbound.AnswerRemaining], such as Refused, or calls Done, the transport does not
	// judge the response. The zero Answer means that a 429 is not about this quota.
	OnResponse func(*http.Response, *outbound.Permit)
	// OnRefusal is called with a request that was not admitted, and the reason, which may also be a
	// bad cost, a context that is done or a store that failed. RoundTrip returns what OnRefusal
	// returns; a nil response with a nil error stands for the reason itself. The request's body is
	// closed by then, so OnRefusal cannot send the request elsewhere. [TooManyRequests] fits. If it
	// is nil, RoundTrip returns the reason.
	OnRefusal func(*http.Request, error) (*http.Response, error)

	kinds atomic.Value // a *kinds
}

// errNoResponse is the error of a Base that breaks its contract.
var errNoResponse = errors.New("transport: Base returned neither a response nor an error")

// RoundTrip asks the limiter to admit the request and hands it on to Base. It waits only if the
// limiter does, no longer than the request's context allows. It sends the request once, without
// changing it or buffering its body.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, _, err := t.roundTrip(req, nil)
	return resp, err
}

// roundTrip is RoundTrip for a request that t's limiter has admitted with a permit already. If the
// permit is nil, roundTrip asks the limiter. unsent reports whether the API certainly has not seen
// the request, because t's limiter or one inside has refused it.
func (t *Transport) roundTrip(req *http.Request, admitted *outbound.Permit) (resp *http.Response, unsent bool, err error) {
	outer := linkOf(req.Context(), t)
	outer.enter()
	defer func() { outer.leave(unsent) }()
	// Base takes the request's body, and the caller the response's. If Base or one of the
	// user's functions panics before that, the bodies are closed here.
	var a *attempt
	sent, returned := false, false
	defer func() {
		if !sent {
			closeRequest(req)
		}
		if returned {
			return
		}
		if a != nil {
			a.fail(resp)
		}
		closeResponse(resp)
	}()
	resendOf(req.Context()).again() // if what is between the transports sends a request again
	var permit outbound.Permit
	cost := ctxCostOf(req.Context())
	limiter, redirected := t.limiter(req)
	switch {
	case admitted != nil:
		permit = *admitted
	case limiter == nil:
	default:
		if err = permit.AcquireIn(req.Context(), limiter, t.cost(req, cost)); err != nil {
			sent, returned = true, true
			closeRequest(req)
			resp, err = t.refuse(req, err)
			return resp, true, err
		}
	}
	inner, judged := t.linkFor(req, &permit, redirected)
	untilEnd := t.OnResponse != nil || permit.Pending()
	pays := limiter != nil && t.resends()
	if untilEnd || cost != nil || judged || pays {
		a = &attempt{permit: permit, maxHold: t.maxHold()}
		cost.use(a)
	}
	var again *resend
	if pays {
		again = &resend{outer: resendOf(req.Context()), ctx: req.Context(), a: a, limiter: limiter, cost: func() outbound.Cost { return t.cost(req, cost) }}
		again.since.Store(int64(time.Since(start)))
	}
	ctx := req.Context()
	if resp, err = t.send(req, inner, again, &ctx, &sent); err != nil {
		if unsent = inner.unsent(); unsent { // the permit returns its cost
			if a != nil {
				a.Settle(outbound.Cost{})
			} else {
				permit.Settle(outbound.Cost{})
			}
		} else if judges := limiter != nil && !judged && !redirected; judges && a != nil {
			t.calmed(err, a)
		} else if judges && errors.Is(err, ErrCalm) {
			t.calmed(err, onHeap(&permit))
		}
		return nil, unsent, err
	}
	if limiter != nil && !judged && !redirected {
		t.watch(resp, &permit, a)
	}
	switch {
	case a != nil:
		t.follow(ctx, resp, a, untilEnd, judged, redirected)
	case limiter != nil || t.OnSignal != nil:
		t.judge(resp, &permit, nil, redirected)
	}
	returned = true
	return resp, false, nil
}

// follow makes the user's functions and the transport settle and judge an attempt. It ends the
// attempt immediately, or at the end of the body or of ctx. judged is true if another
// transport judges the response.
func (t *Transport) follow(ctx context.Context, resp *http.Response, a *attempt, untilEnd, judged, redirected bool) {
	if t.OnResponse != nil {
		if resp.Body == nil { // fakes leave it out; OnResponse may wrap it
			resp.Body = http.NoBody
		}
		p := outbound.NewPermit(a)
		t.OnResponse(resp, &p)
	}
	switch {
	case a.judged():
		t.settle(resp, &profile.Signal{}, redirected, a)
	case judged: // it has no meaning for this limiter
		a.Answered(outbound.Answer{})
		t.settle(resp, &profile.Signal{}, redirected, a)
	default:
		t.judge(resp, nil, a, redirected)
	}
	if untilEnd {
		a.endWithBody(ctx, resp)
	} else {
		a.Done()
	}
}

// limiter returns what admits the request, or nil. redirected is true if only a redirect has
// brought the request to that limiter, from another host.
func (t *Transport) limiter(req *http.Request) (l outbound.Limiter, redirected bool) {
	if t.For != nil {
		if l := t.For(req); l != nil {
			return l, false
		}
	}
	return t.Limiter, req.Response != nil && leftHost(req)
}

// leftHost reports whether redirects have led to another host than the first one.
func leftHost(req *http.Request) bool {
	first := req
	for first.Response != nil {
		if first = first.Response.Request; first == nil {
			return true // that is unknown
		}
	}
	return hostKey(first.URL) != hostKey(req.URL)
}

func (t *Transport) cost(req *http.Request, c *ctxCost) outbound.Cost {
	switch {
	case c != nil:
		return c.cost
	case t.Cost != nil:
		return t.Cost(req)
	}
	return outbound.Cost{1}
}

// refuse returns the result of a request that was not admitted.
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

// send hands the request on, with its body, and holds Base to its contract: a response or
// an error. ctx becomes the context that the request was sent with.
func (t *Transport) send(req *http.Request, inner *link, again *resend, ctx *context.Context, sent *bool) (resp *http.Response, err error) {
	out := req
	if inner != nil {
		out = req.WithContext(context.WithValue(req.Context(), linkKey{}, inner))
	}
	if again != nil {
		out = withResend(out, again)
	}
	if t.Timeout > 0 {
		resp, err = t.sendWithin(out, again, ctx)
	} else {
		resp, err = t.base().RoundTrip(out)
	}
	*sent = true
	switch {
	case err != nil:
		closeResponse(resp)
		return nil, calm(err)
	case resp == nil:
		return nil, errNoResponse
	case resp.Request == nil || resp.Request.Response == req.Response:
		// A fake leaves it out, and a gateway's clone has another URL. Readers of the response, and
		// leftHost after a redirect, need the request that was asked. A Base that follows redirects
		// itself says where they ended.
		resp.Request = req
	}
	return resp, nil
}

// CloseIdleConnections closes those of Base, if Base has such a method, as
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
		return 24 * time.Hour
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

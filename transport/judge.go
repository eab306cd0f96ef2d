package transport

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Report judges a response that RoundTrip has not sent, and ends its permit. It is for the
// handshake of a WebSocket or the end of a call of gRPC. It uses the transport's Profile, Units,
// Used, MaxHold and OnSignal. A nil response stands for a call without an answer.
func (t *Transport) Report(resp *http.Response, permit *outbound.Permit) {
	defer permit.Done()
	if resp == nil {
		permit.Answered(outbound.Answer{})
		return
	}
	t.apply(resp, t.Profile.Read(resp, time.Time{}), false, reported{}, permit)
}

// Judge selects which of several nested transports reports a response to its limiter. They are
// nested if one is the Base of the other, or Base has a method Unwrap() http.RoundTripper that
// leads to the other. The rest only settles and ends permits.
type Judge uint8

const (
	// JudgeOutermost has the outermost transport judge. The next one judges if the outermost has
	// no limiter for the request, if answers have no effect on that
	// ([outbound.Permit.TakesAnswers]), or if a redirect has left its limiter's host.
	JudgeOutermost Judge = iota
	// JudgeAlways judges in addition to the transports around: for refusals that [OnlyScope]
	// separates.
	JudgeAlways
	// JudgeNever leaves each response to the transport that is the Base, for instance if the limiter
	// here is one for all hosts, and there each host has its own.
	JudgeNever
)

// linkKey is the key of a context whose request is sent to a nested transport. Its value is a
// *link.
type linkKey struct{}

// link is what a transport and the one nested in it share about a request.
type link struct {
	inner   http.RoundTripper // the nested *Transport or *Pool
	judged  bool              // a transport around inner judges the response
	asked   atomic.Int32      // how often inner has got the request
	refused atomic.Int32      // how often inner has ended it unsent
}

// linkOf returns the link of t and the transport around it, or nil.
func linkOf(ctx context.Context, t http.RoundTripper) *link {
	if l, _ := ctx.Value(linkKey{}).(*link); l != nil && l.inner == t {
		return l
	}
	return nil
}

// enter records that inner has got the request.
func (l *link) enter() {
	if l != nil {
		l.asked.Add(1)
	}
}

// leave records how that has ended.
func (l *link) leave(unsent bool) {
	if l != nil && unsent {
		l.refused.Add(1)
	}
}

// unsent reports whether the request has ended at inner, before the API.
func (l *link) unsent() bool {
	if l == nil {
		return false
	}
	refused := l.refused.Load()
	return refused > 0 && refused == l.asked.Load()
}

// linkFor returns the link of t and the transport nested in it, or nil if there is none. judged
// reports whether t leaves the response to another transport. p has admitted req.
func (t *Transport) linkFor(req *http.Request, p *outbound.Permit, redirected bool) (l *link, judged bool) {
	inner := t.inner()
	_, pool := inner.(*Pool) // whose members judge
	outer := linkOf(req.Context(), t)
	around := outer != nil && outer.judged
	judged = t.Judge == JudgeNever || t.Judge == JudgeOutermost && (around || pool)
	if inner != nil {
		l = &link{inner: inner, judged: around || t.Judge != JudgeNever && !redirected && p.TakesAnswers()}
	}
	return l, judged
}

// inner returns the transport or pool nested in t, or nil.
func (t *Transport) inner() http.RoundTripper {
	for rt := t.Base; rt != nil; {
		switch around := rt.(type) {
		case *Transport, *Pool:
			return around
		case interface{ Unwrap() http.RoundTripper }:
			rt = around.Unwrap()
		default:
			return nil
		}
	}
	return nil
}

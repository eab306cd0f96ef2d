package transport

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/dripfeed/dripfeed/outbound"
)

// Judge selects which of several transports in a row reports a response to its limiter. They are in
// a row if one is the Base of the other, or Base has a method Unwrap() http.RoundTripper that leads
// to the other. The rest only settles and ends permits.
type Judge uint8

const (
	// JudgeOutermost has the outermost transport judge. The next one judges if the outermost has no
	// limiter for the request, if answers have no effect on that ([outbound.Permit.Hears]), or if a
	// redirect has left its limiter's host.
	JudgeOutermost Judge = iota
	// JudgeAlways judges in addition to the transports around: for refusals that [OnlyScope]
	// separates.
	JudgeAlways
	// JudgeNever leaves each response to the transport that is the Base, for instance if the limiter
	// here is one for all hosts, and there each host has its own.
	JudgeNever
)

// rowKey is the key of a context whose request is sent to the next transport in a row. Its value is
// a *row.
type rowKey struct{}

// row is what a transport and the next one in a row know about a request.
type row struct {
	next   http.RoundTripper // a *Transport or *Pool
	judged bool              // a transport around judges the response
	asked  atomic.Bool       // next has got the request
	open   atomic.Int32      // how often next has got it, and is sending it or has sent it
}

// rowOf returns the row of t and the transport around it, or nil.
func rowOf(ctx context.Context, t http.RoundTripper) *row {
	if r, _ := ctx.Value(rowKey{}).(*row); r != nil && r.next == t {
		return r
	}
	return nil
}

// enter notes that the next transport has got the request.
func (r *row) enter() {
	if r != nil {
		r.asked.Store(true)
		r.open.Add(1)
	}
}

// leave notes how that has ended. An unsent request does not count.
func (r *row) leave(unsent bool) {
	if r != nil && unsent {
		r.open.Add(-1)
	}
}

// unsent reports whether the request has ended at the next transport, before the API.
func (r *row) unsent() bool { return r != nil && r.asked.Load() && r.open.Load() == 0 }

// rowFor returns the row of t and the next transport, or nil if there is none. judged reports
// whether t leaves the response to another transport. p has admitted req.
func (t *Transport) rowFor(req *http.Request, p *outbound.Permit, redirected bool) (r *row, judged bool) {
	next := t.next()
	_, pool := next.(*Pool) // whose members judge
	outer := rowOf(req.Context(), t)
	around := outer != nil && outer.judged
	judged = t.Judge == JudgeNever || t.Judge == JudgeOutermost && (around || pool)
	if next != nil {
		r = &row{next: next, judged: around || t.Judge != JudgeNever && !redirected && p.Hears()}
	}
	return r, judged
}

// next returns the next transport or pool in the row, or nil.
func (t *Transport) next() http.RoundTripper {
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

package transport

import (
	"context"
	"net/http"

	"github.com/dripfeed/dripfeed/outbound"
)

// Judge says which of several transports in a row tells its limiter what a response says. They are
// in a row if one is the Base of the other, or Base has a method Unwrap() http.RoundTripper that
// leads to the other. The others only settle and end their permits.
type Judge uint8

const (
	// JudgeOutermost has the outermost transport judge. One that has no limiter for the request, or
	// one that does not hear answers ([outbound.Permit.Hears]), and one whose limiter a redirect
	// has led away from, leaves that to the next.
	JudgeOutermost Judge = iota
	// JudgeAlways judges, whatever the transports around do: for refusals that [OnlyScope] tells
	// apart.
	JudgeAlways
	// JudgeNever leaves each response to the transport that is the Base, such as where the limiter
	// here is one for all hosts, and each host has one of its own there.
	JudgeNever
)

// judgedKey is the key of a context whose request is sent to a transport while one around that
// judges. Its value is the transport.
type judgedKey struct{}

// judgedBy reports whether t does not judge the response to req, which p has admitted, and whether
// the next transport is told that it need not.
func (t *Transport) judgedBy(req *http.Request, p *outbound.Permit, redirected bool) (judged, passes bool) {
	around := req.Context().Value(judgedKey{}) == any(t)
	_, pool := t.Base.(*Pool) // whose members judge
	judged = t.Judge == JudgeNever || t.Judge == JudgeOutermost && (around || pool)
	return judged, around || t.Judge != JudgeNever && !redirected && p.Hears()
}

// markJudged returns the request as the next transport gets it, if there is one.
func (t *Transport) markJudged(req *http.Request) *http.Request {
	for rt := t.Base; rt != nil; {
		switch around := rt.(type) {
		case *Transport:
			return req.WithContext(context.WithValue(req.Context(), judgedKey{}, around))
		case interface{ Unwrap() http.RoundTripper }:
			rt = around.Unwrap()
		default:
			return req
		}
	}
	return req
}

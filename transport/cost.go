package transport

import (
	"context"
	"sync/atomic"
	"weak"

	"github.com/dripfeed/dripfeed/outbound"
)

type costKey struct{}

// ctxCost is the cost of the requests that use a context. It refers weakly to their permit, which
// the caller of WithCost holds. net/http keeps the context of an unclosed body: if the context held
// the permit, the garbage collector could never end that call.
type ctxCost struct {
	cost   outbound.Cost
	permit weak.Pointer[lastAttempt]
}

// ctxCostOf returns what WithCost has put into the context, or nil.
func ctxCostOf(ctx context.Context) *ctxCost {
	c, _ := ctx.Value(costKey{}).(*ctxCost)
	return c
}

// use makes the permit stand for this attempt, if the program still holds it.
func (c *ctxCost) use(a *attempt) {
	if c == nil {
		return
	}
	if l := c.permit.Value(); l != nil {
		l.attempt.Store(a)
	}
}

// lastAttempt is the permit of a context: that of its last request which was admitted.
// Requests may share a context.
type lastAttempt struct{ attempt atomic.Pointer[attempt] }

// WithCost returns a context with which a [Transport] takes this cost for a request, whatever its
// field Cost says, and the permit of that request. It works through libraries that hide their
// requests and responses: settle the permit when their call has returned with its real cost, such
// as the tokens of a model.
//
// The permit has no effect until a request was admitted. Then it is that of the last admitted
// request. Redirects and retries under the same context each take the whole cost, and only the last
// one is settled. The transport ends the request itself, so Done has no effect. Settle and Answered
// also count after the body has been read. Make a context for each call.
func WithCost(ctx context.Context, c outbound.Cost) (context.Context, *outbound.Permit) {
	l := new(lastAttempt)
	p := outbound.NewPermit(l)
	return context.WithValue(ctx, costKey{}, &ctxCost{c, weak.Make(l)}), &p
}

// Settle settles the last attempt.
func (l *lastAttempt) Settle(used outbound.Cost) {
	if a := l.attempt.Load(); a != nil {
		a.Settle(used)
	}
}

// Answered reports what the API has answered the last attempt.
func (l *lastAttempt) Answered(answer outbound.Answer) {
	if a := l.attempt.Load(); a != nil {
		a.Answered(answer)
	}
}

// State is that of the last attempt's permit.
func (l *lastAttempt) State() (s outbound.State) {
	if a := l.attempt.Load(); a != nil {
		s = a.State()
	}
	return s
}

// Done does nothing: the attempt may still be in progress, and ends with its body.
func (l *lastAttempt) Done() {}

package transport

import (
	"context"
	"sync"
	"weak"

	"github.com/dripfeed/dripfeed/outbound"
)

type costKey struct{}

// costed is the cost of the requests that use a context. It refers weakly to their
// permit, which the caller of WithCost holds: net/http keeps the context of a body that
// nobody closes, and must not keep the place of its call from the garbage collector.
type costed struct {
	cost   outbound.Cost
	permit weak.Pointer[latest]
}

// use has the permit stand for this attempt, if somebody still holds it.
func (c *costed) use(a *attempt) {
	if k := c.permit.Value(); k != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.attempt = a
	}
}

// latest is the permit of the last request of a context.
type latest struct {
	mu      sync.Mutex // protects attempt: requests may share a context
	attempt *attempt
}

// WithCost returns a context with which a [Transport] takes this cost for a
// request, whatever its field Cost says, and the permit of that request. It
// reaches through libraries that hide their requests and responses: settle the
// permit when their call has returned and the real cost is known, such as the
// tokens that a model has used.
//
// The permit is never nil, and has nothing to do until a request was admitted.
// It stands for the last request that was, so that after redirects and retries
// under the same context, each of which takes the whole cost, only the last one
// is settled. The transport ends the request itself: Done is not needed and has
// no effect, and Settle and Answered count once the body has been read, too.
// Make a context for each call.
func WithCost(ctx context.Context, c outbound.Cost) (context.Context, *outbound.Permit) {
	k := new(latest)
	p := outbound.NewPermit(k)
	return context.WithValue(ctx, costKey{}, &costed{c, weak.Make(k)}), &p
}

func (k *latest) last() *attempt {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.attempt
}

// Settle settles the last attempt.
func (k *latest) Settle(used outbound.Cost) {
	if a := k.last(); a != nil {
		a.Settle(used)
	}
}

// Answered says what the API has answered the last attempt.
func (k *latest) Answered(answer outbound.Answer) {
	if a := k.last(); a != nil {
		a.Answered(answer)
	}
}

// Done does nothing: the attempt may still be in progress, in somebody's hands,
// and ends when its body does.
func (k *latest) Done() {}

package transport

import (
	"context"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

type costKey struct{}

// costed is the cost of the requests that use a context, and what became of
// them.
type costed struct {
	cost   outbound.Cost
	mu     sync.Mutex // protects latest: requests may share a context
	latest *attempt
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
// no effect, and Settle, Refused and Hold count once the body has been read,
// too. Make a context for each call.
func WithCost(ctx context.Context, c outbound.Cost) (context.Context, *outbound.Permit) {
	k := &costed{cost: c}
	p := outbound.NewPermit(k)
	return context.WithValue(ctx, costKey{}, k), &p
}

func (k *costed) use(a *attempt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.latest = a
}

func (k *costed) last() *attempt {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.latest
}

// Settle settles the last attempt.
func (k *costed) Settle(used outbound.Cost) {
	if a := k.last(); a != nil {
		a.Settle(used)
	}
}

// Refused reports how the API has answered the last attempt.
func (k *costed) Refused(d time.Duration) {
	if a := k.last(); a != nil {
		a.Refused(d)
	}
}

// Hold reports what the API has asked for in the last answer.
func (k *costed) Hold(d time.Duration) {
	if a := k.last(); a != nil {
		a.Hold(d)
	}
}

// Because says why, for the Refused and Hold that follow.
func (k *costed) Because(r outbound.Reason) {
	if a := k.last(); a != nil {
		a.Because(r)
	}
}

// Remaining reports what the API has left until a reset, by the last answer.
func (k *costed) Remaining(left outbound.Cost, reset time.Duration) {
	if a := k.last(); a != nil {
		a.Remaining(left, reset)
	}
}

// Done does nothing: the attempt may still be in progress, in somebody's hands,
// and ends when its body does.
func (k *costed) Done() {}

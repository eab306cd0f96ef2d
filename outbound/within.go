package outbound

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Within returns a limiter that admits a call when both limiters do: first own, as the limit of a
// tenant, then total. If total refuses the call or ctx ends, own gets its charge and its slot of
// InFlight back. A call is charged to both or to none.
//
//	tenants := &outbound.Keyed[string]{New: func(tenant string) (outbound.Limiter, error) {
//		own, err := outbound.NewBucket(tenant, outbound.PerMinute(150), outbound.InFlight(5))
//		return outbound.Within(queue.New(own, queue.Config{}), queue.New(total, queue.Config{})), err
//	}}
//
// The tenants have equal shares of the total, because each has a queue of its own around the
// total's bucket. The answers of the API reach own alone: a 429 holds one tenant and not the total.
//
// A call waits for total after own has admitted it. So when total has been full or on hold, more
// calls of a tenant leave together than own allows: up to own's [InFlight] more, and without an
// InFlight as many as wait. A tenant makes at most InFlight calls per latency of the API. So choose
// InFlight as the tenant's rate times the latency, and not much more: 5 for 150 a minute and 2 s.
// Two limits that both hold exactly belong in one bucket.
//
// The RetryAfter of a [ThrottledError] is the longer of both, if the other limiter has a method
// Explain: a refusal then costs one more operation. Settle and Done reach both. [As] and
// [Permit.AcquireIn] find the bucket of own. If a limiter is nil, Acquire returns an error that is
// [ErrInvalid].
func Within(own, total Limiter) Limiter { return &nested{own, total} }

type explainer interface {
	Explain(context.Context, Cost) (Explanation, error)
}

type nested struct{ own, total Limiter }

// Unwrap returns own, which the answers reach.
func (w *nested) Unwrap() Limiter { return w.own }

func (w *nested) Acquire(ctx context.Context, c Cost) (Permit, error) {
	if w.own == nil || w.total == nil {
		return Permit{}, fmt.Errorf("%w: nil own or total Limiter of Within", ErrInvalid)
	}
	came := time.Now()
	own, err := w.own.Acquire(ctx, c)
	if err != nil {
		return Permit{}, longer(ctx, err, w.total, c, came)
	}
	total, admitted := Permit{}, false
	defer func() {
		if !admitted { // refused, or total has panicked
			own.Settle(Cost{})
			own.Done()
		}
	}()
	if total, err = w.total.Acquire(ctx, c); err != nil {
		return Permit{}, longer(ctx, err, w.own, c, came)
	}
	admitted = true
	return NewPermit(&nestedCall{guarded: guarded{permit: own}, total: guarded{permit: total}}), nil
}

// longer returns the error of a limiter that has refused the call, with the time at which the other
// admits it, too. The call came before it waited for own. longer changes a copy, because another
// goroutine may have the error. An error that a limiter has wrapped stays as it is.
func longer(ctx context.Context, err error, other Limiter, c Cost, came time.Time) error {
	full, ok := err.(*ThrottledError)
	if !ok {
		return err
	}
	later := *full
	if errors.Is(later.Err, context.DeadlineExceeded) {
		later.Late(ctx, came)
	}
	if x, explains := other.(explainer); explains && full.RetryAfter > 0 {
		if e, failed := x.Explain(ctx, c); failed == nil {
			later.RetryAfter = max(full.RetryAfter, e.Wait)
		}
	}
	return &later
}

// Idle reports whether forgetting both limiters loses nothing.
func (w *nested) Idle() bool {
	own, ok := w.own.(idler)
	total, too := w.total.(idler)
	return ok && too && own.Idle() && total.Idle()
}

// Explain returns the explanation of the limiter for which the call waits longer, with the states
// of both.
func (w *nested) Explain(ctx context.Context, c Cost) (longest Explanation, err error) {
	var states []State
	ahead := 0
	for _, l := range [...]Limiter{w.own, w.total} {
		x, ok := l.(explainer)
		if !ok {
			continue
		}
		e, err := x.Explain(ctx, c)
		if err != nil {
			return e, err
		}
		states, ahead = append(states, e.States...), ahead+e.Ahead
		if longest.States == nil || longest.Wait >= 0 && (e.Wait < 0 || e.Wait > longest.Wait) {
			longest = e
		}
	}
	longest.States, longest.Ahead = states, ahead
	return longest, nil
}

// nestedCall is the permit of a call that two limiters have admitted. The answers reach own.
type nestedCall struct {
	guarded // own
	total   guarded
}

func (b *nestedCall) Settle(used Cost) {
	b.guarded.Settle(used)
	b.total.Settle(used)
}

func (b *nestedCall) Answered(a Answer) {
	b.guarded.Answered(a)
	if a.fails() {
		b.total.Answered(Answer{}) // no success
	}
}

func (b *nestedCall) Done() {
	b.guarded.Done()
	b.total.Done()
}

func (b *nestedCall) pending() bool { return b.guarded.pending() || b.total.pending() }

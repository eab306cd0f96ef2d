package outbound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Pool is a [Limiter] that admits each call by one of several members, as the limiters of several
// credentials, regions or deployments of one API. A job asks [Pool.Member] which one that was:
//
//	pool := &outbound.Pool{Members: []outbound.Limiter{queueA, queueB}}
//	err := outbound.Do(ctx, pool, outbound.Cost{1}, func(ctx context.Context) error {
//		return call(ctx, keys[pool.Member(outbound.PermitFrom(ctx))])
//	})
//
// A call goes to the member that admits it soonest, by the Explain of the member. One without
// Explain counts as free until it refuses. If a member refuses the call, the next one is asked; if
// all refuse it, the error is the one with the least RetryAfter. A call that waits at a member, as
// at a queue, chooses again when the time has passed that Explain has said, as after a 429. What
// the API answers reaches the member that has admitted the call. With buckets in a store each
// choice is a request for each member.
//
// For an http.Client there is a Pool in package transport. Several accounts to get around a limit
// may break the terms of an API. A Pool is safe for concurrent use. Do not change Members once it
// is in use.
type Pool struct {
	// Members are what the Pool chooses from. Without a member Acquire returns an error that is
	// [ErrInvalid].
	Members []Limiter

	mu      sync.Mutex // protects what follows
	waiting []int      // calls on their way into or in the line of each member
}

// poolLate is how much later than expected a call may be before it chooses again.
const poolLate = 20 * time.Millisecond

var errChoose = errors.New("outbound: the call chooses another member")

// Acquire admits the call by the member that can admit it soonest.
func (p *Pool) Acquire(ctx context.Context, c Cost) (Permit, error) {
	if p == nil || len(p.Members) == 0 || slices.Contains(p.Members, nil) {
		return Permit{}, fmt.Errorf("%w: Pool without a member, or with a nil one", ErrInvalid)
	}
	var refused error
	least := time.Duration(math.MaxInt64)
	for left := p.all(); len(left) > 0; {
		i, wait := p.choose(ctx, left, &c)
		permit, err := p.ask(ctx, i, wait, &c)
		switch full, throttled := errors.AsType[*ThrottledError](err); {
		case err == nil:
			return NewPermit(&pooled{guarded{permit: permit}, p, i}), nil
		case err == errChoose:
			continue
		case ctx.Err() != nil:
			return Permit{}, err
		case refused == nil || throttled && full.RetryAfter > 0 && full.RetryAfter < least:
			if refused = err; throttled && full.RetryAfter > 0 {
				least = full.RetryAfter
			}
		}
		left = slices.DeleteFunc(left, func(j int) bool { return j == i })
	}
	return Permit{}, refused
}

// all returns the indexes of the members.
func (p *Pool) all() (all []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		p.waiting = make([]int, len(p.Members))
	}
	for i := range p.Members {
		all = append(all, i)
	}
	return all
}

// choose returns the member that admits the call soonest, and how long that takes, or a negative
// time if unknown. The call counts there from then on.
func (p *Pool) choose(ctx context.Context, among []int, c *Cost) (best int, wait time.Duration) {
	waits, each, ahead := make([]time.Duration, len(among)), make([]time.Duration, len(among)), make([]int, len(among))
	for n, i := range among {
		if x, ok := As[explainer](p.Members[i]); ok {
			if e, err := x.Explain(ctx, *c); err == nil {
				waits[n], ahead[n] = e.Wait, e.Ahead
				each[n] = e.each(c)
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	best = -1
	for n, i := range among {
		// Calls that have chosen the member and are not in its line yet come before this one.
		w := waits[n] + each[n]*time.Duration(max(0, p.waiting[i]-ahead[n]))
		if waits[n] < 0 {
			w = math.MaxInt64
		}
		if best < 0 || cmp.Or(cmp.Compare(w, wait), cmp.Compare(p.waiting[i], p.waiting[best])) < 0 {
			best, wait = i, w
		}
	}
	p.waiting[best]++
	return best, wait
}

// each returns how much later one more call leaves.
func (e *Explanation) each(c *Cost) (each time.Duration) {
	for i := range e.States {
		if l := &e.States[i].Limit; l.LeakRate > 0 {
			each = max(each, time.Duration(c.charged()[l.Unit]/l.LeakRate*float64(time.Second)))
		}
	}
	return each
}

// ask has the member admit the call. It returns errChoose if that takes longer than wait, and there
// are other members.
func (p *Pool) ask(ctx context.Context, i int, wait time.Duration, c *Cost) (Permit, error) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.waiting[i]--
	}()
	if wait == math.MaxInt64 {
		wait = time.Second // it is unknown
	}
	in, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if len(p.Members) > 1 {
		timer := time.AfterFunc(wait+wait/8+poolLate, func() { cancel(errChoose) })
		defer timer.Stop()
	}
	permit, err := p.Members[i].Acquire(in, *c)
	if err != nil && context.Cause(in) == errChoose && ctx.Err() == nil {
		err = errChoose
	}
	return permit, err
}

// Member returns the index of the member that has admitted the call of this permit, even in a job
// of [Do], [Wrap] or [Each]. It is -1 if no member of p has.
func (p *Pool) Member(permit *Permit) int {
	for permit != nil {
		switch k := permit.call.(type) {
		case *pooled:
			if k.pool == p {
				return k.member
			}
			permit = &k.permit
		case *shared:
			permit = &k.permit
		case *observed:
			permit = &k.permit
		case *nestedCall:
			permit = &k.permit
		case *Permit:
			permit = k
		default:
			return -1
		}
	}
	return -1
}

// Idle reports whether forgetting all members loses nothing.
func (p *Pool) Idle() bool {
	return !slices.ContainsFunc(p.Members, func(l Limiter) bool {
		i, ok := l.(idler)
		return !ok || !i.Idle()
	})
}

// pooled is the permit of a member.
type pooled struct {
	guarded
	pool   *Pool
	member int
}

func (k *pooled) pending() bool { return k.permit.Pending() }

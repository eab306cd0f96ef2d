package outbound

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/members"
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
// all refuse it, the error is the one with the least RetryAfter. What the API answers reaches the
// member that has admitted the call. With buckets in a store each look at a member is a request to
// the store.
//
// A call that has waited in a queue for longer than Explain predicted, as after a 429, moves to
// another member that is clearly sooner. It then waits behind the calls that are there. If a member
// is free earlier than Explain predicted, only later calls use that.
//
// # Members that fail
//
// A tie goes to a member whose last call has succeeded, then to the oldest failure, then to the
// first member. After two failures in a row, or a slow one, a member rests for 1 s, doubled up to
// 4 s, and calls that wait there move. Then one call at a time probes it until one succeeds. A
// second later all may use it. A call probes a member to avoid a wait elsewhere, or if probes
// cost at most a fiftieth of the calls and their time. If all members would rest, all are used.
//
// A member fails if a call ends with [Permit.Failed], or takes eight times as long as at the
// fastest member, and 1 s at least. Three calls without an answer for that time are a slow
// failure. Ten refusals or errors of jobs in a row are a failure, too, or the one of a probe.
// They count only if the last call of another member has succeeded. A call whose ctx ends before
// that time counts as nothing.
//
// A member that has recovered is back within 5 s if calls would wait elsewhere, or if it failed
// fast and Repeats is true. Otherwise it may take longer. Each process learns of failures by
// itself.
//
// For an http.Client there is a Pool in package transport. Several accounts to get around a limit
// may break the terms of an API. A Pool is safe for concurrent use. Do not change its fields once
// it is in use.
type Pool struct {
	// Members are what the Pool chooses from. Without a member Acquire returns an error that is
	// [ErrInvalid].
	Members []Limiter
	// Stick returns the key of a call by its context, such as a conversation whose prompt is in a
	// cache of the API. All calls with one key go to the same member, in all processes whose Members
	// have the same order, while that admits them within Slack. Then they go to a second one, and so
	// on. If Stick is nil, or returns "", the soonest member admits the call.
	Stick func(context.Context) string
	// Slack is the longest that a call with a key waits for the key's member. If Slack is zero, it is
	// a second.
	Slack time.Duration
	// Repeats reports whether the program repeats a call if it fails. Such a failure costs a probe only
	// the time that it takes. If Repeats is nil, each failure costs a call.
	Repeats func(context.Context) bool

	once sync.Once
	set  *members.Set // of Members
}

// poolGuess is what counts as a wait whose length is unknown.
const poolGuess = time.Second

// Acquire admits the call by the member that can admit it soonest.
func (p *Pool) Acquire(ctx context.Context, c Cost) (Permit, error) {
	k, err := p.call(ctx, c)
	if err != nil {
		return Permit{}, err
	}
	k.call.Repeats = p.Repeats != nil && p.Repeats(ctx)
	var refused error
	least := time.Duration(math.MaxInt64)
	for {
		err := k.call.Ask(func(in context.Context, i int) (err error) {
			k.permit, err = p.Members[i].Acquire(in, c)
			return err
		})
		switch full, throttled := errors.AsType[*ThrottledError](err); {
		case err == nil:
			return NewPermit(k), nil
		case err == members.ErrNone:
			return Permit{}, refused
		case ctx.Err() != nil:
			return Permit{}, err
		case refused == nil || throttled && full.RetryAfter > 0 && full.RetryAfter < least:
			if refused = err; throttled && full.RetryAfter > 0 {
				least = full.RetryAfter
			}
		}
	}
}

// Explain returns the Explanation of the member that a call would go to.
func (p *Pool) Explain(ctx context.Context, c Cost) (Explanation, error) {
	k, err := p.call(ctx, c)
	if err != nil {
		return Explanation{}, err
	}
	i, wait := k.call.Best()
	var e Explanation
	if x, ok := As[explainer](p.Members[i]); ok {
		if e, err = x.Explain(ctx, c); err != nil {
			return Explanation{}, err
		}
	}
	e.Wait = wait
	return e, nil
}

// call returns a call that has not chosen a member, or the error of a Pool that cannot work.
func (p *Pool) call(ctx context.Context, c Cost) (*pooled, error) {
	if p == nil || len(p.Members) == 0 || slices.Contains(p.Members, nil) {
		return nil, fmt.Errorf("%w: Pool without a member, or with a nil one", ErrInvalid)
	}
	p.once.Do(func() { p.set = members.New(len(p.Members)) })
	k := &pooled{pool: p, cost: c}
	k.call = members.Call{Set: p.set, Ctx: ctx, Look: k.look, Left: make([]int, len(p.Members))}
	for i := range k.call.Left {
		k.call.Left[i] = i
	}
	if p.Stick == nil {
		return k, nil
	}
	if key := p.Stick(ctx); key != "" {
		rank := func(i int) string {
			h := sha256.Sum256([]byte(strconv.Itoa(i) + " " + key))
			return string(h[:])
		}
		slices.SortFunc(k.call.Left, func(i, j int) int { return cmp.Compare(rank(i), rank(j)) })
		k.call.Within = cmp.Or(p.Slack, time.Second)
	}
	return k, nil
}

// pooled is a call of a Pool, and the permit of the member that admits it.
type pooled struct {
	guarded
	pool   *Pool
	cost   Cost
	call   members.Call
	unsent atomic.Bool
}

// look asks a member how long the call would wait.
func (k *pooled) look(ctx context.Context, i int) members.Look {
	l := members.Look{Each: poolGuess}
	x, ok := As[explainer](k.pool.Members[i])
	if !ok {
		return l
	}
	e, err := x.Explain(ctx, k.cost)
	if err != nil { // Acquire says it
		return l
	}
	each := time.Duration(0)
	for n := range e.States {
		l.Held = max(l.Held, e.States[n].HeldFor)
		if s := &e.States[n].Limit; s.LeakRate > 0 {
			each = max(each, time.Duration(min(3600, k.cost.charged()[s.Unit]/s.LeakRate)*float64(time.Second)))
		}
	}
	// While a queue asks its bucket, its answer is a lower bound. A negative one is unknown.
	l.Ahead, l.Wait = e.Ahead, max(e.Wait, l.Held+each*time.Duration(e.Ahead))
	if l.Each = cmp.Or(each, min(time.Hour, l.Wait/time.Duration(e.Ahead+1)), poolGuess); e.Wait < 0 {
		l.Wait = max(l.Wait, l.Each*time.Duration(e.Ahead+1))
	}
	return l
}

// Settle notes a call that was never sent. Its end is no success of the member.
func (k *pooled) Settle(used Cost) {
	if used == (Cost{}) {
		k.unsent.Store(true)
	}
	k.guarded.Settle(used)
}

// Answered notes an answer that is no success.
func (k *pooled) Answered(a Answer) {
	if a.fails() {
		k.fails(a.Kind == AnswerRefused && !k.TakesAnswers())
	}
	k.guarded.Answered(a)
}

// fails notes that the call has no success. If bad, that is the member's failure.
func (k *pooled) fails(bad bool) { k.call.Fail(bad) }

// Done notes a success, unless the call has had none.
func (k *pooled) Done() {
	k.guarded.Done()
	k.call.Done(!k.unsent.Load())
}

func (k *pooled) pending() bool { return !k.call.Ended() || k.guarded.pending() }

// Member returns the index of the member that has admitted the call of this permit, even in a job
// of [Do], [Wrap] or [Each]. It is -1 if no member of p has.
func (p *Pool) Member(permit *Permit) int { return permit.member(p) }

func (k *pooled) member(pool any) int {
	if pool == any(k.pool) {
		return k.call.Member()
	}
	return k.guarded.member(pool)
}

// Idle reports whether forgetting all members loses nothing.
func (p *Pool) Idle() bool {
	return !slices.ContainsFunc(p.Members, func(l Limiter) bool {
		i, ok := l.(idler)
		return !ok || !i.Idle()
	})
}

package outbound

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
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

	once    sync.Once
	mu      sync.Mutex // protects what follows
	began   time.Time  // the zero of its clock
	members []memberState
	calls   int // admitted
}

const (
	poolLate  = 20 * time.Millisecond // a call that is as much later than expected chooses again
	poolGuess = time.Second           // what counts as a wait whose length is unknown
)

var errChoose = errors.New("outbound: the call chooses another member")

// Acquire admits the call by the member that can admit it soonest.
func (p *Pool) Acquire(ctx context.Context, c Cost) (Permit, error) {
	if err := p.check(); err != nil {
		return Permit{}, err
	}
	k := &pooled{pool: p, ctx: ctx, index: -1, repeats: p.Repeats != nil && p.Repeats(ctx)}
	var refused error
	least := time.Duration(math.MaxInt64)
	for left, within := p.order(ctx); ; {
		i, wait := p.choose(ctx, left, within, &c, -1, k)
		if i < 0 {
			return Permit{}, refused
		}
		err := p.ask(ctx, left, within, &c, k, wait)
		switch full, throttled := errors.AsType[*ThrottledError](err); {
		case err == nil:
			return NewPermit(k), nil
		case err == errChoose:
			continue
		case ctx.Err() != nil:
			return Permit{}, err
		case refused == nil || throttled && full.RetryAfter > 0 && full.RetryAfter < least:
			if refused = err; throttled && full.RetryAfter > 0 {
				least = full.RetryAfter
			}
		}
		left = slices.DeleteFunc(slices.Clone(left), func(j int) bool { return j == i }) // ask may still use the other
	}
}

// Explain returns the Explanation of the member that a call would go to.
func (p *Pool) Explain(ctx context.Context, c Cost) (Explanation, error) {
	if err := p.check(); err != nil {
		return Explanation{}, err
	}
	left, within := p.order(ctx)
	i, wait := p.choose(ctx, left, within, &c, -1, nil)
	var e Explanation
	if x, ok := As[explainer](p.Members[i]); ok {
		var err error
		if e, err = x.Explain(ctx, c); err != nil {
			return Explanation{}, err
		}
	}
	e.Wait = wait
	return e, nil
}

// check returns the error of a Pool that cannot work.
func (p *Pool) check() error {
	if p == nil || len(p.Members) == 0 || slices.Contains(p.Members, nil) {
		return fmt.Errorf("%w: Pool without a member, or with a nil one", ErrInvalid)
	}
	return nil
}

// order returns the indexes of the members, in the order of the call's key if it has one, and the
// longest wait at the first of them.
func (p *Pool) order(ctx context.Context) (order []int, within time.Duration) {
	p.once.Do(func() { p.members, p.began = make([]memberState, len(p.Members)), time.Now() })
	key := ""
	if p.Stick != nil {
		key = p.Stick(ctx)
	}
	order = make([]int, len(p.Members))
	for i := range order {
		order[i] = i
	}
	if key == "" {
		return order, 0
	}
	rank := func(i int) []byte {
		h := sha256.Sum256([]byte(strconv.Itoa(i) + " " + key))
		return h[:]
	}
	slices.SortFunc(order, func(i, j int) int { return bytes.Compare(rank(i), rank(j)) })
	return order, cmp.Or(p.Slack, time.Second)
}

// look is how long a call would wait at a member.
type look struct {
	member           int
	wait, held, each time.Duration // each is what one more call adds
	ahead            int           // calls that wait there
}

// look asks a member.
func (p *Pool) look(ctx context.Context, i int, c *Cost) look {
	l := look{member: i, each: poolGuess}
	x, ok := As[explainer](p.Members[i])
	if !ok {
		return l
	}
	e, err := x.Explain(ctx, *c)
	if err != nil { // Acquire says it
		return l
	}
	each := time.Duration(0)
	for k := range e.States {
		l.held = max(l.held, e.States[k].HeldFor)
		if s := &e.States[k].Limit; s.LeakRate > 0 {
			each = max(each, time.Duration(min(3600, c.charged()[s.Unit]/s.LeakRate)*float64(time.Second)))
		}
	}
	// While a queue asks its bucket, its answer is a lower bound. A negative one is unknown.
	l.ahead, l.wait = e.Ahead, max(e.Wait, l.held+each*time.Duration(e.Ahead))
	if l.each = cmp.Or(each, min(time.Hour, l.wait/time.Duration(e.Ahead+1)), poolGuess); e.Wait < 0 {
		l.wait = max(l.wait, l.each*time.Duration(e.Ahead+1))
	}
	return l
}

// choose returns the first member of left that admits the call within a time, or else the one that
// admits it soonest, and how long that takes. If k is not nil, the call then counts there. If the
// call waits at a member already, choose returns another one if that is clearly sooner. The member
// is -1 if none of left may be asked.
func (p *Pool) choose(ctx context.Context, left []int, within time.Duration, c *Cost, at int, k *pooled) (best int, wait time.Duration) {
	var few [8]int
	p.mu.Lock()
	among := p.candidates(few[:0], left, within > 0, at)
	p.mu.Unlock()
	if len(among) == 0 {
		return -1, 0
	}
	looks := make([]look, 0, len(among))
	for {
		looks = append(looks, p.look(ctx, among[len(looks)], c))
		p.mu.Lock()
		best = -1
		for _, l := range looks { // all, because other calls have chosen meanwhile
			// Calls that have chosen the member and are not in its line yet come before this one.
			w := l.wait + l.each*time.Duration(max(0, len(p.members[l.member].line)-l.ahead))
			if l.member == at {
				w = max(0, l.held-poolLate, (w-l.each)/2-poolLate)
			}
			if best < 0 || w < wait {
				best, wait = l.member, w
			}
			if wait <= within {
				break
			}
		}
		done := wait <= within || len(looks) == len(among)
		again := done && k != nil && !p.enter(k, best) // another call probes the member now
		p.mu.Unlock()
		switch {
		case again:
			return p.choose(ctx, left, within, c, at, k)
		case done:
			return best, wait
		}
	}
}

// ask has the call's member admit it. If that takes longer than wait, and another member is better,
// or if the member begins to rest, ask returns errChoose.
func (p *Pool) ask(ctx context.Context, left []int, within time.Duration, c *Cost, k *pooled, wait time.Duration) error {
	in, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	i := k.index
	p.mu.Lock()
	if k.cancel = cancel; len(p.Members) > 1 {
		k.again = time.AfterFunc(wait+wait/8+poolLate, func() { p.reconsider(in, left, within, c, k, i) })
	}
	if k.probes == 0 {
		p.move(k) // it may have begun to rest
	}
	p.mu.Unlock()
	permit, err := p.Members[i].Acquire(in, *c)
	if err != nil && context.Cause(in) == errChoose && ctx.Err() == nil {
		err = errChoose
	}
	k.permit = permit
	p.leave(k, err == nil)
	return err
}

// leave has the call leave the line of its member: it is admitted or not.
func (p *Pool) leave(k *pooled, admitted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := &p.members[k.index]
	if k.again != nil {
		k.again.Stop()
	}
	if delete(m.line, k); !admitted {
		p.release(k)
		return
	}
	p.calls++
	k.sent = p.now()
	if m.asked++; m.asked == 3 {
		m.quiet = k.sent
	}
}

// move ends the wait of a call at a member that rests.
func (p *Pool) move(k *pooled) {
	if p.rests(&p.members[k.index]) && k.cancel != nil {
		k.cancel(errChoose)
	}
}

// reconsider ends the wait of a call at a member if another one is better, or looks again later.
func (p *Pool) reconsider(in context.Context, left []int, within time.Duration, c *Cost, k *pooled, at int) {
	if in.Err() != nil {
		return
	}
	best, next := p.choose(in, left, within, c, at, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case in.Err() != nil:
	case best != at:
		k.cancel(errChoose)
	default:
		k.again.Reset(next + next/8 + poolLate)
	}
}

// pooled is a call of a Pool, and the permit of the member that admits it.
type pooled struct {
	guarded
	pool    *Pool
	ctx     context.Context
	repeats bool

	// The Pool's mu protects what follows.
	index  int // of the member, or -1
	cancel context.CancelCauseFunc
	again  *time.Timer   // while the call waits: when it chooses again
	probes time.Duration // rests of the member, as long as the call probes it
	sent   time.Duration // when it was admitted
	unsent bool
	end    int
	bad    int // what the member's bad is at least if this call fails
}

// How a call has ended.
const (
	ended = iota + 1
	succeeded
)

// chooseAgain has the call choose again if it waits.
func (k *pooled) chooseAgain() bool { return k.again != nil && k.again.Reset(0) }

// Settle notes a call that was never sent. Its end is no success of the member.
func (k *pooled) Settle(used Cost) {
	if used == (Cost{}) {
		k.pool.mu.Lock()
		k.unsent = true
		k.pool.mu.Unlock()
	}
	k.guarded.Settle(used)
}

// Answered notes an answer that is no success.
func (k *pooled) Answered(a Answer) {
	if a.fails() {
		k.fails(a.Kind == AnswerRefused && !k.guarded.TakesAnswers())
	}
	k.guarded.Answered(a)
}

// fails notes that the call has no success. If bad, that is the member's failure.
func (k *pooled) fails(bad bool) {
	p := k.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if k.end == ended {
		return
	}
	m, t, before := &p.members[k.index], p.now(), k.end
	k.finish(ended)
	switch {
	case before == 0 && late(t-k.sent, p.usual()):
		p.fail(k, resting, !k.repeats, t)
	case bad:
		p.fail(k, failure, !k.repeats || before == succeeded, t)
	case k.ctx.Err() != nil:
		p.release(k)
	case p.other(k.index, 1):
		p.fail(k, odd, true, t)
	default: // the calls fail at all members
		m.bad, m.failed = max(m.bad, odd), t
		p.release(k)
	}
}

// finish notes the end of the call.
func (k *pooled) finish(end int) {
	if k.end == 0 {
		m := &k.pool.members[k.index]
		m.asked = max(0, m.asked-1)
	}
	k.end = end
}

// Done notes a success, unless the call has had none.
func (k *pooled) Done() {
	k.guarded.Done()
	p := k.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case k.end != 0:
	case k.unsent:
		k.finish(ended)
		p.release(k)
	default:
		p.succeed(k, p.now())
	}
}

func (k *pooled) pending() bool {
	k.pool.mu.Lock()
	defer k.pool.mu.Unlock()
	return k.end == 0 || k.guarded.pending()
}

// Member returns the index of the member that has admitted the call of this permit, even in a job
// of [Do], [Wrap] or [Each]. It is -1 if no member of p has.
func (p *Pool) Member(permit *Permit) int {
	return permit.member(p)
}

func (k *pooled) member(pool any) int {
	if pool == any(k.pool) {
		return k.index
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

package outbound

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/core"
)

// Do acquires a permit for a job of this cost, runs the job, and ends the permit when the job
// returns, panics or calls [runtime.Goexit]. It returns the job's error. If Acquire fails, as with
// a [*ThrottledError] over the limit, Do returns that error without running the job. A panic goes
// on to the caller.
//
// The job's ctx is ctx with the permit in it: see [PermitFrom]. A job that returns an error counts
// as answered by the API, unless it reports otherwise through its permit. Do costs one allocation
// more than Acquire.
//
// Pace either the jobs or the client that they use: the client if a job sends several requests, or
// does other work before. If both have the same limiter, the job's permit pays for its first
// request: see [Permit.AcquireIn].
//
// A nil l and a nil job are [ErrInvalid], and nothing is charged.
func Do(ctx context.Context, l Limiter, c Cost, job func(context.Context) error) error {
	switch {
	case l == nil:
		return fmt.Errorf("%w: nil Limiter of Do", ErrInvalid)
	case job == nil:
		return fmt.Errorf("%w: nil job of Do", ErrInvalid)
	}
	permit, err := l.Acquire(ctx, c)
	if err != nil {
		return err
	}
	j := &jobContext{runs: runs{ctx, now()}, limiter: l, cost: c, job: shared{guarded: guarded{permit: permit}}}
	defer j.job.Done()
	if err = job(j); err != nil {
		j.job.fails(false)
	}
	return err
}

// Wrap returns a job that runs as by [Do]: paced, or refused with the error of Acquire and not run.
// It fits where a job system wants a function of a payload. A nil l, job or cost function makes a
// function that returns [ErrInvalid].
//
// The cost c is a [Cost] that each job takes, or a function that returns the cost of a payload.
// Cost{} is [ErrInvalid]. A job without a cost has Cost{Free}.
//
// When a job is refused, hand it back to the job system. With a Scheduler of package queue/jobs as
// l, that is until a head start before its reservation:
//
//	err := paced(jobs.WithTicket(ctx, ticket), payload)
//	if later, ok := jobs.AsLater(err); ok {
//		return runAgainIn(later.In, later.Ticket)
//	}
//	return err
//
// 1 000 jobs at 10 per second then make 1 990 attempts. A bare bucket returns the same time to
// every refused job. One of them is admitted then, and the rest is refused again: 500 500 attempts.
// Without tickets, a queue with a MaxWait of 5 s admits the jobs that fit into the next 5 s. In a
// system that polls every 5 s that is 10 481 attempts. There, reschedule a job until the last poll
// before its RetryAfter, so that the queue does not run empty. A RetryAfter of 0 is unknown, as for
// a limit [InFlight]: reschedule it for a poll.
func Wrap[T any, C Cost | func(T) Cost](l Limiter, c C, job func(context.Context, T) error) func(context.Context, T) error {
	cost := costOf[T](c)
	return func(ctx context.Context, payload T) error {
		if job == nil || cost == nil {
			return fmt.Errorf("%w: nil job or cost of Wrap", ErrInvalid)
		}
		return Do(ctx, l, cost(payload), func(ctx context.Context) error { return job(ctx, payload) })
	}
}

// costOf returns the function that returns the cost of an item.
func costOf[T any, C Cost | func(T) Cost](c C) func(T) Cost {
	if f, ok := any(c).(func(T) Cost); ok {
		return f
	}
	fixed := any(c).(Cost)
	return func(T) Cost { return fixed }
}

// PermitFrom returns the permit of the job with this ctx, or a ctx made from it: to Settle what it
// really cost, or to report what the API replied. Outside of a job it is a permit without effect.
// Do, Wrap and Each call its Done.
func PermitFrom(ctx context.Context) *Permit {
	if j, ok := ctx.Value(permitKey{}).(*jobContext); ok {
		return &Permit{call: &j.job}
	}
	return new(Permit)
}

// AcquireIn makes p the permit of a request that is sent with ctx, as package transport does for
// each request. In a job of [Do], [Wrap] or [Each] with the same bucket, the job's permit admits
// the first request immediately and pays for it, even in a hold. If the request costs more than the
// job, l.Acquire admits the difference, which may wait or be refused. Further requests, and all
// requests of other limiters, after the job, after the job has settled, or outside of one, are
// admitted by l.Acquire.
//
// If the bucket has a limit [InFlight], the job is one call in flight from its beginning to its
// end. Its further requests belong to that call, so a request never waits for its own job. If the
// job ends before its requests, its call in flight ends before they do. This does not cover a Do
// within a job, which is a call in flight of its own.
//
// The bucket of l is found by [As], the method Bucket of a queue and the key of a [Keyed]. A
// limiter of your own without a bucket is the job's if both are equal. An observer of l alone
// misses the first request.
func (p *Permit) AcquireIn(ctx context.Context, l Limiter, c Cost) (err error) {
	job, ok := ctx.Value(permitKey{}).(payer)
	if !ok || ctx.Err() != nil || !c.real() {
		*p, err = l.Acquire(ctx, c)
		return err
	}
	*p, err = job.acquire(ctx, l, c)
	return err
}

// payer is a job whose permit may pay for a request. A permit knows no more of jobs.
type payer interface {
	acquire(ctx context.Context, l Limiter, c Cost) (Permit, error)
}

var _ payer = (*jobContext)(nil)

// acquire admits a request of the job by the job's permit or by that of a job around it, or by l.
func (j *jobContext) acquire(ctx context.Context, l Limiter, c Cost) (Permit, error) {
	to := innermost(l)
	b, _ := to.(*Bucket)
	for ok := true; ok; j, ok = j.Context.Value(permitKey{}).(*jobContext) {
		if b != nil && j.job.bucket() == &b.core || same(innermost(j.limiter), to) {
			mine, over := j.job.first(b, &c)
			if !over && b != nil {
				ctx = context.WithValue(ctx, withinKey{}, &b.core)
			}
			if mine {
				return j.serve(ctx, l, c)
			}
		}
	}
	return l.Acquire(ctx, c)
}

// bucket returns what the permit is charged to, or nil if that is unknown.
func (p *Permit) bucket() *core.Core {
	if p == nil {
		return nil
	}
	if k, ok := p.call.(interface{ bucket() *core.Core }); ok {
		return k.bucket()
	}
	return p.in.Of()
}

// innermost returns what l wraps in the end: the bucket of a queue, and the limiter of a key.
func innermost(l Limiter) Limiter {
	for {
		var inner Limiter
		switch around := l.(type) {
		case interface{ Unwrap() Limiter }:
			inner = around.Unwrap()
		case interface{ Bucket() *Bucket }:
			if b := around.Bucket(); b != nil {
				inner = b
			}
		case interface {
			Use(func(Limiter) error) error
		}:
			_ = around.Use(func(l Limiter) error { inner = l; return nil })
		}
		if inner == nil {
			return l
		}
		l = inner
	}
}

// same reports whether two limiters are equal. Those of types that cannot be compared are not.
func same(a, b Limiter) bool { return reflect.ValueOf(a).Comparable() && a == b }

type permitKey struct{}

// jobContext is a job's ctx and permit in one allocation.
type jobContext struct {
	runs
	limiter Limiter
	cost    Cost
	job     shared
}

type runsKey struct{}

// runs is the ctx around a job, and when the job began.
type runs struct {
	context.Context
	began time.Duration
}

// ran returns how long the job of a ctx had run at this time. Among jobs within jobs, it takes the
// one that has set the deadline, or else the outermost.
func ran(ctx context.Context, deadline time.Time, at time.Duration) (d time.Duration) {
	for {
		job, ok := ctx.Value(runsKey{}).(*runs)
		if !ok {
			return d
		}
		d, ctx = max(0, at-job.began), job.Context
		if outer, ok := ctx.Deadline(); !ok || !outer.Equal(deadline) {
			return d
		}
	}
}

// String names the ctx as those of package context do.
func (j *jobContext) String() string { return fmt.Sprint(j.Context) + ".WithPermit" }

func (j *jobContext) Value(key any) any {
	switch key.(type) {
	case permitKey:
		return j
	case runsKey:
		return &j.runs
	}
	return j.Context.Value(key)
}

// serve returns the permit of the job's first request, which costs c.
func (j *jobContext) serve(ctx context.Context, l Limiter, c Cost) (Permit, error) {
	extra, was, more := c, j.cost.charged(), false
	for i, n := range c.charged() {
		if extra[i] = Free; n > was[i] {
			extra[i], more = n-was[i], true
		}
	}
	if !more {
		return Permit{call: &j.job, in: core.Permit{Flags: core.Done}}, nil // the job ends it
	}
	permit, err := l.Acquire(ctx, extra)
	if err != nil {
		j.job.returned()
		return Permit{}, err
	}
	return Permit{call: &firstCall{shared: &j.job, cost: was, more: extra, extra: permit}}, nil
}

// firstCall is a job's first request that costs more than the job. The difference has a permit of
// its own.
type firstCall struct {
	*shared
	cost  Cost // of the job
	more  Cost // of extra
	extra Permit
}

func (k *firstCall) Settle(used Cost) {
	mine, extra := used, used
	for i, n := range k.cost {
		if mine[i], extra[i] = min(used[i], n), max(0, used[i]-n); extra[i] == 0 && k.more[i] == Free {
			extra[i] = Free
		}
	}
	if !used.real() {
		mine, extra = used, used // which both ignore
	}
	k.shared.Settle(mine)
	k.extra.Settle(extra)
}

func (k *firstCall) pending() bool { return k.extra.Pending() }

func (k *firstCall) Done() { k.extra.Done() } // the job ends its own

// shared is the permit of a job, which the job and its first request may use at the same time.
type shared struct {
	guarded
	served bool // there was a first request, or the job has settled
	over   bool
}

// first reports whether a request that costs c is the job's first one, and whether the job has
// ended. b is the bucket, or nil if unknown. Acquire refuses a cost above a capacity.
func (k *shared) first(b *Bucket, c *Cost) (is, over bool) {
	if b != nil && check(&b.core.InForce().Limits, "", c, 0) != nil {
		c = nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	is = c != nil && !k.served && !k.over
	k.served = k.served || is
	return is, k.over
}

// returned notes that the first request was not admitted.
func (k *shared) returned() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.served = false
}

func (k *shared) Settle(used Cost) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.served = true // what the job has settled admits nothing more
	k.permit.Settle(used)
}

func (k *shared) listen(l interface{ Answered(Answer) }) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.permit.Listen(l)
}

func (k *shared) Done() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
	k.permit.Done()
}

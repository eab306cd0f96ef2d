package outbound

import (
	"context"
	"fmt"
)

// Do acquires room for a job of this cost, runs it, and ends its permit when
// the job returns, panics or calls [runtime.Goexit]. It returns what the job
// returned, or the error of Acquire, a [*ThrottledError] if there is no room,
// and then the job has not run. A panic goes on to the caller.
//
// The job's ctx is ctx with the permit in it: see [PermitFrom]. A job that
// returns an error counts as one that the API has answered, unless it reports
// otherwise through its permit. Do costs one allocation more than Acquire.
//
// A nil l and a nil job are [ErrNil], and nothing is charged.
func Do(ctx context.Context, l Limiter, c Cost, job func(context.Context) error) error {
	switch {
	case l == nil:
		return fmt.Errorf("%w: Limiter of Do", ErrNil)
	case job == nil:
		return fmt.Errorf("%w: job of Do", ErrNil)
	}
	permit, err := l.Acquire(ctx, c)
	if err != nil {
		return err
	}
	j := &jobContext{Context: ctx, permit: permit}
	defer j.permit.Done()
	return job(j)
}

// Wrap returns a job that runs as by [Do]: paced, or refused with the error of
// Acquire and not run. It fits where a job system wants a function of a
// payload. A nil l, job or cost function makes a function that returns [ErrNil].
//
// The cost c is a [Cost] that each job takes, or a function that returns the cost of a payload.
//
// When a job is refused, hand it back to the job system. With a line of package
// queue/jobs as l, that is until its turn is near:
//
//	err := paced(jobs.WithTicket(ctx, ticket), payload)
//	if later, ok := jobs.After(err); ok {
//		return runAgainIn(later.In, later.Ticket)
//	}
//	return err
//
// 1 000 jobs at 10 per second then make 1 990 attempts. A bare bucket tells every
// refused job the same time, at which one of them goes and all others are refused
// again: that is 500 500 attempts. Where nothing can carry a ticket, a queue with a MaxWait
// of 5 s under a system that polls every 5 s lets those in that fit into the next
// 5 s: 10 481 attempts. There a job goes back until the last poll before its
// RetryAfter: at the one after it the queue would have run dry. RetryAfter 0 says
// that the time is not known, as for a limit [InFlight]: then it goes back for a poll.
func Wrap[T any, C Cost | func(T) Cost](l Limiter, c C, job func(context.Context, T) error) func(context.Context, T) error {
	cost := costOf[T](c)
	return func(ctx context.Context, payload T) error {
		if job == nil || cost == nil {
			return fmt.Errorf("%w: job or cost of Wrap", ErrNil)
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

// PermitFrom returns the permit of the job that was given ctx, or a ctx made
// from it: to Settle what it really cost, or to report what the API said. It
// is never nil; outside of a job it is a permit with nothing to do. Do, Wrap
// and Each call its Done.
func PermitFrom(ctx context.Context) *Permit {
	if p, ok := ctx.Value(permitKey{}).(*Permit); ok {
		return p
	}
	return new(Permit)
}

type permitKey struct{}

// jobContext is a ctx and the permit in one allocation.
type jobContext struct {
	context.Context
	permit Permit
}

func (j *jobContext) Value(key any) any {
	if _, ok := key.(permitKey); ok {
		return &j.permit
	}
	return j.Context.Value(key)
}

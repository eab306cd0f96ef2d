package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// Pacer paces tasks. Set its fields before first use and change none afterwards. It is safe for
// concurrent use.
type Pacer struct {
	// Limiter returns the limiter that admits a task, and the cost of the task, most often Cost{1}.
	// The cost has no default. The limiter is a [jobs.Scheduler], or for tenants one Scheduler for
	// each. Limiter must be quick. Tasks with a nil Limiter are not paced.
	Limiter func(*asynq.Task) (outbound.Limiter, outbound.Cost)
	// Tickets keeps the reservations of tasks that were rescheduled. If it is nil, a task waits for
	// its reservation in its worker, because a reschedule would book behind all other tasks each
	// time.
	Tickets Tickets
}

// New returns a Pacer that keeps its tickets in Redis: one key for each task that was rescheduled,
// named "dripfeed:ticket:", the task's queue, "/" and the task's ID. The key ends an hour after the
// task is due.
func New(rdb redis.UniversalClient, limiter func(*asynq.Task) (outbound.Limiter, outbound.Cost)) *Pacer {
	return &Pacer{Limiter: limiter, Tickets: redisTickets{rdb}}
}

// Middleware paces the tasks of a handler, for [asynq.ServeMux.Use]. The handler's ctx carries the
// permit of the call: see [outbound.PermitFrom]. Report the API's reply to it, so that a 429 holds
// all workers.
//
// The error that reschedules a task is a [*jobs.Later], or has the ThrottledError of a limiter
// inside the task. If the API has refused the task's call, the handler's error comes wrapped;
// errors.Is and errors.As find it.
func (p *Pacer) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		l, cost := p.limiter(t)
		name, ticket := "", ""
		if id, ok := asynq.GetTaskID(ctx); ok && p.Tickets != nil && l != outbound.Limiter(outbound.Unlimited{}) {
			queue, _ := asynq.GetQueueName(ctx)
			name = taskName(queue, id)
			ticket = p.Tickets.Get(ctx, name)
		}
		for {
			ran, pause, err := jobs.Do(jobs.WithTicket(ctx, ticket), l, cost, func(ctx context.Context) error {
				return next.ProcessTask(ctx, t)
			})
			if pause > 0 && err != nil {
				err = &heldError{err, pause}
			}
			later, ok := goesBack(err)
			interrupted := ctx.Err() == context.Canceled // asynq has put the task back
			if err != nil && ran && ticket != "" && !interrupted && (!ok || later.Ticket == "") {
				ticket = "" // its reservation is used: the next run is charged again, and books again
				_ = p.keep(ctx, name, "", 0)
			}
			if errors.As(err, new(*outbound.CostError)) {
				return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
			}
			if !ok {
				return err
			}
			if later.Ticket != "" {
				ticket = later.Ticket
				if kept := p.keep(ctx, name, ticket, later.In); kept != nil {
					err = &jobs.Later{In: later.In, Err: fmt.Errorf("asynqjobs: keeping a ticket: %w", kept)}
				}
			}
			last := lastTry(ctx)
			if unkept := name == "" && later.Ticket != "" && later.Err == nil; !last && !unkept {
				return err
			}
			if !sleep(ctx, later.In) {
				if !last {
					return err
				}
				return fmt.Errorf("asynqjobs: last try: rate limited until after the deadline: %w", err)
			}
		}
	})
}

// limiter returns the limiter of a task, which is nil only if the Pacer has none.
func (p *Pacer) limiter(t *asynq.Task) (l outbound.Limiter, cost outbound.Cost) {
	if p.Limiter != nil {
		if l, cost = p.Limiter(t); l == nil {
			l = outbound.Unlimited{}
		}
	}
	return l, cost
}

// goesBack reports whether this error reschedules a task, and when the task should run again.
func goesBack(err error) (*jobs.Later, bool) {
	if errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
		return nil, false
	}
	return jobs.AsLater(err)
}

// heldError is the error of a task whose call has made the API ask for a pause.
type heldError struct {
	error
	wait time.Duration
}

func (e *heldError) Unwrap() error { return e.error }

// lastTry reports whether asynq archives the task if it returns an error, whatever IsFailure says.
func lastTry(ctx context.Context) bool {
	n, _ := asynq.GetRetryCount(ctx)
	most, ok := asynq.GetMaxRetry(ctx)
	return ok && n >= most
}

// sleep waits. It returns false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		d = time.Second // the time is unknown, or the queue is closed
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= d {
		return false
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

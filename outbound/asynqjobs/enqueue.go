package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// Enqueue enqueues a task to run at its reservation, so that it runs once instead of twice. That
// costs a request to the bucket's store and one for the ticket. The Pacer's Limiter must return a
// limiter that contains a Scheduler: see [jobs.Of]. If it returns the key of a Keyed, jobs.Of makes
// the key's limiter. Tasks of other limiters are enqueued as they are.
//
// Tasks with some options in o are enqueued as they are, too. ProcessAt and ProcessIn set a time,
// asynq may reject a Unique or a TaskID, and the tasks of a Group run as one. Their reservations
// would pass unused. Enqueue cannot see options of NewTask, and replaces the time of such a task.
//
// A task with a future reservation is in [asynq.TaskStateScheduled]. One without a reservation is
// pending. So a Unique task is pending, and its lock may end while it is rescheduled: asynq takes
// another one then. Let the TTL of the lock be longer than jobs.Config's Ahead, or than the longest
// backlog.
//
// If the store is unavailable, or the reservation would be beyond jobs.Config's Ahead, the task is
// enqueued without one, and books when it first runs. A cost above a limit's capacity is an error,
// and no task is enqueued.
//
// If the reservation is after the task's Deadline, Enqueue returns the task's info and an
// [*outbound.ThrottledError] with [context.DeadlineExceeded]. The task is in the queue then, and
// will fail there.
func (p *Pacer) Enqueue(ctx context.Context, c *asynq.Client, t *asynq.Task, o ...asynq.Option) (*asynq.TaskInfo, error) {
	if c == nil || t == nil {
		return nil, fmt.Errorf("%w: nil client or task of Enqueue", outbound.ErrInvalid)
	}
	l, cost := p.limiter(t)
	b, ok := jobs.Of(l)
	if !ok || p.Tickets == nil || slices.ContainsFunc(o, unbooked) {
		return c.EnqueueContext(ctx, t, o...)
	}
	runs, err := b.Book(ctx, cost)
	switch {
	case errors.As(err, new(*outbound.CostError)):
		return nil, err
	case err != nil || len(runs) == 0:
		return c.EnqueueContext(ctx, t, o...)
	}
	run := runs[0]
	at := run.At
	if time.Until(at) > 0 { // a due task is pending: asynq need not look for it
		at = whole(at)
	}
	info, err := c.EnqueueContext(ctx, t, append(slices.Clip(o), asynq.ProcessAt(at))...)
	if err != nil {
		return nil, err
	}
	// Asynq has chosen the ID. A task that runs before this, or whose ticket is lost, books again.
	if run.Ticket != "" {
		_ = p.keep(ctx, taskName(info.Queue, info.ID), run.Ticket, time.Until(run.At))
	}
	if !info.Deadline.IsZero() && run.At.After(info.Deadline) {
		return info, &outbound.ThrottledError{RetryAfter: time.Until(run.At), Err: context.DeadlineExceeded}
	}
	return info, nil
}

// unbooked reports whether Enqueue leaves a task with this option as it is. The task has its own
// time, may be rejected, or is a part of another task.
func unbooked(o asynq.Option) bool {
	switch o.Type() {
	case asynq.ProcessAtOpt, asynq.ProcessInOpt, asynq.UniqueOpt, asynq.TaskIDOpt, asynq.GroupOpt:
		return true
	}
	return false
}

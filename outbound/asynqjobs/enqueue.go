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

// Enqueue enqueues a task to run at its reservation, so that it need not go back for it: it runs
// once instead of twice. That costs a trip to the bucket's store and one for the ticket. The
// Pacer's Limiter has to return a limiter in which [jobs.Of] finds a Scheduler; if it returns the
// key of a Keyed, jobs.Of makes the key's limiter. Tasks of other limiters are enqueued as they
// are.
//
// So are tasks with a ProcessAt or ProcessIn among o, which have a time, with a Unique or a TaskID,
// because asynq may not take them, and with a Group, because they do not run themselves: their
// reservations would pass unused. Enqueue does not see options that were given to NewTask, and
// replaces the time of a task that has one of those.
//
// A task with a reservation that is still to come is in [asynq.TaskStateScheduled]. One without a
// reservation is pending. So a Unique task is pending, and its lock may end while it is
// rescheduled: asynq takes another one then. Let the TTL of the lock be longer than jobs.Config's
// Ahead, or than the longest backlog.
//
// If no reservation can be booked, because the store is unavailable or the reservation would be
// further away than jobs.Config's Ahead, the task is enqueued all the same, and gets its
// reservation when it first runs. A cost that can never go is an error, and nothing is enqueued.
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
	places, err := b.Book(ctx, cost)
	switch {
	case errors.As(err, new(*outbound.CostError)):
		return nil, err
	case err != nil || len(places) == 0:
		return c.EnqueueContext(ctx, t, o...)
	}
	place := places[0]
	at := place.At
	if time.Until(at) > 0 { // else asynq need not look for it
		at = whole(at)
	}
	info, err := c.EnqueueContext(ctx, t, append(slices.Clip(o), asynq.ProcessAt(at))...)
	if err != nil {
		return nil, err
	}
	// Asynq has chosen the ID. A task that runs before this, or whose ticket is not kept, books
	// anew.
	if place.Ticket != "" {
		_ = p.keep(ctx, taskName(info.Queue, info.ID), place.Ticket, time.Until(place.At))
	}
	if !info.Deadline.IsZero() && place.At.After(info.Deadline) {
		return info, &outbound.ThrottledError{RetryAfter: time.Until(place.At), Err: context.DeadlineExceeded}
	}
	return info, nil
}

// unbooked reports whether no reservation is booked for a task with this option: it has a time of
// its own, may not be taken, or is only a part of another task.
func unbooked(o asynq.Option) bool {
	switch o.Type() {
	case asynq.ProcessAtOpt, asynq.ProcessInOpt, asynq.UniqueOpt, asynq.TaskIDOpt, asynq.GroupOpt:
		return true
	}
	return false
}

package jobs

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Later is the error of a job that has not run: reschedule it to run after In, with Ticket. It is
// no failure of the job, and no attempt.
type Later struct {
	// In is the time after which the job is to run again. It may be 0.
	In time.Duration
	// Ticket names the job's reservation. Pass it to the next run by [WithTicket]. A system that
	// does not carry it with the job keeps it for In and an hour. After that the job may as well
	// book again. If Ticket is empty, the job has no reservation.
	Ticket string
	// Err is the reason, unless the job only has to wait. It is a [*outbound.StoreError] if the
	// store is unavailable, [queue.ErrClosed] or the ctx's own error at a shutdown, or an
	// [*outbound.ThrottledError] that is [queue.ErrFull] if the reservation would be further away
	// than Config.Ahead. If Err is nil, the Later is [outbound.ErrThrottled].
	Err error

	full *outbound.ThrottledError // with a nil Err: what Unwrap returns
}

// Error implements error.
func (l *Later) Error() string {
	return "jobs: the job has not run, run it again in " + l.In.String() + ": " + l.Unwrap().Error()
}

// Unwrap returns Err. If that is nil, it returns an error that is [outbound.ErrThrottled]: the
// [*outbound.ThrottledError] of the bucket, or of its reservations, which names neither a limit nor
// a hold.
func (l *Later) Unwrap() error {
	switch {
	case l.Err != nil:
		return l.Err
	case l.full != nil:
		return l.full
	}
	return outbound.ErrThrottled
}

// RetryableError is false: run the job after In, not immediately.
func (l *Later) RetryableError() bool { return false }

// After finds a [*Later] in err. It also makes one of the [*outbound.ThrottledError] of a limiter
// that the job itself has met, such as that of its http.Client. With such a Later the job has begun
// to run.
func After(err error) (*Later, bool) {
	if l := (*Later)(nil); errors.As(err, &l) {
		return l, true
	}
	if full := (*outbound.ThrottledError)(nil); errors.As(err, &full) {
		return &Later{In: cmp.Or(full.RetryAfter, defaultPoll), Err: err}, true
	}
	return nil, false
}

type ticketKey struct{}

// WithTicket returns a ctx with the ticket of an earlier [Later] or [Reservation]. A ticket that is
// empty, forged, copied or old changes the order of jobs, and never how many are admitted.
func WithTicket(ctx context.Context, ticket string) context.Context {
	return context.WithValue(ctx, ticketKey{}, ticket)
}

// later makes a Later of an error that is not permanent.
func (s *Scheduler) later(err error, v *visit) error {
	var full *outbound.ThrottledError
	switch {
	case errors.As(err, &full) && full.RetryAfter > s.config.Ahead:
		full.Err = tooFar{}
		return &Later{In: s.again(full.RetryAfter), Err: full}
	case full != nil && full.RetryAfter > 0: // no reservation is made in the next period
		return &Later{In: s.again(full.RetryAfter), full: full}
	case full != nil: // a limit on calls in flight
		return &Later{In: s.config.Poll, Ticket: v.ticket, full: full}
	case errors.As(err, new(*outbound.StoreError)):
		// All jobs meet that, and are not to run again together.
		return &Later{In: time.Second + rand.N(4*time.Second), Ticket: v.ticket, Err: err}
	case errors.Is(err, queue.ErrClosed):
		return &Later{In: s.config.Lead, Ticket: v.ticket, Err: err}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &Later{Ticket: v.ticket, Err: err}
	}
	return err
}

// again returns when a job without a reservation comes again, of which the first can be admitted
// after wait. If that is further away than Config.Ahead, it is when half of what is reserved now has
// passed, so that as many find a reservation then. Else a period ends after wait. Then the jobs come
// in the order in which they were told, spread over a poll interval.
func (s *Scheduler) again(wait time.Duration) time.Duration {
	if wait > s.config.Ahead {
		return max(wait/2, wait-s.config.Ahead/2, s.config.Lead)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := time.Now().Add(wait); end.Sub(s.end).Abs() > s.config.Lead {
		s.end, s.told = end, 0
	}
	s.told++
	return time.Until(s.end) + time.Duration(float64(s.config.Poll)*s.told/(s.told+manyTold))
}

// manyTold is how many jobs of one period come again in the first half of a poll interval.
const manyTold = 100

// Do is [outbound.Do] for adapters of job systems. It also reports whether the job has run, and for
// how long the API has asked to wait, if the job has reported that to its permit: a job that has
// failed is not to run again before. The pause is a second if the API has refused the call without
// a time.
func Do(ctx context.Context, l outbound.Limiter, c outbound.Cost, job func(context.Context) error) (ran bool, pause time.Duration, err error) {
	var asked atomic.Int64 // atomic, because a permit may be used after the end of its call
	l = outbound.Observe(l, "", func(_ context.Context, e outbound.Event) {
		if e.Kind == outbound.EventHeld && e.Err == nil {
			asked.Store(max(asked.Load(), int64(cmp.Or(e.Hold, time.Second)))) // as a bucket does
		}
	})
	err = outbound.Do(ctx, l, c, func(ctx context.Context) error {
		ran = true
		return job(ctx)
	})
	return ran, time.Duration(asked.Load()), err
}

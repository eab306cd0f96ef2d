package jobs

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Later is the error that says that the job has not run: put it back for In, with Ticket. It is
// no failure of the job, and no attempt.
type Later struct {
	// In is how long the job is to stay away. It may be 0.
	In time.Duration
	// Ticket names the job's place. The job is to bring it when it comes again, by
	// [WithTicket]. Whoever keeps it beside the job keeps it for In and an hour: a job that comes
	// later than that may as well book anew. Empty: the job has no place yet.
	Ticket string
	// Err is why, if it is not only that the job has to wait: a [*outbound.StoreError] of a store that
	// is away, [queue.ErrClosed] or the ctx's own error at a shutdown, or an
	// [*outbound.ThrottledError] that is [queue.ErrFull] where the place would be further away than
	// Config.Ahead. With a nil Err the Later is [outbound.ErrThrottled].
	Err error

	full *outbound.ThrottledError // with a nil Err: for those who look for that error
}

// Error implements error.
func (l *Later) Error() string {
	s := "jobs: the job has not run, and is to come back"
	if l.In > 0 {
		s += " in " + l.In.String()
	}
	if l.Err != nil {
		s += ": " + l.Err.Error()
	}
	return s
}

// Is reports that a Later without an Err is [outbound.ErrThrottled].
func (l *Later) Is(target error) bool { return l.Err == nil && target == outbound.ErrThrottled }

// Unwrap returns Err. If that is nil it returns the [*outbound.ThrottledError] of the bucket, or of
// the desk, which knows neither the limit nor a hold.
func (l *Later) Unwrap() error {
	if l.Err == nil && l.full != nil {
		return l.full
	}
	return l.Err
}

// RetryableError is false: come back after In, not at once.
func (l *Later) RetryableError() bool { return false }

// After finds a [*Later] in err. It also makes one of the [*outbound.ThrottledError] of a limiter
// that the job itself has met, such as that of its http.Client; of such a Later the job has begun
// to run.
func After(err error) (*Later, bool) {
	var l *Later
	if errors.As(err, &l) {
		return l, true
	}
	var full *outbound.ThrottledError
	if !errors.As(err, &full) {
		return nil, false
	}
	l = &Later{In: full.RetryAfter, Err: err}
	if l.In <= 0 { // nobody knows the time
		l.In = defaultPoll
	}
	return l, true
}

type ticketKey struct{}

// WithTicket returns a ctx in which a job brings the ticket of an earlier [Later] or [Place]. An
// empty ticket, one that was forged or copied, or one from long ago does no harm: it changes the
// order of jobs, and never how many go.
func WithTicket(ctx context.Context, ticket string) context.Context {
	return context.WithValue(ctx, ticketKey{}, ticket)
}

func ticketFrom(ctx context.Context) string {
	ticket, _ := ctx.Value(ticketKey{}).(string)
	return ticket
}

// later makes a Later of the error of the desk or of the gate, unless it is permanent.
func (l *Scheduler) later(ctx context.Context, err error, s stay) error {
	var full *outbound.ThrottledError
	var away *outbound.StoreError
	switch {
	case errors.As(err, &full) && !s.refused:
		return l.beyond(full)
	case full != nil && full.RetryAfter <= 0: // a limit on calls at once
		return &Later{In: l.config.Poll, Ticket: s.ticket, full: full}
	case full != nil:
		return l.behind(ctx, full, s)
	case errors.As(err, &away):
		// All jobs meet that, and are not to come back together.
		return &Later{In: time.Second + rand.N(4*time.Second), Ticket: s.ticket, Err: err}
	case errors.Is(err, queue.ErrClosed):
		return &Later{In: l.config.Lead, Ticket: s.ticket, Err: err}
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return &Later{Ticket: s.ticket, Err: err}
	}
	return err
}

// behind is later where the gate has no room in time, because it was held, or others have taken
// from it. The gate is then behind the desk, and the desk is held by as much, so that the jobs
// whose places come next are sent away there until it is their turn. A job that is late itself, or
// that is only as far from its turn as a lead, says nothing about the gate.
//
// Nor does a job that waits because a window is full: the gate may be behind by this one job, and the desk
// would lose the room of the next window for it.
//
// A job that has waited in vain loses its turn to those who came after it. After a pause of all workers that happens
// to the same jobs again and again while other jobs come on time. So the desk keeps those away for as long as the job
// has waited.
func (l *Scheduler) behind(ctx context.Context, full *outbound.ThrottledError, s stay) error {
	in := full.RetryAfter
	lag := in - max(0, time.Until(s.due)) - l.config.Lead
	if l.overtaken(&s) {
		lag = max(lag, time.Since(s.came)-l.config.Lead)
	}
	if lag > 0 {
		l.holdDesk(ctx, lag, s.cost)
	}
	return &Later{In: max(l.config.Lead/2, l.turn(ctx, in, &s)-l.config.Lead), Ticket: s.ticket, full: full}
}

// turn returns in how long it is the job's turn, where the gate has no room before in. After a pause of all workers
// many come late together. If they all came back as soon as there is room for some, most would be refused again: so a job
// stands as far behind those who wait now as it was due after them, half of whom have gone in half of the time. Their
// tickets may be old or copied, and so it is told no more than four times as long.
//
// All of a window comes back together, and then there is room for those behind as well.
func (l *Scheduler) turn(ctx context.Context, in time.Duration, s *stay) time.Duration {
	median, ok := l.waiting.median()
	if !ok || l.gate.Len() == 0 { // after a hold they all leave together
		return in
	}
	behind := min(in/2+s.due.Sub(median), mostBehind*in)
	if behind <= in {
		return in
	}
	if window, err := l.reopens(ctx, s.cost); err != nil || window > 0 {
		return in
	}
	return behind
}

const mostBehind = 4

// overtaken reports whether jobs that are on time wait at the gate, and go before one that is later than any job system
// makes a job by itself.
func (l *Scheduler) overtaken(s *stay) bool {
	return time.Since(s.due) > time.Minute && time.Since(l.waiting.latest()) < l.config.Queue.MaxWait
}

// holdDesk holds the desk by how far the gate is behind, but for what a window is the reason of. Without
// it jobs run more often, and that is all.
func (l *Scheduler) holdDesk(ctx context.Context, lag time.Duration, c outbound.Cost) {
	window, err := l.reopens(ctx, c)
	if lag -= window; err == nil && lag > 0 {
		_ = l.desk.Hold(ctx, lag)
	}
}

// reopens returns for how long a call of this cost may wait because a window is full for it and for those at the gate.
func (l *Scheduler) reopens(ctx context.Context, c outbound.Cost) (time.Duration, error) {
	with := float64(1 + l.gate.Len()) // asked first: who gets a place meanwhile counts twice then, and not never
	for i := range c {
		c[i] *= with
	}
	var k outbound.Booking // with no costs it only listens
	if err := l.bucket.Book(ctx, &k); err != nil {
		return 0, err
	}
	return k.Clock.Reopens(&c), nil
}

// beyond is later where the desk books no place so far ahead.
func (l *Scheduler) beyond(full *outbound.ThrottledError) error {
	full.Err = tooFar{}
	return &Later{In: l.again(full.RetryAfter), Err: full}
}

// tooFar is why the desk books no place. It is [queue.ErrFull], and says what is full.
type tooFar struct{}

func (tooFar) Error() string { return "jobs: its place would be further away than Config.Ahead" }

func (tooFar) Is(target error) bool { return target == queue.ErrFull }

// again returns when to ask for a place that could not be booked now because it is in away:
// when half of the places that are booked now have passed, so that as many find one then.
func (l *Scheduler) again(in time.Duration) time.Duration {
	return max(in/2, in-l.config.Ahead/2, l.config.Lead)
}

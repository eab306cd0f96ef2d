package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// Run is when a job runs that [Scheduler.Book] has booked: enqueue it to run at At, with its
// Ticket.
type Run struct {
	// At is when the job should run: a head start before the limits admit it.
	At time.Time
	// Ticket names the reservation: see [WithTicket]. It is empty if the time would be further away
	// than Config.Ahead, or in the next period of a calendar or an [outbound.FixedWindow]. Then the
	// job books a reservation when it runs.
	Ticket string
}

// visit is one run of a job in the Scheduler.
type visit struct {
	ticket string
	cost   outbound.Cost
	run    context.Context // of the Do of the job that calls, or nil
	due    time.Time       // its reservation
	late   time.Duration   // how long after due it came to the queue
}

// reservations returns the bucket in which jobs book. While all jobs are rescheduled, no call
// reaches the job's bucket. So reservations asks the bucket for its limits before the first use and
// once in a poll interval. Where the reservations are held for longer than the job's bucket
// explains, its hold was ended by a Resume, and reservations ends theirs.
func (s *Scheduler) reservations(ctx context.Context) (*outbound.Bucket, error) {
	switch {
	case s == nil:
		return nil, fmt.Errorf("jobs: %w: nil Scheduler", outbound.ErrInvalid)
	case s.err != nil:
		return nil, s.err
	}
	book := s.bucket.Reservations()
	now, last := int64(time.Since(s.made)+1), s.asked.Load()
	if last > 0 && (now-last < int64(s.config.PollInterval) || !s.asked.CompareAndSwap(last, now)) {
		return book, nil
	}
	states, err := book.States(ctx) // first, so that a hold which begins between the two requests is seen
	at := time.Now()
	var k outbound.BookRequest // without costs it only reads the clock
	if err == nil {
		err = s.bucket.Book(ctx, &k)
	}
	if err != nil {
		return nil, err
	}
	s.asked.CompareAndSwap(0, now)
	// No job is refused before it would wait for a MaxWait: by so much a hold may be longer.
	unexplained := states[0].HeldFor - time.Since(at) - k.Clock.Clears() - 2*s.config.HeadStart
	if s.bucket.Reservations() == book && unexplained > s.config.Queue.MaxWait {
		err = book.Resume(ctx)
	}
	return s.bucket.Reservations(), err
}

// find finds the job's reservation, or books one.
func (s *Scheduler) find(ctx context.Context, v *visit) error {
	if v.ticket != "" {
		var k outbound.BookRequest // without costs it only reads the clock
		if err := s.book(ctx, &k); err != nil {
			return err
		}
		if due, ok := k.Clock.DueText(v.ticket); ok {
			v.due = due
			return nil
		}
	}
	return s.reserve(ctx, v)
}

// reserve books a reservation for the job.
func (s *Scheduler) reserve(ctx context.Context, v *visit) error {
	k := outbound.BookRequest{Costs: []outbound.Cost{v.cost}}
	if err := s.book(ctx, &k); err != nil {
		return err
	}
	v.due, v.ticket = k.Clock.Due(k.Tickets[0]), k.Tickets[0].String()
	return nil
}

// book books at least the first of the costs. A cost that the limits cannot hold is booked once
// more, because other limits may be in force since the bucket was asked for them.
func (s *Scheduler) book(ctx context.Context, k *outbound.BookRequest) error {
	book, err := s.reservations(ctx)
	if err == nil {
		k.Wait, k.Horizon = s.config.Ahead, s.config.Ahead
		err = book.Book(ctx, k)
	}
	if _, bad := errors.AsType[*outbound.CostError](err); bad && s.bucket.Shared() {
		s.asked.Store(0)
		if book, err = s.reservations(ctx); err == nil {
			err = book.Book(ctx, k)
		}
	}
	if err == nil && len(k.Costs) > 0 && len(k.Tickets) == 0 {
		err = &outbound.StoreError{Op: "book", Key: s.bucket.Key(), Err: errors.New("the store has neither booked nor refused")}
	}
	return err
}

// mostBooked is how many reservations one request books.
const mostBooked = 4096

// Book books a reservation for each of costs, in this order, for jobs that are about to be
// enqueued. It makes one request for 4,096 of them. After an error it gives all reservations back;
// they stay unused if the store does not take them within a second. The error is an
// [*outbound.CostError] of a cost above a limit's capacity, or that of the store or of ctx. Then
// jobs can be enqueued without a reservation.
func (s *Scheduler) Book(ctx context.Context, costs ...outbound.Cost) ([]Run, error) {
	all := make([]Run, 0, len(costs))
	var booked []outbound.Ticket // to return
	var k outbound.BookRequest
	for len(all) < len(costs) {
		left := costs[len(all):]
		k.Costs = left[:min(len(left), mostBooked)]
		err := s.book(ctx, &k)
		if full := (*outbound.ThrottledError)(nil); errors.As(err, &full) {
			for range left {
				all = append(all, Run{At: time.Now().Add(s.again(full.RetryAfter))})
			}
			return all, nil
		}
		if err != nil {
			s.giveBack(ctx, booked)
			return nil, err
		}
		for _, t := range k.Tickets {
			all = append(all, Run{At: k.Clock.Due(t).Add(-s.config.HeadStart), Ticket: t.String()})
		}
		booked = append(booked, k.Tickets...)
	}
	return all, nil
}

// giveBack gives reservations back, the latest first, because one can only be undone when those
// booked after it have been. It goes on after the end of ctx, but not for long.
func (s *Scheduler) giveBack(ctx context.Context, booked []outbound.Ticket) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	for n := len(booked); n > 0; n -= mostBooked {
		if s.bucket.Reservations().Book(ctx, &outbound.BookRequest{Unused: booked[max(0, n-mostBooked):n]}) != nil {
			return
		}
	}
}

// behind reschedules a job for which the queue has no capacity in time, because the bucket is held
// or other calls have taken from it. The queue is then behind the reservations. They are held by as
// much, so that the jobs with the next reservations run later, too. Without that hold jobs run more
// often, and that is all. A full window is no reason for it: the queue may be behind by this one
// job, and the next window is for those behind it.
//
// A job that came later than any job system hands one out has lost its reservation, and books
// again.
func (s *Scheduler) behind(ctx context.Context, full *outbound.ThrottledError, v *visit) error {
	in := full.RetryAfter
	var k outbound.BookRequest // without costs it only reads the clock
	if s.bucket.Book(ctx, &k) == nil {
		s.hold(ctx, in-max(0, time.Until(v.due))-k.Clock.Reopens(&v.cost), k.Clock.Speed())
	}
	if v.late > s.config.PollInterval+2*s.config.HeadStart {
		if err := s.reserve(ctx, v); err != nil {
			return s.later(err, v)
		}
		in = time.Until(v.due)
	}
	return &Later{In: max(s.config.HeadStart/2, in-s.config.HeadStart), Ticket: v.ticket, full: full}
}

// hold moves the reservations by d, if that is more than a head start. It slows them down if the
// bucket has slowed down, so that their times stay true. It reports a refusal, as the bucket has
// had one. If another process has reported one since this call was admitted, that has no effect.
func (s *Scheduler) hold(ctx context.Context, d time.Duration, speed float64) {
	book, k := s.bucket.Reservations(), outbound.BookRequest{}
	free := outbound.Cost{outbound.Free, outbound.Free, outbound.Free, outbound.Free}
	p, err := book.Acquire(ctx, free) // it fails while they are held
	p.Done()
	switch {
	case err == nil && book.Book(ctx, &k) == nil && speed < 0.95*k.Clock.Speed():
		p.Refused(max(d, time.Millisecond))
	case d > s.config.HeadStart:
		_ = book.Delay(ctx, d)
	}
}

// tooFar is why no reservation is booked so far ahead. It is queue.ErrFull, and says what is full.
type tooFar struct{}

func (tooFar) Error() string { return "jobs: no reservation within Config.Ahead" }

func (tooFar) Is(target error) bool { return target == queue.ErrFull }

// Booker books reservations: a [*Scheduler], or that of a tenant.
type Booker interface {
	// Book is [Scheduler.Book].
	Book(ctx context.Context, costs ...outbound.Cost) ([]Run, error)
}

// Of finds the Booker in a limiter: l itself, or one that l wraps, as [outbound.As] does.
//
// In what [outbound.Keyed.For] returns it finds the Scheduler that the key has when Book is called,
// and Book makes it if there is none. Its error is [outbound.ErrFull] if the Keyed is full, even
// with an Overflow, and [outbound.ErrInvalid] if the key's limiter is not a Scheduler. Then jobs
// can be enqueued without a reservation. The Bookers of one key are equal.
func Of(l outbound.Limiter) (b Booker, ok bool) {
	if b, ok = outbound.As[Booker](l); ok {
		return b, true
	}
	if key, isKey := outbound.As[user](l); isKey {
		return ofKey{key}, true
	}
	return nil, false
}

// user is a handle of a Keyed, which may drop the key's limiter and make another during the
// handle's use.
type user interface {
	Use(f func(outbound.Limiter) error) error
}

// ofKey is the Booker of a key of a Keyed.
type ofKey struct{ user }

func (k ofKey) Book(ctx context.Context, costs ...outbound.Cost) (all []Run, err error) {
	err = k.Use(func(l outbound.Limiter) error {
		own, ok := Of(l)
		if !ok {
			return fmt.Errorf("jobs: a %T books no reservations: %w", l, outbound.ErrInvalid)
		}
		all, err = own.Book(ctx, costs...)
		return err
	})
	return all, err
}

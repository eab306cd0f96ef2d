package outbound

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/core"
)

// Observe returns a Limiter that works as l does and reports the events of its calls to f, under a
// name of your choice. If f is nil, it returns l itself. An admitted call costs an allocation for
// its permit, the time of f, and a reading of the clock at its end. It costs two more readings
// unless l is a bucket that decides immediately.
//
// f is called where the event happens, by many goroutines at the same time, and must not block. Its
// ctx is that of Acquire, without cancellation after the call's admission. If f panics, the panic
// goes on, and an admitted call returns its cost first. A nil l is [ErrInvalid] at Acquire.
//
// [Bucket.Observe] reports what happens to a bucket.
//
// Put it around a queue, and not into one: a queue books its bucket directly.
//
// The result has a method Idle, for a [Keyed], which is false if l has none. [As] finds l in it.
func Observe(l Limiter, name string, f func(context.Context, Event)) Limiter {
	if f == nil {
		return l
	}
	o := &observer{limiter: l, name: name, report: f}
	o.bucket, _ = l.(*Bucket)
	return o
}

// idler is a Limiter that knows whether forgetting it would lose anything.
type idler interface{ Idle() bool }

type observer struct {
	limiter Limiter
	bucket  *Bucket // if the limiter is one
	name    string
	report  func(context.Context, Event)
}

// Unwrap returns the limiter that is observed.
func (o *observer) Unwrap() Limiter { return o.limiter }

// Idle reports whether forgetting the limiter would lose nothing.
func (o *observer) Idle() bool {
	i, ok := o.limiter.(idler)
	return ok && i.Idle()
}

func (o *observer) Acquire(ctx context.Context, c Cost) (Permit, error) {
	e := Event{Name: o.name, Cost: c}
	if o.limiter == nil {
		e.Kind, e.Err = EventFailed, fmt.Errorf("%w: nil Limiter of Observe", ErrInvalid)
		o.report(ctx, e)
		return Permit{}, e.Err
	}
	p, admitted, wait, err := o.acquire(ctx, c)
	reported := false
	defer func() {
		if !reported && err == nil { // f has panicked: the call is never sent
			p.Settle(Cost{})
			p.Done()
		}
	}()
	e.Wait, e.Err = wait, err
	switch {
	case err == nil:
		e.Kind = EventAdmitted
	case errors.Is(err, ErrThrottled):
		e.Kind = EventRefused
		if full := (*ThrottledError)(nil); errors.As(err, &full) {
			e.Limit = full.Limit
		}
	default:
		e.Kind = EventFailed
	}
	o.report(ctx, e)
	reported = true
	if err != nil {
		return Permit{}, err
	}
	return NewPermit(&observed{observer: o, after: endless{ctx}, cost: c, admitted: admitted, guarded: guarded{permit: p}}), nil
}

// acquire is Acquire of the limiter. It also returns when that has returned, and how long it took.
// An immediate decision of a bucket takes no time, and the permit has its time, so that the clock
// need not be read again.
func (o *observer) acquire(ctx context.Context, c Cost) (p Permit, at, wait time.Duration, err error) {
	begin := time.Duration(0)
	if o.bucket != nil {
		var decided bool
		if decided, err = o.bucket.decide(ctx, &c, &p); decided {
			return p, time.Duration(p.in.Fill.At), 0, err
		}
		begin = now()
		err = o.bucket.acquire(ctx, &c, &p)
	} else {
		begin = now()
		p, err = o.limiter.Acquire(ctx, c)
	}
	at = now()
	return p, at, at - begin, err
}

// observed is the permit of an observed call.
type observed struct {
	observer *observer
	after    endless // the ctx of Acquire
	cost     Cost
	admitted time.Duration

	guarded // a Done may come during a late answer
	flags   uint8
}

// endless is a context that does not end, as that of context.WithoutCancel. It is a part of the
// permit, so that reporting an event allocates nothing.
type endless struct{ context.Context }

func (endless) Deadline() (t time.Time, ok bool) { return }
func (endless) Done() <-chan struct{}            { return nil }
func (endless) Err() error                       { return nil }

// once carries a report on, if none of these flags is set, and sets one.
// It reports whether it did.
func (o *observed) once(unless, set uint8, report func(*Permit)) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.flags&unless != 0 {
		return false
	}
	o.flags |= set
	report(&o.permit)
	return true
}

func (o *observed) report(e Event) {
	e.Name, e.Cost = o.observer.name, o.cost
	o.observer.report(&o.after, e)
}

func (o *observed) Settle(used Cost) {
	if !used.real() {
		o.report(Event{Kind: EventSettled, Used: used, Err: ErrInvalid})
		return
	}
	set := core.Settled
	if used == (Cost{}) {
		set |= core.Failed
	}
	if o.once(core.Settled, set, func(p *Permit) { p.Settle(used) }) {
		o.report(Event{Kind: EventSettled, Used: used})
	}
}

// Answered reports no AnswerRemaining: the bucket reports whether that holds it.
func (o *observed) Answered(a Answer) {
	e := Event{Kind: EventHeld, Hold: max(0, a.Wait), Reason: a.Reason, Rejected: a.Kind == AnswerRefused}
	set := uint8(0)
	if a.fails() {
		set = core.Failed
	}
	o.once(0, set, func(p *Permit) { p.Answered(a) })
	switch a.Kind {
	case AnswerRefused, AnswerHold:
		if a.Wait < 0 || a.Wait == 0 && a.Kind == AnswerHold {
			e.Err = ErrInvalid // of the duration; a refusal counts all the same
		}
	case AnswerQuota:
		budget := a.Budget // on the heap, and only here
		e = Event{Kind: EventQuota, Budget: &budget}
	default:
		return
	}
	o.report(e)
}

func (o *observed) pending() bool { return true } // Done reports the end

func (o *observed) Done() {
	succeeded := false
	if o.once(core.Done, core.Done, func(p *Permit) {
		p.Done()
		succeeded = o.flags&core.Failed == 0
	}) {
		o.report(Event{Kind: EventEnded, Took: now() - o.admitted, Succeeded: succeeded})
	}
}

package key

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Step is one operation on a key. What it takes of each limit follows from the limits in force.
type Step struct {
	store.Op // without what follows from the limits in force
	Told     []reports.Report
	Calls    []reports.Numbers // the costs of the calls to book
	Back     []Booking         // that no call will use
	Set      []store.Limit     // what Replace puts in force; none: what the key was made with
	Waits    bool              // the caller waits: settles ride along
	InFlight InFlight          // the slots next to the key, or nil
	With     any               // what Replace puts in force, too
}

// Booking is a booked call, with the limits that it was booked by.
type Booking struct {
	*store.Charge
	By   []store.Limit
	Cost reports.Numbers
}

// InFlight is the number of slots, which package store leaves out of a key's limits. It changes
// together with them. While there is one, the state is never in the word. The methods may be
// called with the key locked.
type InFlight interface {
	Replace(limit any)
	Now() (limit any) // or nil
}

// Reply is the result of a step.
type Reply struct {
	store.Reply
	Force    *Force // the limits that it counts by
	InFlight any    // the limit of the slots, or nil
}

// Decided returns the limits that have decided, and the state by them: those in force, or a share
// of them.
func (r *Reply) Decided() (*Limits, *store.State) {
	set := &r.Force.Limits
	if len(r.Share) == 0 || len(r.Share) != len(set.Law) {
		return set, &r.State
	}
	s := r.State
	for i := range set.Law {
		others := max(0, set.Law[i].Capacity-r.Share[i].Capacity)
		s.Level[i] = max(0, s.Level[i]-others)
	}
	return &Limits{Law: r.Share, Calendar: set.Calendar, parts: set.parts, first: set.first}, &s
}

// trip is a step as a store gets it, with memory for what that points to.
type trip struct {
	op      store.Op
	reports []store.Report
	costs   []store.Units
	back    []store.Charge
}

var trips = sync.Pool{New: func() any { return new(trip) }}

// done frees the memory for another step.
func (t *trip) done() {
	clear(t.reports[:cap(t.reports)])
	*t = trip{reports: t.reports[:0], costs: t.costs[:0], back: t.back[:0]}
	trips.Put(t)
}

// resolve writes down what the step takes of the limits in force, up to the first cost above a
// capacity, and what it says of the process.
func (k *Key) resolve(t *trip, s *Step, f *Force) {
	t.reports, t.costs, t.back = t.reports[:0], t.costs[:0], t.back[:0]
	for i := range s.Told {
		r := &s.Told[i]
		t.reports = append(t.reports, r.Report)
		to := &t.reports[i]
		if r.Charge != nil {
			to.Charge = f.align(r.Charge, r.By, &r.Cost)
		}
		switch r.Kind {
		case store.Settled:
			to.Used = f.Units(&r.Used)
		case store.Remaining:
			for j := range f.Law {
				to.Used[j] = r.Used[f.Law[j].Unit]
			}
		}
	}
	for i := range s.Calls {
		if s.Action == store.Book {
			if bad, _ := f.Misfit(&s.Calls[i], s.Headroom); bad != nil {
				break
			}
		}
		t.costs = append(t.costs, f.Units(&s.Calls[i]))
	}
	for i := range s.Back {
		b := &s.Back[i]
		t.back = append(t.back, *f.align(b.Charge, b.By, &b.Cost))
	}
	t.op = s.Op
	op := &t.op
	op.Limits, op.Number, op.Reports, op.Costs, op.Unused = f.Law, f.number, t.reports, t.costs, t.back
	op.Slots = s.Slots && f.parts
	op.Base, op.Age = k.base, Now()
	if f.Calendar != nil {
		unix := calendar.Stamp(time.Now()) + time.Duration(k.ahead.Load())
		op.Periods = f.Calendar.At(unix - store.Slack) // so that a key may be behind
	}
	if s.Action == store.Replace {
		if op.Replacement, op.Own = s.Set, len(s.Set) == 0; op.Own {
			op.Replacement = k.made.Law
		}
	}
}

// settled marks the charges of the reports as settled. The reply does not say how much the key has
// returned.
func (s *Step) settled() {
	for i := range s.Told {
		if r := &s.Told[i]; r.Kind == store.Settled && !r.Charge.Settled && r.By != nil {
			if n := unitsOf(r.By, &r.Used); n != r.Charge.N {
				r.Charge.N, r.Charge.Settled = n, true
			}
		}
	}
}

// mostTries is how often a step is tried on a key in a store that does nothing, because of other
// limits or other periods of the calendar. A try in this process takes a microsecond.
const mostTries, mostTriesHere = 8, 1000

var (
	// ErrSilent is a reply without a booking and a refusal.
	ErrSilent = errors.New("the store has neither booked nor refused")
	// ErrLimits is a reply with limits that no key can have.
	ErrLimits = errors.New("the limits in force do not fit together")

	errStale    = errors.New("the limits change faster than this process can follow")
	errUnsound  = errors.New("the store's reply does not fit to the request")
	errUntimely = errors.New("the store's clock is in no calendar period of the step: check that clock")
)

// Do carries a step out, with the reports that are kept, and follows the limits in force.
func (k *Key) Do(ctx context.Context, s *Step, r *Reply) error {
	// Settles ride on operations that end by themselves: a ctx or a refusal cannot end them.
	settles := k.store == nil || s.Waits || ctx.Done() == nil && s.Action < store.Resume
	riding, reported := k.Reports.Ride(settles)
	if len(riding) > 0 {
		s.Told = append(riding, s.Told...)
	}
	t := trips.Get().(*trip)
	err := k.try(ctx, s, t, r)
	t.done()
	if err != nil {
		r.Reply = store.Reply{}
		k.Reports.Failed(s.Told, reported)
		return err
	}
	if k.store != nil {
		k.Reports.Confirm(&r.State)
	}
	s.settled()
	if s.Action == store.Replace || s.Action == store.Resume || len(s.Told) > 0 {
		k.Reports.Changed()
	}
	return nil
}

// try carries a step out, and again after a reply that brings other limits.
func (k *Key) try(ctx context.Context, s *Step, t *trip, r *Reply) (err error) {
	for tries := 0; ; tries++ {
		f := k.force.Load()
		r.Force = f
		k.resolve(t, s, f)
		if err = k.carry(ctx, s, &t.op, r); err == nil {
			r.Force, err = k.follow(ctx, f, &t.op, &r.Reply)
		}
		undone := r.Stale || r.Untimely
		outdated := err == nil && !undone && s.outdated(f, r)
		if err == nil && !undone && (r.State.Speed == 0 || len(t.op.Costs) > 0 && t.op.Move == nil && len(r.Charges) == 0 && !r.Refused && s.Action == store.Book) {
			err = ErrSilent
		}
		if outdated || r.Reported && (err != nil || undone) { // they are not to be sent again
			s.settled()
			s.Told, s.Back = nil, nil
			k.Reports.Changed()
		}
		switch {
		case err != nil || !undone && !outdated:
			return err
		case tries < mostTries || tries < mostTriesHere && k.store == nil:
		case r.Untimely:
			return errUntimely
		default:
			return errStale
		}
	}
}

// outdated reports whether a step by the limits of f has to be made again by those in force. They
// may hold a cost that was left out, or that the old ones have rounded.
func (s *Step) outdated(f *Force, r *Reply) bool {
	if r.Force == f || s.Action > store.Book || len(r.Charges) > 0 || len(s.Calls) == 0 {
		return false
	}
	return !store.Equal(r.Force.Law, f.Law)
}

// follow returns the limits that a reply counts by, to a step that counted by f. If it brings
// limits, the key adopts them, or replaces them by those that it was made with: see
// [store.Op.Yields].
func (k *Key) follow(ctx context.Context, f *Force, op *store.Op, r *store.Reply) (*Force, error) {
	is, err := f.learn(r, &k.made, k.store != nil)
	if err == nil && k.store != nil && r.State.Speed != 0 && !op.Sound(r) {
		err = errUnsound
	}
	if err != nil || is == f {
		return is, err
	}
	next := is
	if len(r.Limits) > 0 && !op.Yields(r, k.made.Law) {
		own := store.Op{Limits: r.Limits, Number: r.Number, Base: op.Base, Age: Now(), Action: store.Replace, Replacement: k.made.Law, Own: true}
		var replaced Reply
		switch err := k.carry(ctx, new(Step), &own, &replaced); {
		case err != nil && r.Stale:
			return is, err
		case err != nil || replaced.Stale: // the next step tries again
			return is, nil
		}
		next = &Force{Limits: k.made, number: replaced.Number, born: replaced.State.Born}
	}
	k.force.CompareAndSwap(f, next) // unless another operation has learned of newer ones
	return is, nil
}

package core

import (
	"context"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/internal/slots"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Step is one operation on a bucket: on its key, and on the slots of calls in flight.
type Step struct {
	key.Step
	InJob bool // Calls are further requests of jobs, which need no slots

	freed int // slots that Back frees
}

// Reply is the result of a step.
type Reply struct {
	key.Reply
	slots.Seated
	Flight *slots.Limit // the limit on calls in flight, or nil

	unseated []store.Charge // behind Charges, and without a slot
}

// slots returns the step as the slots of calls in flight see it.
func (s *Step) slots() slots.Request {
	return slots.Request{
		Calls: len(s.Calls), Seats: s.Action == store.Book && !s.InJob && s.Move == nil,
		Freed: s.freed, Headroom: s.Headroom, Waits: s.Waits,
	}
}

// seat takes the calls without a slot from what was booked.
func (r *Reply) seat() {
	if n := len(r.Charges) - r.Short; r.Short > 0 {
		r.unseated, r.Charges = slices.Clone(r.Charges[n:]), r.Charges[:n]
		r.Wait = 0
	}
	if r.NoSlot {
		r.Refused, r.Limit = true, -1
	}
}

// Refusal is a call over the limit: it could leave after Wait.
type Refusal struct {
	Wait, Held time.Duration // Held is the rest of a hold
	Why        uint8         // of the hold
	Limit      int           // of Force, or -1 if the call waits for none of them alone
	Force      *key.Force
	NoSlot     bool // all slots of calls in flight are taken
}

func (*Refusal) Error() string { return "over the limit" }

// Misfit is a call that the limits can never admit.
type Misfit struct {
	Cost     reports.Numbers
	Limit    *store.Limit
	Headroom float64 // units of it that the call has to keep free
	Lacks    bool    // the cost lacks the number that the limit counts
}

func (*Misfit) Error() string { return "not a cost of these limits" }

// Fits returns why limits can never admit a call of this cost, which keeps a fraction of each limit
// free, or nil.
func Fits(set *key.Limits, c *reports.Numbers, headroom float64) *Misfit {
	bad, lacks := set.Misfit(c, headroom)
	switch {
	case bad == nil:
		return nil
	case lacks:
		return &Misfit{Cost: *c, Limit: bad, Lacks: true}
	}
	return &Misfit{Cost: *c, Limit: bad, Headroom: bad.Headroom(headroom)}
}

// book carries a step out that books calls. If the first of them was not booked, the error is a
// [*Refusal], a [*Misfit], the ctx's own, or a [*Failure].
func (b *Core) book(ctx context.Context, s *Step, r *Reply) error {
	if h := b.Slots().Holder(); h != nil && len(s.Calls) > 0 && !s.InJob && s.Move == nil {
		bad := Fits(&b.InForce().Limits, &s.Calls[0], s.Headroom)
		if bad != nil && len(s.Back) == 0 { // other limits may be in force
			if err := b.Do(ctx, "look", &Step{}, new(Reply)); err != nil {
				return err
			}
			if bad = Fits(&b.InForce().Limits, &s.Calls[0], s.Headroom); bad != nil {
				return bad
			}
		}
		if bad == nil {
			book := s.slots()
			again, err := h.Wait(ctx, &book)
			if err != nil {
				return err
			} else if again > 0 {
				return &Refusal{Wait: again, Limit: -1, NoSlot: true}
			}
		}
	}
	if err := b.Do(ctx, s.Action.String(), s, r); err != nil || len(r.Charges) > 0 || len(s.Calls) == 0 {
		return err
	}
	if bad := Fits(&r.Force.Limits, &s.Calls[0], s.Headroom); bad != nil {
		return bad
	} else if !r.Refused && s.Move == nil {
		return failed(s.Action.String(), key.ErrSilent)
	} else if !r.Refused {
		return nil
	}
	return &Refusal{Wait: r.Wait, Held: r.State.Rem, Why: r.State.Why, Limit: r.Limit, Force: r.Force, NoSlot: r.NoSlot}
}

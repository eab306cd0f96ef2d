package outbound

import (
	"slices"

	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/slots"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// step is one operation on a bucket: on its key, and on the slots of calls in flight.
type step struct {
	key.Step
	freed int  // slots that Back frees
	inJob bool // Calls are further requests of jobs, which need no slots
}

// reply is the result of a step.
type reply struct {
	key.Reply
	slots.Seated
	inFlight *slots.Limit   // the limit on calls in flight, or nil
	unseated []store.Charge // behind Charges, and without a slot
}

// slots returns the step as the slots of calls in flight see it.
func (s *step) slots() slots.Request {
	return slots.Request{
		Calls: len(s.Calls), Seats: s.Action == store.Book && !s.inJob && s.Move == nil,
		Freed: s.freed, Headroom: s.Headroom, Waits: s.Waits,
	}
}

// seat takes the calls without a slot from what was booked.
func (r *reply) seat() {
	if n := len(r.Charges) - r.Short; r.Short > 0 {
		r.unseated, r.Charges = slices.Clone(r.Charges[n:]), r.Charges[:n]
		r.Wait = 0
	}
	if r.NoSlot {
		r.Refused, r.Limit = true, -1
	}
}

package outbound

import (
	"math"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/clock"
	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/internal/slots"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// call is the permit of a call that was not charged to a word.
type call struct {
	core  *core
	slot  *slots.Slot // of the call in flight, or nil
	mu    sync.Mutex  // held during the request of a late answer, which notifies queues
	flags uint8       // mu protects it and charge, against a Done during a late answer
	uses  uint32      // how often the object has been a call, or 0 if it is one call only; mu protects it

	// What State returns, in as few bytes as can be.
	nearest                  int8 // the index of the limit, or -1 for the limit on calls in flight
	why                      uint8
	speed                    int32      // in billionths; 0 if the state is unknown
	force                    *key.Force // by which the call was booked
	level                    float64
	emptyIn, nextIn, heldFor time.Duration // emptyIn may be unasked

	admitted time.Duration      // since start
	cost     [1]reports.Numbers // as acquired; one each, for an Op to point to
	charge   [1]store.Charge
	order    uint64        // among the tickets of one BookRequest
	sure     time.Duration // a change of limits leaves earlier reservations
}

// unasked is the emptyIn of a call whose level says the times, which State computes.
const unasked = -1

// note keeps the state of the limit nearest its capacity, from the reply that admits the call.
func (k *call) note(r *reply) {
	set, s := r.Decided()
	k.noteState(r.Force, &r.State, r.inFlight, r.Used, set, s)
}

// noteState is note by a state, and by the limits that have decided with their state.
func (k *call) noteState(f *key.Force, whole *store.State, a *slots.Limit, used int, set *key.Limits, s *store.State) {
	capacity := 1.0
	if k.force, k.nearest, k.level = f, -1, -1; a != nil {
		k.level, capacity = float64(used), float64(a.Most)
	}
	law := f.Counts()
	for i := range law {
		if level := whole.Level[i]; level*capacity > k.level*law[i].Capacity {
			k.nearest, k.level, capacity = int8(i), level, law[i].Capacity
		}
	}
	switch {
	case k.nearest < 0:
	case law[k.nearest].Kind == store.Leaky && whole.Speed == 1 && set == &f.Limits && f.Calendar == nil: // else the time of day counts
		k.emptyIn = unasked
	default:
		k.emptyIn, k.nextIn = clock.ComeBack(set, s, int(k.nearest))
	}
	k.speed = int32(math.Round(whole.Speed * 1e9))
	if k.heldFor = max(0, whole.Rem); k.heldFor > 0 {
		k.why = whole.Why
	}
}

// is locks the call, if it is still the one of a permit: an object that has been a call can be
// another one later. The exported methods are for an object that is one call only.
func (k *call) is(uses uint32) bool {
	k.mu.Lock()
	if k.uses != uses {
		k.mu.Unlock()
		return false
	}
	return true
}

func (k *call) State() State      { return k.state(0) }
func (k *call) Settle(used Cost)  { k.settle(0, used) }
func (k *call) Answered(a Answer) { k.answered(0, a) }
func (k *call) Done()             { k.done(0) }

// state returns the state of the nearest limit when the call was charged.
func (k *call) state(uses uint32) State {
	if !k.is(uses) {
		return State{}
	}
	defer k.mu.Unlock()
	if k.speed == 0 { // it is unknown
		return State{}
	}
	if k.emptyIn == unasked {
		was := store.State{Speed: 1, Rem: k.heldFor}
		was.Level[k.nearest] = k.level
		k.emptyIn, k.nextIn = clock.ComeBack(&k.force.Limits, &was, int(k.nearest))
	}
	s := State{Level: max(0, k.level), EmptyIn: k.emptyIn, NextIn: k.nextIn, HeldFor: k.heldFor, Reason: reasonOf(k.why), Speed: float64(k.speed) / 1e9}
	if k.nearest >= 0 {
		s.Limit = limitOf(spec.OfLaw(&k.force.Law[k.nearest]))
	} else if f := k.core.slots().InForce(); f != nil {
		s.Limit = limitOf(spec.OfSlots(f))
	}
	s.Remaining = max(0, s.Limit.Capacity-s.Level)
	return s
}

func (k *call) bucket() *core { return k.core }

// by returns the limits that the call was booked by.
func (k *call) by() []store.Limit {
	if k.force == nil {
		return nil
	}
	return k.force.Law
}

// booking returns what the call has booked, for a step that returns it.
func (k *call) booking() key.Booking {
	return key.Booking{Charge: &k.charge[0], By: k.by(), Cost: k.cost[0]}
}

// takeSlot notes the slot that the booking has taken, if it has.
func (k *call) takeSlot(r *reply) {
	if r.Seats {
		k.slot = k.core.slots().Take()
		slots.Watch(k, k.slot)
	}
}

// once sets flags and reports whether none of them had been set before, and
// there is a call at all.
func (k *call) once(flags uint8) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flags&(flags|flagVoid) != 0 {
		return false
	}
	k.flags |= flags
	return true
}

// settle reports whether the object is still the same call.
func (k *call) settle(uses uint32, used Cost) bool {
	if !k.is(uses) {
		return false
	}
	defer k.mu.Unlock()
	if !used.real() || k.flags&(flagSettled|flagVoid) != 0 {
		return true
	}
	k.flags |= flagSettled
	if used == Cost(k.cost[0]) {
		return true
	}
	if used == (Cost{}) {
		k.flags |= flagFailed
	}
	k.core.settle(reports.Report{Report: store.Report{Kind: store.Settled, Charge: &k.charge[0]}, By: k.by(), Used: used, Cost: k.cost[0]})
	return true
}

// answered reports whether the object is still the same call.
func (k *call) answered(uses uint32, a Answer) bool {
	if !k.is(uses) {
		return false
	}
	defer k.mu.Unlock()
	if k.flags&flagVoid != 0 {
		return true
	}
	if a.fails() {
		k.flags |= flagFailed
	}
	if a.Kind == AnswerRefused || a.Kind == AnswerHold && a.Reason == "concurrency" {
		k.core.slots().Adapt(k.admitted, true)
	}
	switch {
	case !k.core.concerns(&a, now()-k.admitted):
	case a.Kind == AnswerSent:
		k.sentLate(a.Wait)
	default:
		k.core.report(a.report(&k.charge[0], k.by()))
	}
	return true
}

// sentLate settles the call to nothing, and an unknown charge to its cost: that counts from now on.
// One request does both, or another call could have the units between.
func (k *call) sentLate(by time.Duration) {
	o, was := &k.core.slowPath().Reports, k.charge[0]
	if k.flags&flagSettled != 0 || was.Born == never || !o.Late(now(), by) {
		return
	}
	late := store.Charge{Born: never, Epoch: was.Epoch, Number: was.Number}
	k.charge[0] = late
	k.charge[0].N = was.N // a Settle adds what it cost beyond that
	k.core.settle(
		reports.Report{Report: store.Report{Kind: store.Settled, Charge: &was}, By: k.by(), Cost: k.cost[0]},
		reports.Report{Report: store.Report{Kind: store.Settled, Charge: &late}, By: k.by(), Used: k.cost[0]})
	o.SentLate() // after the reports: what is booked before they arrive is too early
}

func (k *call) done(uses uint32) {
	if !k.is(uses) {
		return
	}
	was := k.flags
	k.flags |= flagDone
	k.mu.Unlock()
	if was&flagDone != 0 {
		return
	}
	if was&flagFailed == 0 {
		k.core.slots().Adapt(k.admitted, false)
		k.core.succeeded(k.charge[0].Epoch)
	}
	if k.leave(); uses != 0 && (was&flagSettled != 0 || k.plain()) {
		retire(k)
	}
}

// plain reports whether the call costs one unit: of that which a bucket's first limit counts.
func (k *call) plain() bool {
	counts := k.core.word.Unit()
	for unit, n := range k.cost[0] {
		if n > 0 && (unit != counts || n != 1) {
			return false
		}
	}
	return k.cost[0][counts] == 1
}

func (k *call) pending() bool { return k.slot != nil && !k.slot.Ended() }

// leave ends the call in flight.
func (k *call) leave() {
	if k.slot.Drop() > 0 {
		k.core.slots().Free(1)
		k.core.slowPath().Reports.Changed()
	}
}

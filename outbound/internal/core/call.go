package core

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

// Call is an admitted call, or one that is booked, which was not charged to a word.
type Call struct {
	core  *Core
	slot  *slots.Slot // of the call in flight, or nil
	mu    sync.Mutex  // held during the request of a late answer, which notifies queues
	flags uint8       // mu protects it and charge, against a Done during a late answer
	uses  uint32      // how often the object has been a call, or 0 if it is one call only; mu protects it

	// What state returns, in as few bytes as can be.
	nearest                  int8 // the index of the limit, or -1 for the limit on calls in flight
	why                      uint8
	speed                    int32      // in billionths; 0 if the state is unknown
	force                    *key.Force // of the booking
	level                    float64
	emptyIn, nextIn, heldFor time.Duration // emptyIn may be unasked

	admitted time.Duration      // since the start of the process
	cost     [1]reports.Numbers // as acquired; one each, for an Op to point to
	charge   [1]store.Charge
	order    uint64        // among the calls of one caller of Book
	sure     time.Duration // a change of limits leaves earlier reservations
}

// The flags of a call, and of a permit, which has its own from Own on.
const (
	Settled uint8 = 1 << iota
	Failed        // the call has not succeeded
	Done
	Known // a call has succeeded before this one
	void  // the booking was returned: there is no call
	Own
)

// unasked is the emptyIn of a call whose level says the times, which state computes.
const unasked = -1

// Cost returns what the call was booked for.
func (k *Call) Cost() reports.Numbers { return k.cost[0] }

// note keeps the state of the limit nearest its capacity, from the reply that admits the call.
func (k *Call) note(r *Reply) {
	set, s := r.Decided()
	k.noteState(r.Force, &r.State, r.Flight, r.Used, set, s)
}

// noteState is note by a state, and by the limits that have decided with their state.
func (k *Call) noteState(f *key.Force, whole *store.State, a *slots.Limit, used int, set *key.Limits, s *store.State) {
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
// another one later.
func (k *Call) is(uses uint32) bool {
	k.mu.Lock()
	if k.uses != uses {
		k.mu.Unlock()
		return false
	}
	return true
}

// state reports false if the object is another call, or the state is unknown.
func (k *Call) state(uses uint32) (n Nearest, ok bool) {
	if !k.is(uses) {
		return n, false
	}
	defer k.mu.Unlock()
	if k.speed == 0 {
		return n, false
	}
	if k.emptyIn == unasked {
		was := store.State{Speed: 1, Rem: k.heldFor}
		was.Level[k.nearest] = k.level
		k.emptyIn, k.nextIn = clock.ComeBack(&k.force.Limits, &was, int(k.nearest))
	}
	n = Nearest{Level: max(0, k.level), Speed: float64(k.speed) / 1e9, EmptyIn: k.emptyIn, NextIn: k.nextIn, HeldFor: k.heldFor, Why: k.why}
	if k.nearest >= 0 {
		n.Limit = spec.OfLaw(&k.force.Law[k.nearest])
	} else if f := k.core.Slots().InForce(); f != nil {
		n.Limit = spec.OfSlots(f)
	}
	return n, true
}

// by returns the limits that the call was booked by.
func (k *Call) by() []store.Limit {
	if k.force == nil {
		return nil
	}
	return k.force.Law
}

// booking returns what the call has booked, for a step that returns it.
func (k *Call) booking() key.Booking {
	return key.Booking{Charge: &k.charge[0], By: k.by(), Cost: k.cost[0]}
}

// takeSlot notes the slot that the booking has taken, if it has.
func (k *Call) takeSlot(r *Reply) {
	if r.Seats {
		k.slot = k.core.Slots().Take()
		slots.Watch(k, k.slot)
	}
}

// once sets flags and reports whether none of them had been set before, and
// there is a call at all.
func (k *Call) once(flags uint8) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flags&(flags|void) != 0 {
		return false
	}
	k.flags |= flags
	return true
}

// settle sets what the call has really cost, and reports whether the object is still the same call.
func (k *Call) settle(uses uint32, used *reports.Numbers) bool {
	if !k.is(uses) {
		return false
	}
	defer k.mu.Unlock()
	if k.flags&(Settled|void) != 0 {
		return true
	}
	k.flags |= Settled
	if *used == k.cost[0] {
		return true
	}
	if *used == (reports.Numbers{}) {
		k.flags |= Failed
	}
	k.core.settle(reports.Report{Report: store.Report{Kind: store.Settled, Charge: &k.charge[0]}, By: k.by(), Used: *used, Cost: k.cost[0]})
	return true
}

// answered reports what the API has replied. It returns whether the object is still the same call.
func (k *Call) answered(uses uint32, a *Answer) bool {
	if !k.is(uses) {
		return false
	}
	defer k.mu.Unlock()
	if k.flags&void != 0 {
		return true
	}
	if a.Fails {
		k.flags |= Failed
	}
	if a.Crowded {
		k.core.Slots().Adapt(k.admitted, true)
	}
	switch {
	case !k.core.concerns(a, key.Now()-k.admitted):
	case a.Sent:
		k.sentLate(a.Wait)
	default:
		k.core.report(a.report(&k.charge[0], k.by()))
	}
	return true
}

// sentLate settles the call to nothing, and an unknown charge to its cost: that counts from now on.
// One request does both, or another call could have the units between.
func (k *Call) sentLate(by time.Duration) {
	o, was := &k.core.slowPath().Reports, k.charge[0]
	if k.flags&Settled != 0 || was.Born == key.Never || !o.Late(key.Now(), by) {
		return
	}
	late := store.Charge{Born: key.Never, Epoch: was.Epoch, Number: was.Number}
	k.charge[0] = late
	k.charge[0].N = was.N // a Settle adds what it cost beyond that
	k.core.settle(
		reports.Report{Report: store.Report{Kind: store.Settled, Charge: &was}, By: k.by(), Cost: k.cost[0]},
		reports.Report{Report: store.Report{Kind: store.Settled, Charge: &late}, By: k.by(), Used: k.cost[0]})
	o.SentLate() // after the reports: what is booked before they arrive is too early
}

// done ends the call.
func (k *Call) done(uses uint32) {
	if !k.is(uses) {
		return
	}
	was := k.flags
	k.flags |= Done
	k.mu.Unlock()
	if was&Done != 0 {
		return
	}
	if was&Failed == 0 {
		k.core.Slots().Adapt(k.admitted, false)
		k.core.succeeded(k.charge[0].Epoch)
	}
	if k.leave(); uses != 0 && (was&Settled != 0 || k.plain()) {
		retire(k)
	}
}

// plain reports whether the call costs one unit: of that which a bucket's first limit counts.
func (k *Call) plain() bool {
	counts := k.core.Word.Unit()
	for unit, n := range k.cost[0] {
		if n > 0 && (unit != counts || n != 1) {
			return false
		}
	}
	return k.cost[0][counts] == 1
}

// pending reports whether the call is in flight in a slot.
func (k *Call) pending() bool { return k.slot != nil && !k.slot.Ended() }

// leave ends the call in flight.
func (k *Call) leave() {
	if k.slot.Drop() > 0 {
		k.core.Slots().Free(1)
		k.core.slowPath().Reports.Changed()
	}
}

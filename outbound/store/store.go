package store

import (
	"context"
	"hash/fnv"
	"slices"
	"time"
)

// Store keeps the state of keys, so that all buckets of a key, in one process or in many, are one.
// [NewMemory] is the store of one process.
//
// Update changes the state of one key atomically, by the store's own clock, in one request. A
// store must do what [Op.Apply] computes from the state and the time, in whatever language. A store
// that computes in Go calls Apply between reading and writing.
//
// An error says that Update has done nothing, or that it is unknown whether it has. In the second
// case the store must not try again in a way that could charge twice. Nothing of an Update that has
// failed is carried out after a later Update of its key by the same store has returned. Update
// changes nothing of op. When it has returned it keeps only op's limits, which never change.
//
// A key has one clock. Its times may go back by [Wobble], and further only if the clock is set. The
// time for Apply is taken while the store has the key for itself: from the database's server once
// the row is locked, for example, and neither when the transaction began nor from the process that
// happens to call. Two keys are the same if all their bytes are: different case, blanks or
// compositions of letters make different keys.
//
// Update ends by itself, within a second or a few, even if ctx has no end: a report of what a call
// has cost comes with such a ctx. If ctx ends first, Update returns its error without delay. A
// store does not pass ctx on to a driver that would then close a connection or end a request of
// other operations.
//
// If a wait can cure an error of any key, the error matches [ErrUnavailable], as fmt.Errorf("%w:
// %w", ErrUnavailable, err) does: the store is down, hangs, only reads, or has no memory or no
// connection left. If no wait cures it, as with a wrong password, a missing permission or a missing
// table, it does not: the operator must learn of it.
type Store interface {
	Update(ctx context.Context, key string, op *Op) (Reply, error)
}

// Sentinel is an error to compare with. RetryableError keeps aws-sdk-go-v2 from retrying it.
type Sentinel string

// Error implements error.
func (s Sentinel) Error() string { return string(s) }

// RetryableError returns false.
func (s Sentinel) RetryableError() bool { return false }

// ErrUnavailable is the error of a [Store], next to its cause, while it can serve no key and a wait
// may cure that.
const ErrUnavailable = Sentinel("store: unavailable")

// Op is one step of a key: the reports in their order, then the action. Its user makes it valid:
// one to [Max] limits, costs and durations that are finite and not negative.
type Op struct {
	// Limits are the limits by which the costs, charges and reports of the Op count, as far as the
	// process knows: its own, or those that it has adopted. The step is carried out by the limits
	// that are in force, if those are the same in the same order (see [Same]). Else it does
	// nothing, and the reply is Stale.
	Limits []Limit
	// Number is the Number of Limits, from an earlier reply. If it is zero, none has come yet.
	Number int64
	// Base is the [Hash] of the limits that the program was made with.
	Base uint64
	// Age is how long ago the process was started.
	Age time.Duration
	// Periods are the calendar periods that the step's time is in, one for each of Limits. It is
	// nil if none of them counts by the calendar. If the time is neither in the period nor in the
	// next one, the step does nothing, and the reply is Untimely.
	Periods []Period
	// Reports are what earlier calls say about themselves.
	Reports []Report
	// Action is what to do after the reports.
	Action Action
	// Costs is what to book, one reservation for each, in this order. Meter fills by the first.
	Costs []Units
	// Wait is the longest real time until the first reservation. If it is zero, the call has to
	// leave now.
	Wait time.Duration
	// Horizon is the longest real time until the reservations after the first.
	Horizon time.Duration
	// After is the shortest real time until the first reservation. A process far from the store sets
	// it to the latency of a reply, because it would learn of an earlier one too late. What leaks
	// until then is lost if no other call is booked before it.
	After time.Duration
	// Claim gives processes that share a key and book ahead equal shares. It is the units of the
	// first limit that this process has booked while calls waited in it. A process below
	// [Stored.Lead] catches up: whatever Horizon says, it books after the first until it is level
	// with the lead, if those calls are due at most 100 ms after the first, or as many times as
	// long after it as the first is away as Weight says, and 4 times at least. So a process that
	// asks less often, because it is further from the store, has its share. With a Claim above the
	// lead, as +Inf is, its calls begin to wait: the process is level with the lead after this
	// booking, and does not raise it. If it is NaN, zero or less, the booking does not count, as
	// that of a caller that does not wait.
	Claim float64
	// Weight is the share of a process whose calls wait. It divides the units that a booking adds to
	// the Claim. If it is zero, these count as with 1, and the booking takes part in no [Opening].
	// Otherwise it counts as one from 1e-9 to 1e9.
	Weight float64
	// Bid is the Bid of the last reply to a booking of this process.
	Bid Bid
	// Headroom is the fraction of each limit that a booking keeps free for other calls, as
	// [Limit.Headroom] rounds it. It counts in the limits that count the call. A reservation beyond
	// After would delay other calls, so the caller keeps Wait and Horizon that short.
	Headroom float64
	// Unused are bookings to return, in the order in which they were booked. The step undoes the
	// latest, and settles earlier ones to nothing, which returns what is safe.
	Unused []Charge
	// Move is a booking to undo, so that Costs are booked instead. It is undone if it is the last
	// of all bookings, no settle of the step adds units, and the first of Costs can be booked
	// then. Else the step books nothing.
	Move *Charge
	// Replacement are the limits that Replace puts in force. Own says that they are those that the
	// program was made with.
	Replacement []Limit
	Own         bool
	// Ask is what Allot carries out.
	Ask Ask
	// Slots asks for State.Parts in the reply.
	Slots bool
	// Into is where a store may append Reply.Charges, to save an allocation.
	Into []Charge
}

// Hash returns a number for limits that a program was made with. Other limits have another one.
func Hash(limits []Limit) uint64 {
	h := fnv.New64a()
	for i := range limits {
		_, _ = h.Write(limits[i].appendBinary(nil))
	}
	return h.Sum64()
}

// Clone returns a copy of op for a store that goes on with it after Update has returned. It copies
// Costs, Reports, Unused, Move and the charges to which the reports point. It shares Limits,
// Periods and Replacement, whose elements no one changes. The copy has no Into, because its memory
// belongs to the caller. Clone makes at most five allocations.
func (op *Op) Clone() *Op {
	c := *op
	c.Into, c.Costs, c.Reports, c.Unused = nil, slices.Clone(op.Costs), slices.Clone(op.Reports), slices.Clone(op.Unused)
	var all []Charge
	own := func(p **Charge) {
		if *p != nil {
			if all == nil { // one allocation for all
				all = make([]Charge, 0, 1+len(op.Reports))
			}
			all = append(all, **p)
			*p = &all[len(all)-1]
		}
	}
	own(&c.Move)
	for i := range c.Reports {
		own(&c.Reports[i].Charge)
	}
	return &c
}

// Action is what an [Op] does after its reports.
type Action uint8

// The actions.
const (
	Look    Action = iota // only look
	Book                  // return Unused, then book Costs
	Meter                 // fill by Costs[0] whatever the level, up to the capacity
	Resume                // end a hold and a slow-down, and make all reservations void
	Replace               // put other limits in force for all, if Number is that of those in force
	Allot                 // carry out Ask, on a key whose first limit says how many slots there are
)

var actions = [...]string{"look", "book", "meter", "resume", "replace", "allot"}

// String returns the action's name, as errors print it.
func (a Action) String() string {
	if int(a) < len(actions) {
		return actions[a]
	}
	return "unknown action"
}

// Report is what a call says about itself once it has left.
type Report struct {
	Kind   ReportKind
	Charge *Charge // of the call, or nil
	// Used is the real cost, with Settled. With Remaining it is the rest of each limit, or negative if
	// that is unknown.
	Used Units
	// Wait is the length of the hold, with Refused, Held, Paused and Delayed, or 0 if the API did not
	// say. With Remaining it is the time until the reset.
	Wait time.Duration
	// MaxWait is, with Refused, the longest hold to which consecutive refusals are doubled. If it
	// is zero, or more than an hour, it is an hour.
	MaxWait time.Duration
	Epoch   int64 // Refused, Succeeded: State.Epoch as the call knew it when it left
	Reason  uint8 // of a hold: State.Why keeps it for the key's user, who has the words
}

// ReportKind is the kind of a [Report].
type ReportKind uint8

// The kinds of reports.
const (
	Settled   ReportKind = iota // the call has cost Used
	Refused                     // the API has refused the call
	Held                        // the API asks to wait before the next call
	Paused                      // an operator asks to wait: the limits leak on
	Succeeded                   // the call has succeeded
	Remaining                   // the API has said what remains until a reset
	Delayed                     // all reservations move by Wait
)

// Reply is what a store answers to an [Op].
type Reply struct {
	// Stale is true if the step did nothing, because the Op counts by other limits than those in
	// force, or would replace other ones.
	Stale bool
	// Untimely is true if the step did nothing, because the Op's Periods are not those of Unix.
	Untimely bool
	// Number is that of the limits in force. If the Op has another, or other Limits, Limits are those
	// in force, Base is the Hash of the limits that their program was made with, and Made is the
	// store's time when its process was started. See [Op.Yields].
	Number int64
	Limits []Limit
	Base   uint64
	Made   time.Duration
	// Reported is true, with Stale or an error, if the reports and Unused were carried out
	// nevertheless: a store may have sent them with an earlier request.
	Reported bool
	// Charges are the bookings made, one for each of Costs from the first on.
	Charges []Charge
	// Refused is true if the next of Costs could not be booked. Wait is the real time until it
	// could leave, and Limit the index of the limit that it waits for; -1 if it waits for
	// reservations only.
	Refused bool
	Wait    time.Duration
	Limit   int
	// Moved is true if Op.Move was undone, and the first of Costs was booked.
	Moved bool
	// Claim is the Op.Claim of the process's next booking, or 0 if this one booked or claimed
	// nothing.
	Claim float64
	// Bid is the Op.Bid of the process's next booking.
	Bid Bid
	// Share are the limits that decided, each a part of that of the Op at its index, as while a
	// store is unavailable. If it is nil, those in force decided.
	Share []Limit
	// Allotment is the answer to the Ask of an Allot.
	Allotment Allotment
	// Full is which limits a Meter has filled to the capacity.
	Full [Max]bool
	// State is the key's clock and its levels after the action.
	State State
	// When is the local time at which State was true, as the store estimates it. A user counts the
	// time until a reservation from When: counted from the reply's arrival, a delayed reply would
	// shift it. Received is the local time by which such a reply normally arrives; if it is zero, this
	// reply took the normal time. A store in this process leaves both zero: State is true when the
	// reply arrives.
	When, Received time.Time
	// Changed says, to a store that has called [Op.Apply], whether the step has changed the key. If
	// it has not, the store need not write the key, nor keep it for longer than it would have. In a
	// reply from a store it has no meaning.
	Changed bool
	// Corrupt is true if the key was unreadable or invalid, so that Apply took every limit for full.
	// The store reports that.
	Corrupt bool
	// Expire is how long the store must keep the key if it is not used.
	Expire time.Duration
}

// Yields reports whether a process adopts the limits of a reply that brings some. Otherwise it
// replaces them by its own: its program was made with other limits, and these have a higher
// version. If the versions are the same, it replaces them if it was started later, by more than
// MaxReplyAge, because a request takes time.
func (op *Op) Yields(r *Reply, own []Limit) bool {
	v, is := versionOf(own), versionOf(r.Limits)
	return op.Base == r.Base || v < is || v == is && sub(sub(r.State.At, op.Age), MaxReplyAge) <= r.Made
}

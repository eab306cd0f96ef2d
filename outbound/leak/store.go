package leak

import (
	"context"
	"time"
)

// Store keeps the state of keys, so that several buckets of one key, in one process
// or in many, are one. [NewMemory] is the store of one process.
//
// Update changes the state of one key atomically, by the store's own clock, in
// one round trip: what [Op.Apply] computes from the state and the time is what
// the store must do, in whatever language it does it. A store that computes in
// Go calls Apply itself, between reading and writing. An error says that it
// could not, or that nobody knows whether it has; then it must not try again
// by itself in a way that could charge twice. Update changes nothing of op, and keeps
// nothing of it when it has returned, but for the limits, which nobody changes.
//
// A key has one clock. Its times do not go back, or by no more than a clock's
// wavering: Apply is told the time at which it has the key for itself, such as the
// database server's once the row is locked, and not that at which a transaction
// began, nor the time of whichever worker calls. Two keys are the same if all
// their bytes are: no case, no blank and no composition of letters makes two one.
//
// Update ends by itself, within a second or a few, even if ctx never does: what a call
// has cost is told with no other end. If ctx ends first, Update returns its error without
// delay. ctx is not for the driver where its end would close a connection that
// others use, or end a trip that carries their operations as well.
//
// An error that a wait can cure, whatever the key, is [ErrAway] as well, as
// fmt.Errorf("%w: %w", ErrAway, err) is: the store is down, hangs, only reads, or
// has no memory or no connection left. One that no wait cures is not, such as a
// wrong password, a missing permission or a missing table: it is for who runs the
// program to hear of.
//
// The package outboundtest has the exam that every store passes.
type Store interface {
	Update(ctx context.Context, key string, op *Op) (Reply, error)
}

// sentinel is an error to compare with. Like every error of this module it
// answers aws-sdk-go-v2, which would otherwise retry it blindly.
type sentinel string

func (s sentinel) Error() string        { return string(s) }
func (s sentinel) RetryableError() bool { return false }

// ErrAway is what a [Store] answers, among other errors, while it can serve no
// key at all and a wait may cure that.
const ErrAway = sentinel("outbound: the store is away")

// Op is one step of a key: reports first, in their order, then the action. It is to
// be valid: one to [Max] limits, costs and durations that are finite and not negative,
// no cost above a capacity.
type Op struct {
	// Limits are those that costs, charges and reports count by: the worker's own, or
	// those that were set for all. Where workers have different limits of their own,
	// each is held to its own; the clock is common to all, and so are the levels of
	// limits with the same name and unit.
	Limits []Limit
	// Stamp is that of the limits that were set, if Limits are those; else 0. If
	// others are in force, the step does nothing, and the reply is Stale.
	Stamp int64
	// Reports are what earlier calls have to say.
	Reports []Report
	// Action is what to do then.
	Action Action
	// Costs is what to book, one place for each, in this order. With Meter, the first
	// is what to fill by.
	Costs []Units
	// Wait is the longest real time until the first place; 0: only a place that is due now.
	Wait time.Duration
	// Horizon is the same for the places after the first.
	Horizon time.Duration
	// After is the shortest real time until the first place: a worker asks for as
	// long as a reply takes to come back, because it would hear of a sooner place
	// too late. What leaks until the place, if nobody is booked before it, is
	// lost. 0 or less: as soon as there is room.
	After time.Duration
	// Claim is for workers that share a key and book ahead: the units of the
	// first limit that this one has booked while it had a backlog. Below
	// [Stored.Lead] it catches up: places after the first are booked until it is
	// level, whatever Horizon says, if they are due at most 100 ms after the first,
	// or as long after it as the first is ahead of now. So a worker that asks less
	// often, because it is further away, has its share. Above the lead, as with
	// +Inf, the worker begins: it is level with the lead after this booking, and
	// raises it by nothing. Not above 0, or NaN: the booking neither claims nor
	// leads, as that of a caller that does not wait.
	Claim float64
	// Back are bookings to give back, in the order in which they were booked:
	// the latest ones are undone, of others comes back what is safe.
	Back []Charge
	// Move, if not nil, is a booking to undo so that Costs can be booked
	// instead, if it is the latest of all. If it is not, nothing is booked.
	Move *Charge
	// Replacement are the limits to set, with Replace; with Unset, nobody's are set any
	// more, each worker's own count, and Replacement are this one's.
	Replacement []Limit
	Unset       bool
	// Into is room for Reply.Charges, which may be appended to it.
	Into []Charge
}

// Action is what an [Op] does, after its reports.
type Action uint8

// The actions.
const (
	Peek    Action = iota // look, and leave everything as it is
	Book                  // give Back back, then book the next places for Costs
	Meter                 // fill by Costs[0] whatever the level, up to the brim
	Resume                // end a hold, a slow-down and all bookings
	Replace               // replace the limits, for all who share the key
)

var actions = [...]string{"peek", "book", "meter", "resume", "replace"}

// String returns the action's name, as errors print it.
func (a Action) String() string {
	if int(a) < len(actions) {
		return actions[a]
	}
	return "unknown action"
}

// Report is what a call says about itself once it has gone.
type Report struct {
	Kind   ReportKind
	Charge *Charge       // of the call; nil where nobody's call is meant
	Used   Units         // Settled: what it really cost; Left: what remains of each limit, or below 0
	Wait   time.Duration // Refused, Held: what the API asked for; 0: it did not say. Left: until the reset
	// MaxWait is the longest that the hold is doubled to, with Refused; 0: an hour, and
	// never longer.
	MaxWait time.Duration
	// Stagger is the part by which a hold that was doubled is longer, with Refused, of a
	// key that nobody else uses. Where workers share a key one hold is for all, and it is 0.
	Stagger float64
	Epoch   int64 // Refused, Succeeded: the newest epoch that the call knew of when it left
	Reason  uint8 // Refused, Held, Left: kept for the key's user
}

// ReportKind is the kind of a [Report].
type ReportKind uint8

// The kinds of reports.
const (
	Settled   ReportKind = iota // the call has really cost Used
	Refused                     // the API has refused the call and asked to wait
	Held                        // the API, or an operator, asks to wait before the next call
	Succeeded                   // the call has succeeded
	Left                        // the API has told what remains until a reset
)

// Reply is what a store says to an [Op].
type Reply struct {
	// Stale is set if other limits are in force than the Op counts by: nothing was
	// done. Limits are those that are set, and Stamp theirs; none: each worker's own count.
	// Expire counts as always.
	Stale  bool
	Limits []Limit
	// Reported is set, with Stale, if the reports, and what was to be given back, have
	// been carried out all the same: a store may have taken them on an earlier trip.
	Reported bool
	// Stamp names the limits that are set; 0: none are.
	Stamp int64
	// Version changes when the limits do for all: by one when they were replaced, and by
	// two when that has made places void, or levels were lost, so that nothing comes back
	// to calls from before.
	Version int64
	// Charges are the bookings made, in order: as many of Costs as went.
	Charges []Charge
	// Refused is set if the next of Costs was refused, Wait is the real
	// time until it could go, and Limit the index of the limit that has no room for it,
	// or -1.
	Refused bool
	Wait    time.Duration
	Limit   int
	// Claim is what the next booking claims: the Op's, with what was booked
	// now; 0 if that was nothing, or claimed nothing.
	Claim float64
	// Full tells which limits a Meter has brought to the brim.
	Full [Max]bool
	// State is the key's clock and its levels after the action.
	State State
	// When is the local time at which State was true, as the store estimates
	// it, and Heard that by which such a reply is normally here. What is due is
	// laid on When, or a delayed reply would shift it, and who waits asks for
	// places that are not due before such a reply is here. Heard has to follow
	// the network: if many replies come later than that, their places are lost.
	// Without a Heard each reply is taken for a normal one. The zero times, as of a
	// store in this process, mean the reply's arrival.
	When, Heard time.Time
	// Differ is set if the worker's own limits count, and are not those that
	// the key was last used with, by another worker.
	Differ bool
	// Garbage is set if what was kept of the key could not be read, or made no
	// sense, and was taken as full to the brim. The store tells whoever runs it.
	Garbage bool
	// Expire is after how long the store may forget the key, if nothing comes
	// between. Limits that were set by Replace are kept for 30 days beyond.
	Expire time.Duration
}

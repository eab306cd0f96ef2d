package outbound

import (
	"context"
	"strconv"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/leak"
)

// Store keeps the state of buckets, each under its key, so that several
// buckets, in one process or in many, are one. [NewMemory] is the store of one
// process.
//
// Update changes the state of one key atomically, by the store's own clock, in
// one round trip: what [Op.Apply] computes from the state and the time is what
// the store must do, in whatever language it does it. A store that computes in
// Go calls Apply itself, between reading and writing. An error says that it
// could not, or that nobody knows whether it has; then it must not try again
// by itself in a way that could charge twice. With an error the bucket takes the
// charges that op points to as they were, whatever Apply has made of them. When
// Update has returned, op and what it points to are used again: the store may keep
// the limits, which nobody changes, and nothing else.
//
// A key has one clock. Its times do not go back, or by no more than a clock's
// wavering: Apply is told the time at which it has the key for itself, such as the
// database server's once the row is locked, and not that at which a transaction
// began, nor the time of whichever worker calls. Two keys are the same if all
// their bytes are: no case, no blank and no composition of letters makes two one.
//
// Update ends by itself, within a second or a few, even if ctx never does: a
// Settle has no other end. If ctx ends first, Update returns its error without
// delay. ctx is not for the driver where its end would close a connection that
// others use, or end a trip that carries their operations as well.
//
// An error that a wait can cure, whatever the key, is [ErrAway] as well, as
// fmt.Errorf("%w: %w", ErrAway, err) is: the store is down, hangs, only reads, or
// has no memory or no connection left. One that no wait cures is not, such as a
// wrong password, a missing permission or a missing table: it is for who runs the
// program to hear of, and no [Fallback] hides it.
//
// The package outboundtest has the exam that every store passes.
type Store interface {
	Update(ctx context.Context, key string, op *Op) (Result, error)
}

// Action is what an [Op] does, after its reports.
type Action uint8

// The actions.
const (
	Peek    Action = iota // look, and leave everything as it is
	Book                  // give Charges back, then book the next places for Costs
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
	return "action " + strconv.Itoa(int(a))
}

// Op is one step of a bucket: reports first, in their order, then the action.
// Limits, costs and durations in it are valid.
type Op struct {
	// Limits are those that the bucket was made with, and all that the step
	// knows, unless Replace has set others: those win. Levels are found by Unit
	// and Name. What another bucket of the key has beside them is not touched.
	Limits []Limit
	// Reports are what earlier calls have to say.
	Reports []Report
	// Action is what to do then.
	Action Action
	// Costs is what to book, one place for each, in this order.
	Costs []Cost
	// Wait is the longest real time until the first place; 0: only a place that is due now.
	Wait time.Duration
	// Horizon is the same for the places after the first.
	Horizon time.Duration
	// After is the shortest real time until the first place: a worker asks for as
	// long as a reply takes to come back, because it would hear of a sooner place
	// too late. What leaks until the place, if nobody is booked before it, is
	// lost. 0 or less: as soon as there is room.
	After time.Duration
	// Claim is for workers that share a bucket and book ahead: the units of the
	// first limit that this one has booked while it had a backlog. Below
	// [Stored.Lead] it catches up: places after the first are booked until it is
	// level, whatever Horizon says, if they are due at most 100 ms after the first,
	// or as long after it as the first is ahead of now. So a worker that asks less
	// often, because it is further away, has its share. Above the lead, as with
	// +Inf, the worker begins: it is level with the lead after this booking, and
	// raises it by nothing. Not above 0, or NaN: the booking neither claims nor
	// leads, as that of a caller that does not wait.
	Claim float64
	// Charges are bookings to give back, in the order in which they were booked:
	// the latest ones are undone, of others comes back what is safe.
	Charges []*Charge
	// Move, if not nil, is a booking to undo so that Costs can be booked
	// instead, if it is the latest of all. If it is not, nothing is booked.
	Move *Charge
	// Replacement are the limits to set; none: those that each bucket was made with count again.
	Replacement []Limit
	// Into is room for Result.Charges, which may be appended to it.
	Into []Charge

	free   bool // a cost that no limit counts is fine: an AtOnce does
	freed  int  // places among the calls at once that Charges bring back
	brings int  // and that Move has, for the first of Costs
	waits  bool // for who waits: settles ride along

	// What the charges were at first: Apply changes them, and a store that has
	// lost a race calls it again, or fails.
	were  []Charge
	noted bool
}

// Report is what a call says about itself once it has gone.
type Report struct {
	Kind    ReportKind
	Charge  *Charge       // of the call; nil where nobody's call is meant
	Used    Cost          // Settled: what it really cost; Left: what remains, or below 0
	Cost    Cost          // Settled: what it was to take
	Wait    time.Duration // Refused, Held: what the API asked for; 0: it did not say. Left: until the reset
	MaxWait time.Duration // Refused: the longest that the hold is doubled to; 0: an hour, and never longer
	Epoch   int64         // Refused, Succeeded: the newest epoch that the call knew of when it left
	Reason  Reason        // Refused, Held, Left

	spread float64 // Refused: the part by which a doubled hold is longer
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

// Charge is what a booking has taken, kept to give back from it.
type Charge struct {
	leak.Charge
	Version int64   // of the limits it was booked under; the bucket sets it
	Seq     int64   // for the store: of the request that booked it; the store sets it
	limits  []Limit // those limits, as the indices of leak.Charge count them
}

// Result is the store's reply.
type Result struct {
	// Charges are the bookings made, in order: as many of Costs as went.
	Charges []Charge
	// Limit is the index in Limits of the one that has no room for the next
	// of Costs, or -1; and TooLarge is set if it never will have.
	Limit    int
	TooLarge bool
	// Invalid is set if no limit counts the next of Costs.
	Invalid bool
	// Refused is set if the next of Costs was refused, and Wait is the real
	// time until it could go.
	Refused bool
	Wait    time.Duration
	// Claim is what the next booking claims: the Op's, with what was booked
	// now; 0 if that was nothing, or claimed nothing.
	Claim float64
	// Full tells which limits a Meter has brought to the brim.
	Full [maxLimits]bool
	// State is the bucket's clock and its levels after the action.
	State leak.State
	// When is the local time at which State was true, as the store estimates
	// it, and Heard that by which such a reply is normally here. What is due is
	// laid on When, or a delayed reply would shift it, and who waits asks for
	// places that are not due before such a reply is here. Heard has to follow
	// the network: if many replies come later than that, their places are lost.
	// Without a Heard each reply is taken for a normal one. The zero times, as of a
	// store in this process, mean the reply's arrival.
	When, Heard time.Time
	// Limits are those in force for this bucket, in the order of the levels.
	// Version changes when they do for all: by one when Replace has replaced
	// them, and by two when that has made places void, or levels were lost, so
	// that nothing comes back to calls from before.
	Limits  []Limit
	Version int64
	// Differ is set if the bucket's own limits count, and are not those that
	// the key was last used with, by another bucket.
	Differ bool
	// Garbage is set if what was kept of the key could not be read, or made no
	// sense, and was taken as full to the brim. The store tells whoever runs it.
	Garbage bool
	// Expire is after how long the store may forget the key, if nothing comes
	// between. Limits that were set by Replace are kept for 30 days beyond.
	Expire time.Duration

	given  []Limit // those in force, an AtOnce included; nil: Limits
	used   int     // calls at once
	slots  bool    // each of Charges has taken a place among the calls at once
	noSlot bool    // refused because there is none

	extended  bool   // the hold lasts longer than was known here
	turn      uint64 // of the operation, in a bucket of this process
	collected int    // calls at once whose permits were dropped without Done
}

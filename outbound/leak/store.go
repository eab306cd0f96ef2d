package leak

import (
	"context"
	"slices"
	"time"
)

// Store keeps the state of keys, so that all buckets of a key, in one process or in many, are
// one. [NewMemory] is the store of one process.
//
// Update changes the state of one key atomically, by the store's own clock, in one round
// trip. A store must do what [Op.Apply] computes from the state and the time, in whatever
// language. A store that computes in Go calls Apply between reading and writing.
//
// An error says that Update has done nothing, or that nobody knows whether it has. In the
// second case the store must not try again in a way that could charge twice. Update changes
// nothing of op. When it has returned it keeps nothing of op except the limits, which nobody
// changes.
//
// A key has one clock, and its times do not go back by more than a clock wavers. The time for
// Apply is taken while the store has the key for itself: from the database's server once the
// row is locked, for example, and neither when the transaction began nor from the worker that
// happens to call. Two keys are the same if all their bytes are: different case, blanks or
// compositions of letters make different keys.
//
// Update ends by itself, within a second or a few, even if ctx has no end: a report of what a
// call has cost comes with such a ctx. If ctx ends first, Update returns its error without
// delay. A store does not pass ctx on to a driver that would then close a connection which
// others use, or end a trip that carries their operations too.
//
// If a wait can cure an error of any key, the error matches [ErrAway], as
// fmt.Errorf("%w: %w", ErrAway, err) does: the store is down, hangs, only reads, or has no
// memory or no connection left. If no wait cures it, as with a wrong password, a missing
// permission or a missing table, it does not: the operator must hear of it.
//
// The package outboundtest has the exam that every store passes.
type Store interface {
	Update(ctx context.Context, key string, op *Op) (Reply, error)
}

// Sentinel is an error to compare with. Like every error of this module it
// answers aws-sdk-go-v2, which would otherwise retry it blindly.
type Sentinel string

func (s Sentinel) Error() string        { return string(s) }
func (s Sentinel) RetryableError() bool { return false }

// ErrAway is the error of a [Store], beside its cause, while it can serve no key and a wait
// may cure that.
const ErrAway = Sentinel("outbound: the store is away")

// Op is one step of a key: the reports in their order, then the action. Its user makes it
// valid: one to [Max] limits, costs and durations that are finite and not negative, no cost
// above a capacity.
type Op struct {
	// Limits are the limits by which the costs, charges and reports of the Op count, in
	// their order: those that were set for all, or the worker's own. Where workers have
	// different limits of their own, each is held to its own; the clock is common to all,
	// and so are the levels of limits with the same name and unit.
	Limits []Limit
	// Periods are where the step's time is in the calendars of Limits, one for each; nil: none
	// of them counts by the calendar. If the time is neither in the period that they tell nor in
	// the next one, the step does nothing, and the reply is Untimely.
	Periods []Period
	// Stamp names Limits if they were set for all; 0: they are the worker's own. If others
	// are in force, the step does nothing, and the reply is Stale.
	Stamp int64
	// Reports are what earlier calls say about themselves.
	Reports []Report
	// Action is what to do after the reports.
	Action Action
	// Costs is what to book, one place for each, in this order. Meter fills by the first.
	Costs []Units
	// Wait is the longest real time until the first place; 0: only a place that is due now.
	Wait time.Duration
	// Returns says that the caller comes back when a refusal tells it to. So where all of a Fixed
	// limit comes back at once, on which no booking counts, the first of Costs is refused rather
	// than booked for then or later. It is for the only caller of a key, or one that others do not
	// overtake. A store may ignore it.
	Returns bool
	// Horizon is the longest real time until the places after the first.
	Horizon time.Duration
	// After is the shortest real time until the first place; 0 or less: as soon as there
	// is room. A worker far from the store sets it to the time that a reply takes to come
	// back, because it would hear of a sooner place too late. What leaks until the place
	// is lost if no other call is booked before it.
	After time.Duration
	// Claim gives workers that share a key and book ahead equal shares. It is the units of
	// the first limit that this worker has booked while it had a backlog. A worker below
	// [Stored.Lead] catches up: whatever Horizon says, it books places after the first
	// until it is level with the lead, if they are due at most 100 ms after the first, or
	// at most as long after it as the first is away. So a worker that asks less often,
	// because it is further from the store, has its share. With a Claim above the lead, as
	// +Inf is, a backlog begins: the worker is level with the lead after this booking, and
	// does not raise it. With one that is not above 0, or NaN, the booking does not count,
	// as that of a caller that does not wait.
	Claim float64
	// Back are bookings to give back, in the order in which they were booked. The step
	// undoes the latest, and settles others to nothing, which gives back what is safe.
	Back []Charge
	// Move is a booking to undo, so that Costs are booked instead. If it is not the latest
	// of all bookings, or the first of Costs finds no place, or a later one, it stays, and the
	// step books nothing. nil: there is none.
	Move *Charge
	// Replacement are the limits that Replace sets for all. With Unset no limits are set
	// for all any more, each worker's own count, and Replacement are this worker's.
	Replacement []Limit
	Unset       bool
	// Into is where a store may append Reply.Charges, to save an allocation.
	Into []Charge
}

// Clone returns a copy of op for a store that goes on with it after Update has returned. It copies
// Costs, Reports, Back, Move and the charges to which the reports point. It shares Limits, Periods
// and Replacement, whose elements nobody changes. The copy has no Into, because its memory belongs
// to the caller. Clone makes at most four allocations, and takes as many bytes as what it copies:
// 256 for each charge.
func (op *Op) Clone() *Op {
	c := *op
	c.Into, c.Back = nil, nil
	c.Costs, c.Reports = slices.Clone(op.Costs), slices.Clone(op.Reports)
	n := len(op.Back)
	if op.Move != nil {
		n++
	}
	for i := range op.Reports {
		if op.Reports[i].Charge != nil {
			n++
		}
	}
	all := make([]Charge, 0, n) // for all charges one allocation
	if all = append(all, op.Back...); len(all) > 0 {
		c.Back = all[:len(all):len(all)]
	}
	keep := func(charge *Charge) *Charge {
		if charge == nil {
			return nil
		}
		all = append(all, *charge)
		return &all[len(all)-1]
	}
	c.Move = keep(op.Move)
	for i := range c.Reports {
		c.Reports[i].Charge = keep(c.Reports[i].Charge)
	}
	return &c
}

// Action is what an [Op] does after its reports.
type Action uint8

// The actions.
const (
	Peek    Action = iota // only look
	Book                  // give Back back, then book the next places for Costs
	Meter                 // fill by Costs[0] whatever the level, up to the brim
	Resume                // end a hold and a slow-down, and make all places void
	Replace               // replace the limits for all who share the key
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
	Charge *Charge       // of the call; nil: no call is meant
	Used   Units         // Settled: the real cost. Left: what remains of each limit; below 0: the API did not say
	Wait   time.Duration // Refused, Held: how long the API asks to wait; 0: it did not say. Left: until the reset
	// MaxWait is the longest hold to which refusals in a row are doubled, with Refused; 0,
	// or more than an hour: an hour.
	MaxWait time.Duration
	// Stagger is the share by which a doubled hold is longer, with Refused. It keeps
	// workers apart that have a key each. Where workers share the key it is 0, because one
	// hold is for all.
	Stagger float64
	Epoch   int64 // Refused, Succeeded: the newest epoch of which the call knew when it left
	Reason  uint8 // Refused, Held, Left: State.Why keeps it for the key's user
}

// ReportKind is the kind of a [Report].
type ReportKind uint8

// The kinds of reports.
const (
	Settled   ReportKind = iota // the call has really cost Used
	Refused                     // the API has refused the call
	Held                        // the API, or an operator, asks to wait before the next call
	Succeeded                   // the call has succeeded
	Left                        // the API has said what remains until a reset
)

// Reply is what a store answers to an [Op].
type Reply struct {
	// Stale is set if other limits are in force than the Op counts by: nothing was
	// done. Limits are those that are set, and Stamp theirs; none: each worker's own count.
	// Expire counts as always.
	Stale  bool
	Limits []Limit
	// Untimely says, with Stale, that the Op's Periods are not those of the store's time:
	// nothing was done. Unix is that time.
	Untimely bool
	// Unix is the store's Unix time at the step, if a limit counts by the calendar.
	Unix time.Duration
	// Reported says, with Stale or beside an error, that the reports and Back have been carried
	// out all the same: a store may have sent them on an earlier trip.
	Reported bool
	// Stamp names the limits that are set for all; 0: none are.
	Stamp int64
	// Version counts changes of the limits for all. It goes on by one when they are
	// replaced. If that made places void, or the key has lost a level, it goes on by two:
	// nothing comes back to calls from before.
	Version int64
	// Charges are the bookings made, one for each of Costs from the first on.
	Charges []Charge
	// Refused says that the next of Costs found no place. Wait is the real time until it
	// could go, and Limit the index of the limit that it waits for; -1: only for those who
	// are booked.
	Refused bool
	Wait    time.Duration
	Limit   int
	// Claim is the Op.Claim of the worker's next booking; 0 if this one booked nothing or
	// claimed nothing.
	Claim float64
	// Share says that the step was decided by these limits, each a share of that of the Op at its
	// index, as while a store is away. Levels of State are of the whole limits, in which all but
	// the share is full. Nobody changes it. nil: by those of the Op.
	Share []Limit
	// Full says which limits a Meter has brought to the brim.
	Full [Max]bool
	// State is the key's clock and its levels after the action.
	State State
	// When is the local time at which State was true, as the store estimates it. A user
	// counts the time until a place from When: counted from the reply's arrival, a delayed
	// reply would shift the place. Heard is the local time by which such a reply normally
	// arrives; zero: this reply took the normal time. A user that waits asks for no place
	// that is due before. Heard has to follow the network: a place is lost if its reply
	// comes later. A store in this process leaves both zero: State is true when the reply
	// arrives.
	When, Heard time.Time
	// Differ says that each worker's own limits count, and that another worker, with
	// other limits than these, has used the key last.
	Differ bool
	// Changed says, to a store that has called [Op.Apply], whether the step has changed the
	// key. If it has not, the store need not write the key, nor keep it for longer than it
	// would have. In a reply from a store it says nothing.
	Changed bool
	// Garbage says that the store could not read the key, or that the key made no sense,
	// and that Apply took every limit for full to the brim. The store tells its operator.
	Garbage bool
	// Expire is how long the store must keep the key if nobody uses it. A key whose Stamp
	// is not 0 it keeps for 30 days more.
	Expire time.Duration
}

package outbound

import (
	"fmt"
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/clock"
	"github.com/dripfeed/dripfeed/outbound/internal/core"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
)

// State is what a limit looks like at one moment.
type State struct {
	// Limit is which limit this is.
	Limit Limit
	// Level is the number of units in it, including those that are booked for waiting calls. For an
	// [InFlight] it is the number of calls in progress.
	Level float64
	// Full is true in each reply to a Fillup that ends at the capacity, and in no other reply. A
	// limit that stays full reports it at each Fillup.
	Full bool
	// Remaining is how many units fit now, at least 0.
	Remaining float64
	// EmptyIn is how long until the level is 0, if nothing is added. While a store is unavailable,
	// and a fallback admits a part of the limit, it is until that is empty, and NextIn counts by it
	// too. For a calendar it is how long until calls can leave in the next period, used or not.
	EmptyIn time.Duration
	// NextIn is how long until there is capacity for one more unit. If it is zero, there is now. For a
	// limit of a capacity below one unit, it is until that is empty. In the State of a Permit both are
	// at most so long if the limit is a window. Both are zero for an [InFlight], because it is unknown
	// when a call ends: see Remaining.
	NextIn time.Duration
	// HeldFor is how long a hold still lasts, or 0.
	HeldFor time.Duration
	// Reason is why, while a hold lasts, as [Answer.Reason] has it.
	Reason string
	// Speed is that of the bucket's clock: 1, or less while it recovers from
	// refusals. The leak rate is that much slower.
	Speed float64
	// Pace is how many units a second of a quota all processes took lately. A quota is a calendar
	// quota, or a window of at least a minute. The average is over a time as long as UsedUpIn, and at
	// most over an eighth of the period: three hours of a day. Pace and UsedUpIn are set only in an
	// [Explanation] of a bucket with an observer: a page, or [Bucket.Observe]. A Pace of zero is
	// unknown.
	Pace float64
	// UsedUpIn is how long until the quota is used up at that Pace, if that is before its period ends.
	// Calls that wait in the asked queue leave as fast as the other limits let them. UsedUpIn is 0 if
	// the quota lasts. It is also 0 until a quarter of the time to foresee was observed, or has passed
	// in this period.
	UsedUpIn time.Duration
	// Wait is set in an [Explanation]: how long until the call's units fit in this limit alone,
	// without a hold. It is negative if they never fit, or if it is unknown.
	Wait time.Duration
	// InProgress is set in an [Explanation], for an [InFlight]: how many of the calls in progress are
	// this process's. Oldest is the age of the first of them.
	InProgress int
	Oldest     time.Duration
	// Processes is how many other processes have calls in progress or have had them just now, and
	// Largest how many one of them has at most. Both are set with InProgress, for a shared bucket.
	Processes, Largest int
	// Headroom is set in an [Explanation] of a queue: how many units or slots it keeps free for other
	// calls.
	Headroom float64
}

// Label returns the limit's name, or its numbers if it has none, such as "10 per 1s".
func (l *State) Label() string { return l.Limit.label() }

// Where returns words for how the calls of an [InFlight] are spread over processes, such as "5 in
// this process, 7 in 3 more, at most 4 in one". It is empty if no other process has calls.
func (l *State) Where() string {
	n := spec.Number(max(0, l.Level-float64(l.InProgress)))
	switch l.Processes {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%d in this process, %s in another", l.InProgress, n)
	}
	return fmt.Sprintf("%d in this process, %s in %d more, at most %d in one", l.InProgress, n, l.Processes, l.Largest)
}

// nearestOf returns the state of a limit when a call was charged.
func nearestOf(n *core.Nearest) State {
	l := limitOf(n.Limit)
	return State{Limit: l, Level: n.Level, Remaining: max(0, l.Capacity-n.Level), EmptyIn: n.EmptyIn, NextIn: n.NextIn, HeldFor: n.HeldFor, Reason: reasonOf(n.Why), Speed: n.Speed}
}

// statesOf returns the state of each limit in a reply.
func statesOf(r *core.Reply) []State {
	all := make([]State, 0, len(r.Force.Law)+1)
	set, s := r.Decided()
	for i := range r.Force.Counts() {
		l := &r.Force.Law[i]
		level := r.State.Level[i]
		one := State{Limit: limitOf(spec.OfLaw(l)), Level: level, Full: r.Full[i], Remaining: max(0, l.Capacity-level)}
		one.EmptyIn, one.NextIn = clock.ComeBack(set, s, i)
		all = append(all, one)
	}
	if a := r.Flight; a != nil {
		used := float64(r.Used)
		all = append(all, State{Limit: limitOf(spec.OfSlots(a)), Level: used, Remaining: max(0, float64(a.Most)-used)})
	}
	held, reason := max(0, r.State.Rem), ""
	if held > 0 {
		reason = reasonOf(r.State.Why)
	}
	for i := range all {
		all[i].HeldFor, all[i].Reason, all[i].Speed = held, reason, r.State.Speed
	}
	return all
}

// nearest returns the state of the limit nearest its capacity.
func nearest(all []State) State {
	best, share := State{}, math.Inf(-1)
	for _, s := range all {
		if of := s.Level / s.Limit.Capacity; of > share {
			best, share = s, of
		}
	}
	return best
}

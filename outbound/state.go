package outbound

import (
	"math"
	"slices"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// State is what a limit looks like at one moment.
type State struct {
	// Limit is which limit this is.
	Limit Limit
	// Level is the number of units in it, those included that are booked for
	// calls which wait. For a limit on calls at once: the calls in progress.
	Level float64
	// Full is true in each reply to a Fillup that ends at the capacity, and in no other reply. A
	// limit that stays full reports it at each Fillup.
	Full bool
	// Remaining is how many units there is room for now; 0 at the brim and above.
	Remaining float64
	// EmptyIn is how long until the level is 0, if nothing is added. While a store is unavailable, and
	// a fallback has a share of the limit, it is until that is empty, and NextIn counts by it too. For
	// a calendar it is how long until calls can leave in the next period, used or not.
	EmptyIn time.Duration
	// NextIn is how long until there is capacity for one more unit. If it is zero, there is now. For a
	// limit of a capacity below one unit, it is until that is empty. In the State of a Permit both are
	// at most so long if the limit is a window.
	NextIn time.Duration
	// HeldFor is how long a hold still lasts; 0: none does.
	HeldFor time.Duration
	// Reason is why, while a hold lasts, as [Answer.Reason] has it.
	Reason string
	// Speed is that of the bucket's clock: 1, or less while it recovers from
	// refusals. The leak rate is that much slower.
	Speed float64
	// Wait is set in an [Explanation]: how long until there is room for the call's units, if there
	// were no other limit and no hold. It is below zero if there is never room for them, or if it
	// is unknown.
	Wait time.Duration

	apart time.Duration // between two units of a limit that admits one at a time, in an Explanation; 0: it is another limit
}

// Label names the limit: its name, or what it says if it has none, such as "10 per 1s".
func (l *State) Label() string { return l.Limit.label() }

// holds sets what a bucket's clock says of all its limits.
func (l *State) holds(of *store.State) {
	if l.HeldFor, l.Reason, l.Speed = max(0, of.Rem), "", of.Speed; of.Rem > 0 {
		l.Reason = reasonOf(of.Why)
	}
}

// ofWord returns the state that the cell's word tells, without an allocation. It returns false if the
// word does not tell it, or if an observer is to learn of it.
func (b *core) ofWord() (s State, ok bool) {
	word, p := b.word.Load(), b.slow.Load()
	if word == busy || p != nil && p.watches.Load() != nil {
		return s, false
	}
	l, level := store.Limit{Capacity: b.capacity, Rate: b.rate}, b.level(word, now())
	s = State{Limit: b.first(), Level: level, Remaining: l.Capacity - level, EmptyIn: l.Above(level, 0), Speed: 1}
	if one := min(1, l.Capacity); !fits(&l, level+one) {
		s.NextIn = l.Above(level+l.Takes(one), l.Capacity)
	}
	return s, true
}

// states returns what a reply tells of each limit.
func (r *reply) states() []State {
	all := make([]State, 0, len(r.force.law)+1)
	set, s := r.decided()
	for i := range r.force.law {
		l := &r.force.law[i]
		level := r.State.Level[i]
		one := State{Limit: limitOf(l), Level: level, Full: r.Full[i], Remaining: max(0, l.Capacity-level)}
		one.EmptyIn, one.NextIn = comeBack(set, s, i, false)
		all = append(all, one)
	}
	if a := r.inFlight; a != nil {
		used := float64(r.used)
		all = slices.Insert(all, min(a.at, len(all)), State{Limit: a.Limit, Level: used, Remaining: max(0, a.Capacity-used)})
	}
	for i := range all {
		all[i].holds(&r.State)
	}
	return all
}

// comeBack returns State.EmptyIn and State.NextIn of the limit i. admitted says that a call was just
// admitted, so that no calendar is shut.
func comeBack(set *limitSet, s *store.State, i int, admitted bool) (all, next time.Duration) {
	l := &set.law[i]
	switch {
	case set.calendar != nil && l.Kind.Calendar():
		all = time.Duration(set.calendar.At(s.Unix)[i].End)*time.Second + store.Slack - s.Unix
	case l.Kind != store.Leaky && s.Parts == nil: // nothing counts for longer
		all = s.Real(l.Window)
	default:
		all = s.Empty(set.law, i)
	}
	one := min(1, l.Capacity)
	switch {
	case fits(l, s.Level[i]+one) && (admitted || s.Parts == nil || !l.Kind.Calendar()):
		return all, s.Real(0)
	case s.Parts == nil && l.Kind != store.Leaky:
		return all, all
	}
	return all, alone(set, s, i, one)
}

// alone returns how long it is until the limit i has capacity for n units, if nothing but it and a
// hold makes a call wait. It is below 0 if it never has.
func alone(set *limitSet, s *store.State, i int, n float64) time.Duration {
	l := &set.law[i]
	if n = l.Takes(n); n > l.Capacity {
		return -1
	}
	switch {
	case l.Kind == store.Leaky || s.Parts != nil:
	case n == 0 || fits(l, s.Level[i]+n):
		return s.Real(0)
	default: // it is unknown, and at most this
		return s.Real(l.Window)
	}
	t := *s
	t.Last = 0
	var only store.Units
	only[i] = n
	w, _, _ := t.Wait(set.law, &only)
	return t.Real(w)
}

// nearest returns the state of the limit nearest its brim.
func nearest(all []State) State {
	best, share := State{}, math.Inf(-1)
	for _, s := range all {
		if of := s.Level / s.Limit.Capacity; of > share {
			best, share = s, of
		}
	}
	return best
}

package clock

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/key"
	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// earliest returns a lower bound of the time when a call of this cost can leave, after all
// reservations and after waiting calls that cost ahead in all. It also returns the index of the
// limit that the call waits for, or -1.
func (k *Clock) earliest(c, ahead *reports.Numbers) (at time.Time, limit int) {
	if k.Lacks(c) {
		return k.At, -1
	}
	units, before := k.Needs(c), store.Units{}
	for i := range k.Limits.Law {
		before[i] = ahead[k.Limits.Law[i].Unit]
	}
	w, i := k.State.Earliest(k.Limits.Law, &before, &units)
	return k.At.Add(w), i
}

// Needs returns what a call of this cost needs of each limit, with what it keeps free.
func (k *Clock) Needs(c *reports.Numbers) store.Units {
	units := k.Limits.Units(c)
	return store.Needs(k.Limits.Law, &units, k.Headroom)
}

// Bound returns a lower bound of the time when a call can leave, behind waiting calls. All of them
// cost all, and those that certainly leave in time cost sure. The rest may give up from until on,
// and before that the call waits for them, too. mixed is true if their costs differ. limit is the
// index of the limit that the call waits for, or -1.
func (k *Clock) Bound(c, sure, all *reports.Numbers, until time.Time, mixed bool) (at time.Time, limit int) {
	at, limit = k.earliest(c, sure)
	if *all == *sure {
		return at, limit
	}
	if mixed { // a larger one is refused before, once it is known to be late
		until = until.Add(-k.refills())
	}
	if later, which := k.earliest(c, all); later.After(at) && until.After(at) {
		if at, limit = until, which; later.Before(until) {
			at = later
		}
	}
	return at, limit
}

// refills returns how long the slowest full limit needs to have capacity again, calendars aside.
func (k *Clock) refills() (d time.Duration) {
	for i := range k.Limits.Law {
		if l := &k.Limits.Law[i]; l.Parted() {
			d = max(d, l.Window)
		} else {
			d = max(d, l.Above(l.Capacity, 0))
		}
	}
	return k.State.Real(d)
}

// window returns when n units have left by the limit i, by the dial. The limit is a window, and
// admits most at a time. What it counts is freed in sequence.
func (k *Clock) window(i int, n, most float64) time.Duration {
	s, l := &k.State, &k.Limits.Law[i]
	turns := math.Ceil(n/most*(1-1e-9)) - 1
	if n -= turns * most; n <= l.Capacity*(1+1e-8) {
		n = min(n, l.Capacity) // without the rounding of sums
	}
	first := time.Duration(0)
	switch {
	case l.Fits(s.Level[i]+n) || s.Parts == nil:
	case l.Fits(n):
		var units store.Units
		units[i] = n
		first, _, _ = s.Wait(k.Limits.Law, &units)
	}
	return key.Later(max(0, s.Last, first), time.Duration(min(turns*float64(l.Window), 4e18)))
}

// Surely reports whether a call certainly leaves by a time.
func (k *Clock) Surely(c, ahead *reports.Numbers, n int, alike bool, by time.Time) bool {
	s, law := &k.State, k.Limits.Law
	if bad, _ := k.Whole.Misfit(c, 0); bad != nil || k.InFlight || !reports.Valid(c) {
		return false
	}
	last := max(0, s.Last)
	begin := last // from then on no limit that leaks is more than full
	sum, slowest := time.Duration(n)*time.Microsecond, alike || len(law) == 1
	counted := false
	gap, part := time.Duration(0), 0. // around the ends of periods no call leaves: that is once a gap, and a part of the rest
	for i := range law {
		l, level := &law[i], s.Level[i]
		cost := max(0, l.Takes(c[l.Unit]))
		if counted = counted || cost > 0; cost > l.Capacity {
			return false
		}
		units := ahead[l.Unit] + cost
		if !alike || cost != c[l.Unit] {
			units += float64(n) * l.Capacity * 1e-9 // what package store rounds up
		}
		next, ok := k.Limits.Period(i, s.Unix-store.Slack) // a period that is younger than Slack admits no call
		switch next -= store.Slack; {
		case !l.Parted():
			sum = key.Later(sum, l.Above(units, 0))
			if !alike {
				cost = 0
			}
			begin = max(begin, l.Above(level+cost, l.Capacity))
		case ok:
			if l.Fits(level+units) && next > 2*store.Slack {
				if !by.Before(k.At.Add(next - 2*store.Slack)) {
					gap, part = gap+2*store.Slack, part+2*store.Slack.Hours()
				}
				continue
			}
			if next -= max(0, s.Rem); next <= max(last, 2*store.Slack) || !l.Fits(units) {
				return false
			}
			begin = max(begin, next)
		case l.Fits(level+units) && l.Slides():
		case l.Fits(level+units) && l.Window >= time.Second:
			gap, part = gap+2*jitter, part+float64(2*jitter)/float64(l.Window)
		case k.void(i):
			return false // other reservations take capacity between those of these calls
		case len(law) > 1 || !alike || cost <= 0 || !l.Slides():
			// Two calls that do not fit into one window are more than half of one.
			sum = key.Later(sum, time.Duration(min((2*units/l.Capacity+2)*float64(l.Window), 4e18)))
			slowest = false
		default:
			most := math.Floor(l.Capacity/cost*(1+1e-9)) * cost // fits in a window
			turns := math.Ceil(units / most)
			// A log has 64 parts, and each part is freed with its last unit.
			slack := time.Duration(min((turns+1)*float64(l.Window/64), 4e18))
			if s.Parts == nil {
				return false
			}
			begin = key.Later(k.window(i, units, most), slack)
		}
	}
	end := key.Later(begin, sum)
	if slowest { // then the slowest of the limits decides
		end = begin
		for i := range law {
			if l := &law[i]; !l.Parted() {
				units := ahead[l.Unit] + l.Takes(c[l.Unit])
				end = max(end, l.Above(s.Level[i]+units, l.Capacity), key.Later(begin, l.Above(units, l.Capacity)))
			}
		}
	}
	if s.Speed < 1 { // each step of a slow clock is rounded
		end = key.Later(end, time.Duration(n+1)*time.Microsecond)
	}
	end = time.Duration(min(float64(key.Later(end, gap))/(1-part), 4e18))
	return counted && !k.At.Add(s.Real(end)).After(by)
}

// void reports whether the limit i is a window that counts reservations after the last one, which
// are void.
func (k *Clock) void(i int) bool {
	s, l := &k.State, &k.Limits.Law[i]
	if !l.Slides() || s.Parts == nil {
		return false
	}
	slots := s.Parts[i].Slots
	return len(slots) > 0 && slots[len(slots)-1].End-l.Window > s.Dial()+max(0, s.Last)
}

// ComeBack returns how long until the limit i is empty, and until it admits one more unit. If the
// state has no Parts, as in a store's reply to an admission, a window has upper bounds of these.
func ComeBack(set *key.Limits, s *store.State, i int) (all, next time.Duration) {
	l := &set.Law[i]
	known := !l.Parted() || s.Parts != nil
	end, ok := set.Period(i, s.Unix)
	switch {
	case ok:
		all = end
	case known:
		all = s.Empty(set.Law, i)
	default: // nothing counts for longer
		all = s.Real(l.Window)
	}
	switch one := l.Takes(min(1, l.Capacity)); {
	case l.Fits(s.Level[i]+one) && !(known && ok):
		return all, s.Real(0)
	case known:
		return all, s.Alone(set.Law, i, one)
	}
	return all, all
}

package outbound

import (
	"math"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/reports"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Earliest returns a lower bound of the time when a call of this cost can leave, after all
// reservations and after waiting calls that cost ahead in all. With one leaky limit it is exact. It
// does not cover limits on calls in flight. If [Clock.Lacks] is true for the call, it is the time
// of the reply, because the store may be available again at any time. limit is what the call waits
// for, as in [ThrottledError]. A cost above a capacity is a [*CostError]. The Headroom of the
// BookRequest counts, as if no other call came.
func (k *Clock) Earliest(c, ahead *Cost) (at time.Time, limit string, err error) {
	if err := check(k.whole, k.core.key, c, k.headroom); err != nil {
		return at, "", err
	}
	if k.Lacks(c) {
		return k.at, "", nil
	}
	units, before := k.limits.Units((*reports.Numbers)(c)), store.Units{}
	units = (&store.Op{Headroom: k.headroom}).Needs(k.limits.Law, &units)
	for i := range k.limits.Law {
		before[i] = ahead[k.limits.Law[i].Unit]
	}
	w, i := k.state.Earliest(k.limits.Law, &before, &units)
	if i >= 0 {
		limit = k.core.label(k.whole, i)
	}
	return k.at.Add(w), limit, nil
}

// Bound is [Clock.Earliest] behind waiting calls that cost all. Those that cost sure certainly
// leave in time. The rest may give up from until on, and before that the call waits for them, too.
// mixed is true if their costs differ.
func (k *Clock) Bound(c, sure, all *Cost, until time.Time, mixed bool) (at time.Time, limit string, err error) {
	at, limit, err = k.Earliest(c, sure)
	if err != nil || *all == *sure {
		return at, limit, err
	}
	if mixed { // a larger one is refused before, once it is known to be late
		until = until.Add(-k.refills())
	}
	if later, which, _ := k.Earliest(c, all); later.After(at) && until.After(at) {
		if at, limit = until, which; later.Before(until) {
			at = later
		}
	}
	return at, limit, nil
}

// refills returns the longest time in which a full limit has capacity again, calendars excepted.
func (k *Clock) refills() (d time.Duration) {
	for i := range k.limits.Law {
		if l := &k.limits.Law[i]; l.Parted() {
			d = max(d, l.Window)
		} else {
			d = max(d, l.Above(l.Capacity, 0))
		}
	}
	return k.state.Real(d)
}

// window returns the dial time after which n units have left by the limit i, a window that admits
// most at a time. What it counts is freed in sequence.
func (k *Clock) window(i int, n, most float64) time.Duration {
	s, l := &k.state, &k.limits.Law[i]
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
		first, _, _ = s.Wait(k.limits.Law, &units)
	}
	return later(max(0, s.Last, first), time.Duration(min(turns*float64(l.Window), 4e18)))
}

// Surely reports whether a call of this cost certainly leaves by a time, after all reservations and
// after n waiting calls that cost ahead in all. alike is true if each of them costs as much as this
// one. If the result is false, the call may still be in time. With several leaky limits and calls
// of several costs, Surely adds up the waits for each limit. If a window lacks capacity for the
// calls, Surely counts on half of it at a time. It counts on all of it if the window is the only
// limit and all calls cost the same. It ignores limits on calls in flight.
func (k *Clock) Surely(c, ahead *Cost, n int, alike bool, by time.Time) bool {
	s, law := &k.state, k.limits.Law
	if check(k.whole, "", c, 0) != nil || k.core.slots().Most() > 0 {
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
		next, ok := k.limits.Period(i, s.Unix-store.Slack) // a period that is younger than Slack admits no call
		switch next -= store.Slack; {
		case !l.Parted():
			sum = later(sum, l.Above(units, 0))
			if !alike {
				cost = 0
			}
			begin = max(begin, l.Above(level+cost, l.Capacity))
		case ok:
			if l.Fits(level+units) && next > 2*store.Slack {
				if !by.Before(k.at.Add(next - 2*store.Slack)) {
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
			sum = later(sum, time.Duration(min((2*units/l.Capacity+2)*float64(l.Window), 4e18)))
			slowest = false
		default:
			most := math.Floor(l.Capacity/cost*(1+1e-9)) * cost // fits in a window
			turns := math.Ceil(units / most)
			// A log has 64 parts, and each part is freed with its last unit.
			slack := time.Duration(min((turns+1)*float64(l.Window/64), 4e18))
			if s.Parts == nil {
				return false
			}
			begin = later(k.window(i, units, most), slack)
		}
	}
	end := later(begin, sum)
	if slowest { // then the slowest of the limits decides
		end = begin
		for i := range law {
			if l := &law[i]; !l.Parted() {
				units := ahead[l.Unit] + l.Takes(c[l.Unit])
				end = max(end, l.Above(s.Level[i]+units, l.Capacity), later(begin, l.Above(units, l.Capacity)))
			}
		}
	}
	if s.Speed < 1 { // each step of a slow clock is rounded
		end = later(end, time.Duration(n+1)*time.Microsecond)
	}
	end = time.Duration(min(float64(later(end, gap))/(1-part), 4e18))
	return counted && !k.at.Add(s.Real(end)).After(by)
}

// void reports whether the limit i is a window that counts reservations after the last one, which
// are void.
func (k *Clock) void(i int) bool {
	s, l := &k.state, &k.limits.Law[i]
	if !l.Slides() || s.Parts == nil {
		return false
	}
	slots := s.Parts[i].Slots
	return len(slots) > 0 && slots[len(slots)-1].End-l.Window > s.Dial()+max(0, s.Last)
}

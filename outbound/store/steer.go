package store

import "time"

// How steering judges: see [Row].
const (
	// full is how many refusals fill a row. After so many, twice as many calls for each
	// refusal are no chance.
	full = 16
	// trusted is the number of rows for which the verdict stands that slowing down does
	// not help.
	trusted = 128
	// Remember is how long after the hold of its last refusal a key remembers refusals.
	Remember = time.Hour
	// The most that a row counts, so that a store can pack both counts into one number.
	mostCalls, mostRefused = 1<<32 - 1, 1<<12 - 1
)

// Row is what the latest refusals have taught. Refusals that come because the calls are too fast
// become fewer when the clock slows down. Random ones do not, and slowing down for them only costs
// speed. So a key counts refusals in rows of sixteen: from row to row the calls for each refusal
// must double before slowing down has cost too much of the speed. The zero Row says that nothing
// was refused lately.
type Row struct {
	Calls   int64   // filled in this row
	Refused int64   // refusals in this row
	Top     float64 // the speed when the row began, or 0
	Per     float64 // calls for each refusal, with which later rows are compared, or 0
	Fast    float64 // the speed that a slow-down is compared with
	// Trust above 0 is the number of rows whose refusals are not yet about the pace. Below 0 it is
	// minus the number of latest rows, at most 3, in which slowing down has not helped.
	Trust int64
	Until time.Duration // the store's time at which the key forgets all of this
}

// call counts a fill.
func (r *Row) call() {
	if r.Top > 0 && r.Calls < mostCalls {
		r.Calls++
	}
}

// refused counts a refusal at the time now, while the clock has speed v.
func (r *Row) refused(now time.Duration, v float64) {
	if r.Top == 0 {
		r.Top, r.Until = v, -farthest // times may be negative
	}
	r.Refused = min(r.Refused+1, mostRefused)
	r.remember(now, 0)
}

// remember keeps the row until Remember after a hold of which rem is left.
func (r *Row) remember(now, rem time.Duration) {
	if r.Top > 0 {
		r.Until = max(r.Until, forgets(now, rem))
	}
}

// forgets returns when a refusal is forgotten. Stores keep it in whole microseconds.
func forgets(now, rem time.Duration) time.Duration {
	rem = max(0, rem)
	return add(now, add(rem-rem%time.Microsecond, Remember))
}

// pass forgets the row when its time has come, and reports whether there is none. If the store's
// clock has stepped back, the row lasts no longer for that.
func (r *Row) pass(now, rem time.Duration) (none bool) {
	if r.Top > 0 {
		if r.Until = min(r.Until, forgets(now, rem)); r.Until <= now {
			*r = Row{}
		}
	}
	return r.Top == 0
}

// left returns for how much longer the key remembers the row.
func (r *Row) left(now time.Duration) time.Duration {
	if r.Top == 0 {
		return 0
	}
	return sub(r.Until, now)
}

// steer returns the speed of a clock of speed v after a refusal, which the row has counted
// already. soon says that the last hold ended less than HoldMemory ago.
func (r *Row) steer(v float64, soon bool) float64 {
	cut := 0.9
	if soon {
		cut = 0.7
	}
	cut = max(MinSpeed, v*cut)
	m := float64(r.Calls) / float64(r.Refused)
	r.Fast = max(r.Fast, v)
	if r.Trust > 0 {
		return r.trust(v, m)
	}
	if r.Refused < full {
		if r.Per > 0 {
			m = r.Per
		}
		return max(cut, min(v, r.floor(m)))
	}
	none := -r.Trust
	switch {
	case r.Per == 0:
		r.Per, none = m, 0
	case m >= 2*r.Per: // slowing down pays
		r.Per, r.Fast, none = m, r.Top, 0
	case cut <= r.Fast*deepest(m) || none >= 3 && v <= 0.6*r.Fast: // slowing down does not pay: undo it
		r.Per, r.Trust = min(m, r.Per), trusted
		r.begin(r.Fast)
		return r.Fast
	case m < r.Per/2: // more are refused than before: compare with this row
		r.Per, none = m, 0
	default:
		none = min(none+1, 3)
	}
	r.Trust = -none
	r.begin(v)
	return max(cut, min(v, r.floor(m)))
}

// trust is steer while refusals do not slow the clock down. It still slows down if they
// become clearly more than those which slowing down has not changed.
func (r *Row) trust(v, m float64) float64 {
	if r.Refused < full && (r.Refused < 5 || m >= r.Per/5) {
		return v
	}
	next := v
	switch {
	case m < r.Per/5:
		next = max(MinSpeed, 0.7*v)
	case m < r.Per/2:
		next = max(MinSpeed, 0.8*v)
	}
	if r.Refused >= full {
		if r.Trust--; m > 3*r.Per { // the random refusals have stopped
			r.Trust = 0
		}
		if r.Trust == 0 { // find out again whether slowing down helps
			r.Per, r.Fast = 0, v
		}
	}
	r.begin(next)
	return next
}

// begin begins a new row at speed v.
func (r *Row) begin(v float64) { r.Calls, r.Refused, r.Top = 0, 0, v }

// floor is the lowest speed to which the clock may slow down in this row, if m calls come
// for each refusal.
func (r *Row) floor(m float64) float64 { return max(0.5*r.Top, r.Fast*deepest(m)) }

// deepest is the share of the speed down to which the clock may slow before that must have
// helped: the more of the calls are refused, the lower.
func deepest(m float64) float64 { return min(0.4, m/150) }

package outboundtest

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"time"
)

// tolerance is how far above its limit a replayed level may stand before it counts as an excess, as
// a share of the limit: for float64 rounding.
const tolerance = 1e-9

// History records when units left, or arrived, and finds the window with too many of them. The zero
// value is empty and ready to use. A History is safe for concurrent use and must not be copied
// after its first use.
//
// It costs 16 bytes per departure, up to twice that while it grows, and drops
// none. Add takes departures in any order; those of the same instant stay in the order
// of their Add. Checks take time in proportion to the number of departures, after a
// sort if they were out of order.
//
// Distances between departures are measured on the monotonic clock where the
// times carry it, as those of time.Now do, so a step of the wall clock changes
// nothing. They are exact within 292 years of the departure added first.
type History struct {
	mu       sync.Mutex  // protects the fields below
	base     time.Time   // the time of the first Add
	log      []departure // in order of time unless unsorted
	unsorted bool
}

type departure struct {
	at    int64 // nanoseconds after the base; negative before it
	units float64
}

// Add records that units left at time t. A departure of 0 units counts, but breaks no limit. Add
// panics if units are negative, infinite or NaN.
func (h *History) Add(t time.Time, units float64) {
	if !(units >= 0) || math.IsInf(units, 1) {
		panic(fmt.Sprintf("outboundtest: a departure of %g units: must be finite and at least 0", units))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.log) == 0 {
		h.base = t
	}
	d := departure{at: int64(t.Sub(h.base)), units: units}
	if n := len(h.log); n > 0 && d.at < h.log[n-1].at {
		h.unsorted = true
	}
	h.log = append(h.log, d)
}

// Len returns the number of departures.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.log)
}

// All returns the departures in order of time, each with its units, as they are
// when the loop starts.
func (h *History) All() iter.Seq2[time.Time, float64] {
	return func(yield func(time.Time, float64) bool) {
		h.mu.Lock()
		base, log := h.base, slices.Clone(h.sorted())
		h.mu.Unlock()
		for _, d := range log {
			if !yield(base.Add(time.Duration(d.at)), d.units) {
				return
			}
		}
	}
}

// Check returns nil if in every interval of length W at most
// capacity + slack + leakRate*W units left, and an *Excess that describes the
// worst interval if not. Capacity and slack are in units, leakRate in units per
// second. The interval includes both its ends, so departures at the same instant
// count together (W = 0).
//
// The slack is what is allowed beyond the bucket itself. For callers that may leave late it is
// leakRate times the longest delay in seconds: 10 units at 1000 per second and 10 ms. Check takes
// an excess below 1e-9 of capacity + slack for rounding. In time that is 1e-9 of what a full bucket
// needs to drain, 1 ns for one that drains in a second.
//
// The check is exact: every interval keeps the limit if and only if a leaky bucket that gets each
// departure at its time never holds more than capacity + slack.
//
// Check panics if capacity is not above 0, leakRate or slack is negative, or one
// of them is infinite or NaN.
func (h *History) Check(capacity, leakRate, slack float64) error {
	needLaw(capacity, leakRate)
	need(slack >= 0 && !math.IsInf(capacity+slack, 1), "slack %g: must be finite and at least 0", slack)
	h.mu.Lock()
	defer h.mu.Unlock()
	log := h.sorted()

	// The worst interval that ends at a departure begins where the bucket was
	// last empty: level is what it holds beyond leakRate times its length.
	var level, peak float64
	var begin, worstBegin, worstEnd int
	for i, d := range log {
		if i > 0 {
			level = drained(level, leakRate, elapsed(log[i-1], d))
		}
		if level == 0 {
			begin = i
		}
		level += d.units
		if level > peak {
			peak, worstBegin, worstEnd = level, begin, i
		}
	}
	limit := capacity + slack
	if peak <= limit+limit*tolerance {
		return nil // not a nil *Excess, which would be an error that is not nil
	}
	return &Excess{
		Window:   h.window(log[worstBegin : worstEnd+1]),
		Allowed:  limit + leakRate*elapsed(log[worstBegin], log[worstEnd]),
		Over:     peak - limit,
		Capacity: capacity,
		LeakRate: leakRate,
		Slack:    slack,
	}
}

// CheckWindow returns nil if at most n units left in every interval of the given length, and an
// *Excess that describes the fullest one if not. If two departures are exactly one length apart,
// only one is in such an interval. For callers that may leave late, take the longest delay off the
// length: a call that is late is nearer to the next one. CheckWindow takes an excess below 1e-9 of
// n for rounding. n must be above 0 and finite, and the length above 0 and at most 100 years;
// otherwise it panics.
func (h *History) CheckWindow(n float64, length time.Duration) error {
	needWindow(n, length)
	w := h.Worst(length)
	if w.Units <= n+n*tolerance {
		return nil
	}
	return &Excess{Window: w, Allowed: n, Over: w.Units - n, Capacity: n, In: fmt.Sprintf("any %v", length)}
}

// CheckCalendar returns nil if at most n units left in each period of the zone's calendar, and an
// *Excess that describes the fullest one if not. A departure within skew of the end of a period
// counts in both. So n holds by any clock that is off by at most skew, and for arrivals at most
// skew later. CheckCalendar takes an excess below 1e-9 of n for rounding. It panics if n is not
// above 0 and finite, if the period is unknown, if the zone is nil, or if skew is not in 0…1 h.
func (h *History) CheckCalendar(n float64, period Period, zone *time.Location, skew time.Duration) error {
	needPositive("limit of a period", n)
	needPeriod(period, zone)
	need(skew >= 0 && skew <= time.Hour, "a skew of %v: must be at least 0 and at most an hour", skew)
	h.mu.Lock()
	defer h.mu.Unlock()
	log := h.sorted()
	at := func(i int) time.Time { return h.base.Add(time.Duration(log[i].at)) }
	var worst *Excess
	first, from := 0, time.Time{} // of the next period, the first departure, and a moment in it
	for {
		for first < len(log) && at(first).Before(from.Add(-skew)) {
			first++
		}
		if first == len(log) {
			break
		}
		if t := at(first).Add(-skew); from.Before(t) {
			from = t // nothing left in the periods before this one
		}
		begin, end := period.around(from, zone)
		past := first
		for past < len(log) && at(past).Before(end.Add(skew)) {
			past++
		}
		if w := h.window(log[first:past]); w.Units > n+n*tolerance && (worst == nil || w.Units > worst.Units) {
			worst = &Excess{Window: w, Allowed: n, Over: w.Units - n, Capacity: n, In: fmt.Sprintf("the %v that begins at %s", period, begin.In(zone).Format(time.RFC3339))}
		}
		from = end
	}
	if worst == nil {
		return nil // not a nil *Excess, which would be an error that is not nil
	}
	return worst
}

// Worst returns the window of the given length with the most units, the earliest one of equal ones,
// and the zero Window for an empty history. If two departures are exactly one length apart, only
// one is in such a window: "at most n in any window" holds if Worst(window).Units <= n. The window
// returned reaches from the first to the last of its departures and so is shorter than length.
// Worst panics if length is not above 0.
func (h *History) Worst(length time.Duration) Window {
	need(length > 0, "a window of %v: must be above 0", length)
	h.mu.Lock()
	defer h.mu.Unlock()
	log := h.sorted()
	var sum, most float64
	begin, worst := 0, log[:0]
	for i, d := range log {
		for begin < i && uint64(d.at-log[begin].at) >= uint64(length) {
			sum -= log[begin].units
			begin++
		}
		if begin == i {
			sum = 0 // what is left of earlier units is rounding
		}
		sum += d.units
		if sum > most || i == 0 {
			most, worst = sum, log[begin:i+1]
		}
	}
	return h.window(worst)
}

// Total returns the window from the first departure to the last, and the zero
// Window of an empty history.
func (h *History) Total() Window {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.window(h.sorted())
}

// Use returns the used share of what Check allows without slack, from the first departure to the
// last: units / (capacity + leakRate*W). It is 1 for departures that are as many and as early as
// allowed, above 1 only if there were more, and 0 for an empty history. With capacity 1 and a leak
// rate of 10 per second, 11 departures of one unit within 2 s used 0.524. Use panics as Check does.
func (h *History) Use(capacity, leakRate float64) float64 {
	needLaw(capacity, leakRate)
	h.mu.Lock()
	defer h.mu.Unlock()
	log := h.sorted()
	if len(log) == 0 {
		return 0
	}
	return h.window(log).Units / (capacity + leakRate*elapsed(log[0], log[len(log)-1]))
}

// sorted returns the log in order of time. The caller holds the lock.
func (h *History) sorted() []departure {
	if h.unsorted {
		slices.SortStableFunc(h.log, func(a, b departure) int { return cmp.Compare(a.at, b.at) })
		h.unsorted = false
	}
	return h.log
}

// window describes a stretch of the sorted log. The caller holds the lock.
func (h *History) window(log []departure) Window {
	if len(log) == 0 {
		return Window{}
	}
	w := Window{
		Start:      h.base.Add(time.Duration(log[0].at)),
		End:        h.base.Add(time.Duration(log[len(log)-1].at)),
		Departures: len(log),
	}
	for _, d := range log {
		w.Units += d.units
	}
	return w
}

// elapsed returns the seconds from a to b, which is not before a. The difference
// of two int64 always fits a uint64, so it cannot overflow.
func elapsed(a, b departure) float64 {
	return float64(uint64(b.at-a.at)) / 1e9
}

// drained returns what is left of a level after so many seconds.
func drained(level, leakRate, seconds float64) float64 {
	return max(0, level-leakRate*seconds)
}

func needLaw(capacity, leakRate float64) {
	need(capacity > 0 && !math.IsInf(capacity, 1), "capacity %g: must be finite and above 0", capacity)
	need(leakRate >= 0 && !math.IsInf(leakRate, 1), "leak rate %g per second: must be finite and at least 0", leakRate)
}

// need panics unless ok. A test that went on with a meaningless number would prove
// nothing.
func need(ok bool, format string, args ...any) {
	if !ok {
		panic("outboundtest: " + fmt.Sprintf(format, args...))
	}
}

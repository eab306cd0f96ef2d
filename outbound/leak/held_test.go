package leak

import (
	"fmt"
	"math"
	"time"
)

// stand is a hold as the dial has seen it: it showed before, went on to after, and stood for the
// rest of the hold.
type stand struct {
	before, after, stands time.Duration
	n                     int // calls that were booked
}

// note notes what a hold has made of a state. latest says that the call that caused it may be the
// latest.
func (w *world) note(was *State, latest bool) error {
	s := &w.state
	if s.Rem <= max(0, was.Rem) {
		return nil
	}
	d := stand{before: was.Dial(), after: s.Dial(), n: w.n}
	ext := s.Rem - max(0, was.Rem)
	d.stands = ext - (d.after - d.before)
	w.stands[w.holding] = d
	w.holding++
	if !w.logged || latest {
		return nil
	}
	// Every call is in a window's log, so the dial goes on to the first place that it has not passed.
	until := add(d.before, ext)
	for i := range w.n {
		if c := &w.calls[i]; !c.over && c.place >= d.before {
			until = min(until, c.place)
		}
	}
	if d.after != until {
		return fmt.Errorf("a hold of %v at %v lets the dial run on to %v, want %v", ext, d.before, d.after, until)
	}
	return nil
}

// ends returns the dial time at which a call counts no more in a window, the limit of: a window after its place,
// less the time for which the dial has stood when it had gone, and those had that count as long.
func (w *world) ends(k, of int, l *Limit) time.Duration {
	place := w.calls[k].place
	end := place + l.Window
	for _, d := range w.stands[:w.holding] {
		last := place
		for i := range d.n {
			if p := w.calls[i].place; p <= place+l.Window/parts && w.calls[i].cost[of] > 0 {
				last = max(last, p)
			}
		}
		if k < d.n && last < d.after-BookingGrace {
			end -= d.stands
		}
	}
	return end
}

// promptAfterHolds is prompt for what a call takes of windows that no hold has filled.
func (w *world) promptAfterHolds() error {
	limits, dial := w.limits(), w.state.Dial()
	short := Shortest(limits)
	for i := range limits {
		l := &limits[i]
		if i == short || l.Kind != Moving {
			continue
		}
		for units := 1.; units <= l.Capacity; units++ {
			want, sum := max(0, w.state.Last), units
			for k := w.n - 1; k >= 0; k-- {
				if sum += w.calls[k].N[i]; sum > l.Capacity+1e-6 {
					want = max(want, w.ends(k, i, l)-dial)
					break
				}
			}
			var n Units
			n[i] = units
			w.compared++
			if told, _ := w.state.Wait(limits, &n); told > want+l.Window/parts+2*time.Microsecond {
				return fmt.Errorf("%v of a window waits %v after %d holds, and could go after %v", units, told, w.holding, want)
			}
		}
	}
	return nil
}

// whole checks that what the call has not used has come back, if it still counted.
func (w *world) whole(c *visit, was *State) error {
	limits := w.limits()
	for i := range limits {
		l := &limits[i]
		if l.Kind != Moving || c.cost[i] == 0 || w.holding == 0 || w.events != w.holding || was.Logs == nil || w.workers || c.Born != was.Born { // or the store has forgotten the call
			continue
		}
		k := 0
		for &w.calls[k] != c {
			k++
		}
		if w.ends(k, i, l) <= was.Dial() {
			continue
		}
		before, after := was.log(l), w.state.log(l)
		before.count()
		after.count()
		if back := before.sum - after.sum; math.Abs(back-c.cost[i]) > 1e-6 {
			return fmt.Errorf("%v of the %v at %v came back, %v", back, c.cost[i], c.place, w.state.Dial())
		}
	}
	return nil
}

// helds are small worlds with windows whose units holds do not touch: the first limit is shorter.
var helds = []setting{
	{name: "aged", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(3, 2*s1)}}, costs: []Units{{1, 1}, {1, 2}}, fates: []int{0}, ops: "h", events: 2, holds: []time.Duration{s1 / 2, 3 * s1}, fills: 6, depth: 7, steps: []time.Duration{s1 / 2, s1}, logged: true},
	{name: "aged, returns", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(3, 2*s1)}}, costs: []Units{{1, 1}, {0, 2}}, fates: []int{0, dead}, ops: "hsu", events: 2, holds: []time.Duration{3 * s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2, s1}},
	{name: "aged, beside", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 2*s1), {Capacity: 3, Rate: 2}}}, costs: []Units{{1, 1, 1}, {1, 0, 2}, {0, 2, 1}}, fates: []int{0}, ops: "h", events: 2, holds: []time.Duration{s1, 4 * s1}, fills: 5, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "aged, late", shapes: [][]Limit{{{Capacity: 1, Rate: 20}, moving(2, 2*s1)}}, costs: []Units{{1, 1}}, fates: []int{0, 1}, ops: "h", events: 2, holds: []time.Duration{tau, 4 * s1}, fills: 5, depth: 7, steps: []time.Duration{tau / 2, 2 * s1}, tau: tau, logged: true},
	{name: "aged, lenient", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 2*s1)}}, costs: []Units{{1, 1}, {1, 0}, {0, 2}}, fates: []int{0}, ops: "hr", events: 3, holds: []time.Duration{s1, 4 * s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2, 2 * s1}, lenient: true},
	{name: "aged, parts", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 10*s1)}}, costs: []Units{{0, 1}, {1, 0}}, fates: []int{0}, ops: "h", events: 1, holds: []time.Duration{20 * s1}, fills: 4, depth: 7, steps: []time.Duration{s1 / 8, 20 * s1}},
	{name: "aged, resumed", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 2*s1)}}, costs: []Units{{1, 1}, {0, 1}}, fates: []int{0}, ops: "eh", events: 4, holds: []time.Duration{s1, 5 * s1}, fills: 5, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "aged, refused", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 2*s1)}}, costs: []Units{{1, 1}, {0, 1}}, fates: []int{0}, ops: "ry", events: 3, holds: []time.Duration{0, 2 * s1}, fills: 4, depth: 6, steps: []time.Duration{s1 / 2, 2 * s1}},
	{name: "aged, back", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 2*s1)}}, costs: []Units{{1, 1}, {0, 1}}, fates: []int{0}, ops: "bhs", events: 3, holds: []time.Duration{3 * s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2, 2 * s1}},
	{name: "aged, changed", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, named(moving(2, 2*s1))}, {{Capacity: 1, Rate: 4}, named(moving(3, 3*s1))}, {{Capacity: 1, Rate: 4}, named(fixed(2, 2*s1))}}, costs: []Units{{1, 1}, {0, 1}}, fates: []int{0}, ops: "chv", events: 3, holds: []time.Duration{3 * s1}, fills: 4, depth: 6, steps: []time.Duration{s1 / 2, 2 * s1}},
	{name: "fixed parts", shapes: [][]Limit{{{Capacity: 1, Rate: 500}, fixed(2, s1)}}, costs: []Units{{1, 1}}, fates: []int{0}, ops: "h", events: 1, holds: []time.Duration{2 * s1}, fills: 4, depth: 8, steps: []time.Duration{s1 / 100, 2 * s1}},
	{name: "fixed aged", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, fixed(2, 2*s1)}}, costs: []Units{{1, 1}, {0, 1}}, fates: []int{0}, ops: "hes", events: 3, holds: []time.Duration{s1, 3 * s1}, fills: 5, depth: 5, steps: []time.Duration{s1 / 2, s1}},
}

package store

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// moving and fixedWindow return windows, with names by which they find their logs.
func moving(n float64, window time.Duration) Limit {
	return Limit{Name: fmt.Sprint("moving ", window), Kind: Window, Capacity: n, Window: window, Rate: n / window.Seconds()}
}

func fixedWindow(n float64, window time.Duration) Limit {
	l := moving(n, window)
	l.Name, l.Kind = fmt.Sprint("fixed ", window), Fixed
	return l
}

// named returns the limit under a name, so that it stays the same when its shape changes.
func named(l Limit) Limit {
	l.Name = "changed"
	return l
}

// windows are small worlds with windows in them.
var windows = []setting{
	{name: "window C1", shapes: [][]Limit{{moving(1, s1)}}, costs: costs(1), fates: []int{0, dead}, ops: "su", fills: 5, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "window C3", shapes: [][]Limit{{moving(3, 3*s1)}}, costs: costs(1, 2), fates: []int{0}, ops: "su", fills: 6, depth: 6, steps: []time.Duration{s1, 2*s1 + s1/128}},
	{name: "window parts", shapes: [][]Limit{{moving(3, s1)}}, costs: costs(1, 2), fates: []int{0}, ops: "u", fills: 6, depth: 8, steps: []time.Duration{s1 / 100, s1 / 2}},
	{name: "window settle", shapes: [][]Limit{{moving(4, s1)}}, costs: costs(1, 3), fates: []int{0}, ops: "s", fills: 5, depth: 6, steps: []time.Duration{s1 / 100, s1 / 2}},
	{name: "window joint", shapes: [][]Limit{{moving(3, 2*s1), {Capacity: 1, Rate: 2}}}, costs: []Units{{1, 1}, {2, 1}, {1, 0}, {0, 1}}, fates: []int{0}, ops: "su", fills: 5, depth: 5, steps: []time.Duration{s1 / 2, s1}},
	{name: "two windows", shapes: [][]Limit{{moving(1, s1/2), moving(3, 2*s1)}}, costs: []Units{{1, 1}, {1, 2}, {0, 1}}, fates: []int{0, dead}, ops: "u", fills: 5, depth: 5, steps: []time.Duration{s1 / 2, s1}},
	{name: "window held", shapes: [][]Limit{{moving(2, s1)}}, costs: costs(1, 2), fates: []int{0}, ops: "hu", events: 2, holds: []time.Duration{s1 / 2, 2 * s1}, fills: 5, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "window refused", shapes: [][]Limit{{moving(2, s1), {Capacity: 3, Rate: 1}}}, costs: []Units{{1, 1}, {2, 1}}, fates: []int{0}, ops: "rys", events: 2, holds: []time.Duration{0, 2 * s1}, fills: 5, depth: 5, steps: []time.Duration{s1 / 2, s1}},
	{name: "window late", shapes: [][]Limit{{moving(2, s1)}}, costs: costs(1, 2), fates: []int{0, 1, dead}, ops: "u", fills: 5, depth: 5, steps: []time.Duration{tau, s1 - tau}, tau: tau},
	{name: "window resumed", shapes: [][]Limit{{moving(2, s1)}}, costs: costs(1, 2), fates: []int{0}, ops: "ehr", events: 3, holds: []time.Duration{2 * s1}, fills: 5, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "window back", shapes: [][]Limit{{moving(2, s1)}}, costs: costs(1, 2), fates: []int{0}, ops: "bhs", events: 2, holds: []time.Duration{s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2, 12 * s1}},
	{name: "window changed", shapes: [][]Limit{{named(moving(2, s1))}, {named(moving(3, s1))}, {named(moving(1, 2*s1))}, {named(Limit{Capacity: 1, Rate: 1})}}, costs: costs(1), fates: []int{0}, ops: "cs", events: 2, fills: 5, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "window changed, void", shapes: [][]Limit{{named(moving(1, 2*s1))}, {named(moving(2, s1))}, {named(fixedWindow(2, s1))}}, costs: costs(1), fates: []int{0}, ops: "cvu", events: 2, fills: 5, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "window changed, resumed", shapes: [][]Limit{{named(moving(2, s1)), {Capacity: 1, Rate: 1}}, {named(moving(3, 2*s1)), {Capacity: 1, Rate: 2}}}, costs: []Units{{1, 1}, {2, 0}, {0, 1}}, fates: []int{0}, ops: "ceh", events: 3, holds: []time.Duration{s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2, s1}},
	{name: "window paused", shapes: [][]Limit{{moving(2, s1), {Capacity: 1, Rate: 4}}}, costs: []Units{{1, 1}, {2, 0}}, fates: []int{0, dead}, ops: "pdehu", events: 3, holds: []time.Duration{s1 / 2, 2 * s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2, s1}},
	{name: "fixed paused", shapes: [][]Limit{{fixedWindow(2, s1)}}, costs: costs(1, 2), fates: []int{0}, ops: "pehs", events: 3, holds: []time.Duration{s1 / 2, 2 * s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2, s1}},
	{name: "window, headroom", shapes: [][]Limit{{moving(3, s1), {Capacity: 2, Rate: 2}}}, costs: []Units{{1, 1}, {2, 0}}, fates: []int{0, dead}, ops: "hu", events: 2, holds: []time.Duration{2 * s1}, fills: 5, depth: 5, steps: []time.Duration{s1 / 2, s1}, headroom: 0.5},
	{name: "window, headroom, settle", shapes: [][]Limit{{moving(4, s1)}}, costs: costs(1, 2), fates: []int{0}, ops: "s", fills: 5, depth: 6, steps: []time.Duration{s1 / 100, s1 / 2}, headroom: 0.5},
	{name: "fixed, headroom", shapes: [][]Limit{{fixedWindow(3, s1)}}, costs: costs(1, 2), fates: []int{0}, ops: "sh", events: 1, holds: []time.Duration{2 * s1}, fills: 5, depth: 6, steps: []time.Duration{s1 / 4, s1}, headroom: 0.4},
	{name: "fixed", shapes: [][]Limit{{fixedWindow(2, s1)}}, costs: costs(1, 2), fates: []int{0}, ops: "", fills: 6, depth: 8, steps: []time.Duration{s1 / 4, s1}},
	{name: "fixed returns", shapes: [][]Limit{{fixedWindow(2, s1)}}, costs: costs(1, 2), fates: []int{0}, ops: "su", fills: 5, depth: 6, steps: []time.Duration{s1 / 4, s1}},
	{name: "fixed beside", shapes: [][]Limit{{{Capacity: 4, Rate: 8}, fixedWindow(3, s1)}}, costs: []Units{{1, 1}, {4, 0}}, fates: []int{0}, ops: "hus", events: 2, holds: []time.Duration{s1 / 2, 2 * s1}, fills: 5, depth: 6, steps: []time.Duration{s1 / 5, s1 / 2}},
	{name: "fixed joint", shapes: [][]Limit{{fixedWindow(3, 2*s1), {Capacity: 1, Rate: 2}}}, costs: []Units{{1, 1}, {2, 1}, {0, 1}}, fates: []int{0}, ops: "s", fills: 6, depth: 5, steps: []time.Duration{s1 / 2, s1}},
	{name: "fixed held", shapes: [][]Limit{{fixedWindow(2, s1)}}, costs: costs(1, 2), fates: []int{0}, ops: "her", events: 2, holds: []time.Duration{s1 / 2, 2 * s1}, fills: 5, depth: 5, steps: []time.Duration{s1 / 2, s1}},
}

// No history of the small worlds with windows breaks a limit, to a depth.
func TestSearch_NoSmallHistoryBreaksAWindow(t *testing.T) {
	searchAll(t, 10_000, 1_000_000, 20_000_000, windows, helds)
}

// No long random history breaks a window.
func TestSearch_NoLongHistoryBreaksAWindow(t *testing.T) {
	firsts := []Limit{moving(1, s1), moving(2, s1), moving(3, 2*s1), moving(2, s1/2), moving(4, 3*s1), fixedWindow(2, s1), fixedWindow(3, 2*s1), {Capacity: 2, Rate: 1}}
	seconds := []Limit{{Capacity: 1, Rate: 1}, {Capacity: 3, Rate: 1}, moving(3, 2*s1), moving(2, s1/2)}
	playAll(t, 3, [...]int{300, 0, 10_000, 1_000_000}[deeper()+2], []time.Duration{s1 / 100, tau, s1 / 2, s1, 3 * s1}, func(r *rand.Rand) []Limit {
		shape := []Limit{named(firsts[r.IntN(len(firsts))])}
		if r.IntN(2) == 0 {
			shape = append(shape, seconds[r.IntN(len(seconds))])
			shape[1].Name = "second"
		}
		return shape
	})
}

// helds are small worlds with windows whose units holds do not touch: the first limit is shorter.
var helds = []setting{
	{name: "aged", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(3, 2*s1)}}, costs: []Units{{1, 1}, {1, 2}}, fates: []int{0}, ops: "h", events: 2, holds: []time.Duration{s1 / 2, 3 * s1}, fills: 6, depth: 7, steps: []time.Duration{s1 / 2, s1}},
	{name: "aged, returns", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(3, 2*s1)}}, costs: []Units{{1, 1}, {0, 2}}, fates: []int{0, dead}, ops: "hsu", events: 2, holds: []time.Duration{3 * s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2, s1}},
	{name: "aged, beside", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 2*s1), {Capacity: 3, Rate: 2}}}, costs: []Units{{1, 1, 1}, {1, 0, 2}, {0, 2, 1}}, fates: []int{0}, ops: "h", events: 2, holds: []time.Duration{s1, 4 * s1}, fills: 5, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "aged, late", shapes: [][]Limit{{{Capacity: 1, Rate: 20}, moving(2, 2*s1)}}, costs: []Units{{1, 1}}, fates: []int{0, 1}, ops: "h", events: 2, holds: []time.Duration{tau, 4 * s1}, fills: 5, depth: 7, steps: []time.Duration{tau / 2, 2 * s1}, tau: tau},
	{name: "aged, lenient", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 2*s1)}}, costs: []Units{{1, 1}, {1, 0}, {0, 2}}, fates: []int{0}, ops: "hr", events: 3, holds: []time.Duration{s1, 4 * s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2, 2 * s1}, lenient: true},
	{name: "aged, parts", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 10*s1)}}, costs: []Units{{0, 1}, {1, 0}}, fates: []int{0}, ops: "h", events: 1, holds: []time.Duration{20 * s1}, fills: 4, depth: 7, steps: []time.Duration{s1 / 8, 20 * s1}},
	{name: "aged, resumed", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 2*s1)}}, costs: []Units{{1, 1}, {0, 1}}, fates: []int{0}, ops: "eh", events: 4, holds: []time.Duration{s1, 5 * s1}, fills: 5, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "aged, refused", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 2*s1)}}, costs: []Units{{1, 1}, {0, 1}}, fates: []int{0}, ops: "ry", events: 3, holds: []time.Duration{0, 2 * s1}, fills: 4, depth: 6, steps: []time.Duration{s1 / 2, 2 * s1}},
	{name: "aged, back", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 2*s1)}}, costs: []Units{{1, 1}, {0, 1}}, fates: []int{0}, ops: "bhs", events: 3, holds: []time.Duration{3 * s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2, 2 * s1}},
	{name: "aged, changed", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, named(moving(2, 2*s1))}, {{Capacity: 1, Rate: 4}, named(moving(3, 3*s1))}, {{Capacity: 1, Rate: 4}, named(fixedWindow(2, 2*s1))}}, costs: []Units{{1, 1}, {0, 1}}, fates: []int{0}, ops: "chv", events: 3, holds: []time.Duration{3 * s1}, fills: 4, depth: 6, steps: []time.Duration{s1 / 2, 2 * s1}},
	{name: "fixed parts", shapes: [][]Limit{{{Capacity: 1, Rate: 500}, fixedWindow(2, s1)}}, costs: []Units{{1, 1}}, fates: []int{0}, ops: "h", events: 1, holds: []time.Duration{2 * s1}, fills: 4, depth: 8, steps: []time.Duration{s1 / 100, 2 * s1}},
	{name: "fixed aged", shapes: [][]Limit{{{Capacity: 1, Rate: 4}, fixedWindow(2, 2*s1)}}, costs: []Units{{1, 1}, {0, 1}}, fates: []int{0}, ops: "hes", events: 3, holds: []time.Duration{s1, 3 * s1}, fills: 5, depth: 5, steps: []time.Duration{s1 / 2, s1}},
}

package store

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

const (
	s1  = time.Second
	tau = 50 * time.Millisecond
)

func costs(n ...float64) (all []Units) {
	for _, n := range n {
		all = append(all, Units{n})
	}
	return all
}

func one(capacity, rate float64) []Limit { return []Limit{{Capacity: capacity, Rate: rate}} }

// settings are the small worlds that the searches visit to the end. Each has few kinds of
// operations, so that long histories fit in.
var settings = []setting{
	{name: "settle C1", shapes: [][]Limit{one(1, 1)}, costs: costs(1), fates: []int{0, dead}, ops: "su", fills: 4, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "settle C2", shapes: [][]Limit{one(2, 1)}, costs: costs(1, 2), fates: []int{0}, ops: "s", fills: 5, depth: 7, steps: []time.Duration{s1}},
	{name: "settle C3", shapes: [][]Limit{one(3, 2)}, costs: costs(1, 2), fates: []int{0}, ops: "su", fills: 5, depth: 6, steps: []time.Duration{s1 / 2}},
	{name: "joint", shapes: [][]Limit{{{Capacity: 1, Rate: 0.5}, {Capacity: 3, Rate: 1}}}, costs: []Units{{1, 1}, {1, 3}, {1, 0}, {0, 1}}, fates: []int{0}, ops: "u", fills: 5, depth: 7, steps: []time.Duration{2 * s1}},
	{name: "joint settle", shapes: [][]Limit{{{Capacity: 2, Rate: 1}, {Capacity: 3, Rate: 2}}}, costs: []Units{{1, 3}, {2, 1}, {1, 0}, {0, 2}}, fates: []int{0, dead}, ops: "su", fills: 4, depth: 5, steps: []time.Duration{s1}},
	{name: "hold", shapes: [][]Limit{one(2, 1)}, costs: costs(1, 2), fates: []int{0}, ops: "h", events: 2, holds: []time.Duration{s1, 2 * s1}, fills: 5, depth: 7, steps: []time.Duration{s1 / 2, s1}},
	{name: "refused", shapes: [][]Limit{one(2, 2)}, costs: costs(1, 2), fates: []int{0}, ops: "ry", events: 2, holds: []time.Duration{0, 2 * s1}, fills: 5, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "hold settle", shapes: [][]Limit{one(2, 1)}, costs: costs(1, 2), fates: []int{0, dead}, ops: "hsu", events: 1, holds: []time.Duration{s1}, fills: 3, depth: 5, steps: []time.Duration{s1 / 2, s1}},
	{name: "hold two limits", shapes: [][]Limit{{{Capacity: 1, Rate: 1}, {Capacity: 3, Rate: 1}}}, costs: []Units{{1, 3}, {1, 1}, {0, 1}}, fates: []int{0}, ops: "hr", events: 2, holds: []time.Duration{s1}, fills: 4, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "late", shapes: [][]Limit{one(2, 1)}, costs: costs(1, 2), fates: []int{0, 1, dead}, ops: "u", fills: 4, depth: 5, steps: []time.Duration{tau, s1 - tau}, tau: tau},
	{name: "late hold", shapes: [][]Limit{one(1, 1)}, costs: costs(1), fates: []int{0, 1}, ops: "h", events: 2, holds: []time.Duration{s1 / 2, s1}, fills: 5, depth: 7, steps: []time.Duration{tau, s1 / 2}, tau: tau},
	{name: "late settle two limits", shapes: [][]Limit{{{Capacity: 1, Rate: 1}, {Capacity: 3, Rate: 2}}}, costs: []Units{{1, 3}, {1, 1}, {0, 1}}, fates: []int{0, 1}, ops: "su", fills: 4, depth: 5, steps: []time.Duration{tau, s1}, tau: tau},
	{name: "changed", shapes: [][]Limit{one(2, 1), one(1, 1), one(3, 2), {{Capacity: 2, Rate: 1}, {Capacity: 3, Rate: 2}}}, costs: []Units{{1, 1}, {2, 3}}, fates: []int{0}, ops: "cs", events: 2, fills: 4, depth: 6, steps: []time.Duration{s1}},
	{name: "changed held", shapes: [][]Limit{one(2, 1), one(1, 2)}, costs: costs(1), fates: []int{0, dead}, ops: "chu", events: 2, holds: []time.Duration{s1}, fills: 4, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "changed, void", shapes: [][]Limit{one(2, 1), one(1, 2), one(1, 10), {{Capacity: 2, Rate: 5}, {Capacity: 3, Rate: 2}}}, costs: []Units{{1, 1}, {2, 3}}, fates: []int{0}, ops: "cvsu", events: 2, fills: 4, depth: 6, steps: []time.Duration{s1 - BookingGrace/2, s1}},
	{name: "changed, held, void", shapes: [][]Limit{one(2, 1), one(1, 20)}, costs: costs(1), fates: []int{0, 1}, ops: "cvhu", events: 2, holds: []time.Duration{s1}, fills: 4, depth: 6, steps: []time.Duration{tau, s1 - tau}, tau: tau},
	{name: "changed, resumed", shapes: [][]Limit{{{Capacity: 2, Rate: 4}, {Capacity: 1, Rate: 1}}, {{Capacity: 2, Rate: 8}, {Capacity: 1, Rate: 1}}}, costs: []Units{{0, 1}, {2, 1}, {1, 0}}, fates: []int{0}, ops: "ce", events: 2, fills: 4, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "changed, held, resumed", shapes: [][]Limit{{{Capacity: 2, Rate: 4}, {Capacity: 1, Rate: 10}}, {{Capacity: 2, Rate: 0.5}, {Capacity: 1, Rate: 10}}}, costs: []Units{{2, 1}, {1, 0}}, fates: []int{0}, ops: "ceh", events: 3, holds: []time.Duration{s1}, fills: 3, depth: 6, steps: []time.Duration{s1 / 5, s1}},
	{name: "resumed", shapes: [][]Limit{one(2, 1)}, costs: costs(1, 2), fates: []int{0}, ops: "ehrs", events: 2, holds: []time.Duration{2 * s1}, fills: 4, depth: 5, steps: []time.Duration{s1}},
	{name: "hold lenient", shapes: [][]Limit{one(2, 1)}, costs: costs(1, 2), fates: []int{0}, ops: "hu", events: 2, holds: []time.Duration{s1, 3 * s1}, fills: 5, depth: 6, steps: []time.Duration{s1 / 2, s1}, lenient: true},
	{name: "refused lenient", shapes: [][]Limit{{{Capacity: 1, Rate: 1}, {Capacity: 3, Rate: 2}}}, costs: []Units{{1, 3}, {0, 1}}, fates: []int{0}, ops: "hr", events: 3, holds: []time.Duration{s1, 3 * s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2}, lenient: true},
	{name: "over-settled held", shapes: [][]Limit{one(2, 1)}, costs: costs(2), fates: []int{0}, ops: "sh", events: 2, holds: []time.Duration{s1, 4 * s1}, fills: 3, depth: 7, steps: []time.Duration{5 * s1}, lenient: true},
	{name: "lowered held", shapes: [][]Limit{one(2, 2), one(2, 0.5), {{Capacity: 2, Rate: 0.5}, {Capacity: 3, Rate: 1}}}, costs: []Units{{1, 1}, {2, 1}}, fates: []int{0}, ops: "ch", events: 3, holds: []time.Duration{s1, 3 * s1}, fills: 4, depth: 6, steps: []time.Duration{s1}, lenient: true},
	{name: "paused", shapes: [][]Limit{one(2, 1)}, costs: costs(1, 2), fates: []int{0, dead}, ops: "pdehu", events: 3, holds: []time.Duration{s1, 2 * s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2, s1}},
	{name: "paused, changed", shapes: [][]Limit{one(2, 1), one(3, 2), one(1, 0.5)}, costs: costs(1, 2), fates: []int{0}, ops: "pdces", events: 3, holds: []time.Duration{2 * s1}, fills: 4, depth: 5, steps: []time.Duration{s1 / 2, s1}},
	{name: "headroom", shapes: [][]Limit{one(3, 1)}, costs: costs(1, 2), fates: []int{0, dead}, ops: "su", fills: 4, depth: 5, steps: []time.Duration{s1 / 2, s1}, headroom: 0.4},
	{name: "headroom, two limits", shapes: [][]Limit{{{Capacity: 2, Rate: 1}, {Capacity: 4, Rate: 1}}}, costs: []Units{{1, 1}, {0, 2}}, fates: []int{0}, ops: "hr", events: 2, holds: []time.Duration{s1, 2 * s1}, fills: 5, depth: 6, steps: []time.Duration{s1}, headroom: 0.5},
	{name: "headroom, changed", shapes: [][]Limit{one(3, 1), one(2, 2), one(5, 0.5)}, costs: costs(1, 2), fates: []int{0}, ops: "ces", events: 2, fills: 4, depth: 5, steps: []time.Duration{s1}, headroom: 0.5},
	{name: "headroom, late", shapes: [][]Limit{one(3, 1)}, costs: costs(1), fates: []int{0, 1}, ops: "u", fills: 5, depth: 6, steps: []time.Duration{tau, s1 - tau}, tau: tau, headroom: 0.4},
	{name: "back", shapes: [][]Limit{one(2, 1)}, costs: costs(1, 2), fates: []int{0}, ops: "bhsx", events: 2, holds: []time.Duration{s1}, fills: 4, depth: 5, steps: []time.Duration{s1, 12 * s1}},
}

type search struct {
	nodes atomic.Int64
	// one for each depth, to use again
	moves  [16][]move
	worlds [16]world
	path   []move
}

func (s *search) deepen(w *world, left int) error {
	all := w.moves(s.moves[left][:0])
	s.moves[left] = all
	next := &s.worlds[left]
	for _, m := range all {
		next.become(w)
		s.path = append(s.path, m)
		s.nodes.Add(1)
		if err := next.do(m); err != nil {
			return fmt.Errorf("%s, after %v: %w", w.name, s.path, err)
		}
		if left > 1 {
			if err := s.deepen(next, left-1); err != nil {
				return err
			}
		}
		s.path = s.path[:len(s.path)-1]
	}
	return nil
}

// deeper returns by how many operations the searches go deeper than in CI. With
// DRIPFEED_LONG they take some twenty minutes.
func deeper() int {
	switch {
	case testing.Short() || raced:
		return -2
	case os.Getenv("DRIPFEED_LONG") != "":
		return 1
	}
	return 0
}

// searched searches a world, and with DRIPFEED_LONG a small world deeper still. It returns
// how many histories it has seen.
func searched(t *testing.T, of *setting) int64 {
	for depth := of.depth + deeper(); ; depth++ {
		w := newWorld(of)
		var s search
		begin := time.Now()
		if err := s.deepen(w, depth); err != nil {
			t.Error(err)
		}
		nodes := s.nodes.Load()
		t.Logf("%9d nodes, depth %d, %v: %s, %d waits compared", nodes, depth, time.Since(begin), w.name, w.compared)
		if deeper() <= 0 || nodes >= 2_000_000 || t.Failed() {
			return nodes
		}
	}
}

// searchAll searches small worlds. It wants at least so many histories in CI, and fewer with -short.
func searchAll(t *testing.T, short, ci, long int64, worlds ...[]setting) {
	floor := [...]int64{short, 0, ci, long}[deeper()+2]
	var total, compared int64
	for _, all := range worlds {
		for i := range all {
			compared -= all[i].compared
			total += searched(t, &all[i])
			compared += all[i].compared
		}
	}
	t.Logf("%9d nodes, %d waits compared", total, compared)
	if total < floor || compared < floor/10 {
		t.Errorf("%d nodes and %d waits compared, want at least %d and %d", total, compared, floor, floor/10)
	}
}

// playAll plays long random histories of all operations together. draw draws the limits of one.
func playAll(t *testing.T, seed uint64, rounds int, steps []time.Duration, draw func(*rand.Rand) []Limit) {
	for round := range rounds {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		s := setting{name: fmt.Sprint("round ", round), fates: []int{0, 0, dead}, ops: "suhpdrecbxy", events: 1 + r.IntN(4), fills: 8, depth: 24,
			costs: []Units{{1, 1}, {1, 3}, {2, 1}, {0, 1}, {1, 0}, {0.5, 2}}, steps: steps, holds: []time.Duration{s1 / 2, s1, 2 * s1}}
		for range 4 {
			s.shapes = append(s.shapes, draw(r))
		}
		if round%2 == 0 {
			s.tau, s.fates = tau, []int{0, 1, dead}
		}
		s.lenient, s.headroom = round%4 == 1, float64(round%3)/3
		if slices.ContainsFunc(s.shapes, func(l []Limit) bool { return l[0].Kind == Fixed }) {
			// It is unknown that the first call of the API's window is late, or never leaves, or that
			// the clock has gone back between two steps.
			s.tau, s.fates, s.ops = 0, []int{0}, "suhpdrecxy"
		}
		s.play(t, r)
	}
}

// The search visits every history of the small worlds, to a depth. No departure is more
// than the limits allow, and no wait is longer than they demand.
func TestSearch_NoSmallHistoryBreaksALimit(t *testing.T) {
	searchAll(t, 30_000, 1_000_000, 60_000_000, settings)
}

// No long random history breaks a limit.
func TestSearch_NoLongHistoryBreaksALimit(t *testing.T) {
	shapes := [][]Limit{
		one(1, 1), one(2, 1), one(3, 2), one(2, 0.5), {{Capacity: 1, Rate: 1}, {Capacity: 3, Rate: 1}}, {{Capacity: 2, Rate: 1}, {Capacity: 3, Rate: 2}}, {{Capacity: 1, Rate: 0.5}, {Capacity: 3, Rate: 1}}, {{Capacity: 3, Rate: 1}, {Capacity: 2, Rate: 2}},
	}
	playAll(t, 1, [...]int{500, 0, 30_000, 2_000_000}[deeper()+2], []time.Duration{tau, s1 / 2, s1, 3 * s1}, func(r *rand.Rand) []Limit {
		return shapes[r.IntN(len(shapes))]
	})
}

// play plays one random history of a world.
func (s *setting) play(t *testing.T, r *rand.Rand) {
	w := newWorld(s)
	var path, all []move
	for range s.depth {
		all = w.moves(all[:0])
		m := all[r.IntN(len(all))]
		if r.IntN(3) == 0 { // else most moves would be settles
			m = move{'t', 0, int8(r.IntN(len(s.steps)))}
		}
		path = append(path, m)
		if err := w.do(m); err != nil {
			t.Fatalf("%s, %v, after %v: %v", s.name, s.shapes, path, err)
		}
	}
}

// Histories that once broke a limit: what a process that has not heard of a Resume lets leave counts,
// also late, at the end of a pause, and after a second Resume.
func TestSearch_ResumeCountsWhatOthersLetLeave(t *testing.T) {
	resume, hold := move{'e', 0, 0}, func(i int8) move { return move{'h', 0, i} }
	fill, wait := func(cost, fate int8) move { return move{'f', cost, fate} }, func(step int8) move { return move{'t', 0, step} }
	late := setting{shapes: [][]Limit{{moving(2, s1)}}, costs: costs(1, 2), fates: []int{0, 1}, holds: []time.Duration{3 * s1 / 2}, steps: []time.Duration{tau / 5, s1, s1 / 2}, tau: tau}
	paused := setting{shapes: [][]Limit{one(1, 1)}, costs: costs(1), fates: []int{0, 1}, holds: []time.Duration{s1 / 2}, steps: []time.Duration{s1 / 2, s1}, tau: tau}
	aged := setting{shapes: [][]Limit{{{Capacity: 1, Rate: 4}, moving(2, 2*s1)}}, costs: []Units{{1, 1}, {0, 1}}, fates: []int{0}, holds: []time.Duration{s1, 5 * s1}, steps: []time.Duration{s1 / 2, s1}}
	for name, c := range map[string]struct {
		setting
		path []move
	}{
		"a hold between two":        {aged, []move{fill(0, 0), fill(0, 0), resume, hold(0), resume, fill(0, 0), wait(0)}},
		"and a second has passed":   {aged, []move{fill(0, 0), fill(0, 0), resume, hold(1), wait(0), wait(1), resume, fill(1, 0)}},
		"late in a hold":            {late, []move{fill(1, 1), wait(0), {'h', -1, 0}, wait(1), resume, wait(1), fill(1, 0), wait(2)}},
		"due at the end of a pause": {paused, []move{fill(0, 0), fill(0, 0), wait(0), {'p', -1, 0}, resume, fill(0, 0), wait(1)}},
	} {
		w := newWorld(&c.setting)
		for _, m := range c.path {
			if err := w.do(m); err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
		}
	}
}

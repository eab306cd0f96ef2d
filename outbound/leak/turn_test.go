package leak

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// turn has another worker come, with limits of its own, as Stored.load does.
func (w *world) turn(to int8) {
	old, dial := w.limits(), w.state.Dial()
	if to == w.versions[0] {
		return
	}
	w.versions[0] = to
	for i, l := range w.limits() {
		was, level, at := old[i], w.state.Level[i], dial
		if was.Capacity == 0 {
			was, level, at = w.parked[i].Limit, w.parked[i].level, w.parked[i].dial
		}
		switch {
		case l.Capacity == 0 && old[i].Capacity > 0:
			w.parked[i] = parked{was, level, at}
			fallthrough
		case l.Capacity == 0 || was.Capacity == 0:
			w.state.Level[i] = Level{}
		default:
			w.state.Level[i] = w.state.Load(level, at, &was, &l)
		}
	}
	w.state.Turn(w.limits())
}

// shared replays the departures through the largest shape of each limit that any worker
// has. A limit that is the same for all workers is kept exactly.
func (w *world) shared(slack time.Duration) error {
	for i := range w.shapes[0] {
		var most Limit
		for _, limits := range w.shapes {
			most = both(most, limits[i])
		}
		if most.Capacity == 0 { // of two kinds
			continue
		}
		if err := w.replay(i, most, slack, 0, len(w.shapes)); err != nil {
			return err
		}
	}
	return nil
}

var none = Limit{Capacity: 0, Rate: 1}

// turns are worlds of workers with different limits for one key, as while a release rolls
// out.
var turns = []setting{
	{name: "two rates", shapes: [][]Limit{one(2, 1), one(2, 2)}, costs: costs(1, 2), fates: []int{0}, ops: "su", fills: 4, depth: 6, steps: []time.Duration{s1}},
	{name: "two capacities", shapes: [][]Limit{one(3, 1), one(1, 1)}, costs: costs(1, 2), fates: []int{0, dead}, ops: "sue", events: 1, fills: 4, depth: 5, steps: []time.Duration{s1}},
	{name: "two shapes held", shapes: [][]Limit{one(2, 1), one(1, 2)}, costs: costs(1, 2), fates: []int{0}, ops: "shr", events: 2, holds: []time.Duration{s1}, fills: 4, depth: 6, steps: []time.Duration{s1 / 2, s1}},
	{name: "two shapes late", shapes: [][]Limit{one(2, 1), one(1, 2)}, costs: costs(1, 2), fates: []int{0, 1}, ops: "u", fills: 4, depth: 6, steps: []time.Duration{tau, s1}, tau: tau},
	{name: "renamed", shapes: [][]Limit{{{Capacity: 1, Rate: 1}, {Capacity: 2, Rate: 1}, none}, {{Capacity: 1, Rate: 1}, none, {Capacity: 3, Rate: 2}}}, costs: []Units{{1, 2, 2}, {0, 1, 1}}, fates: []int{0}, ops: "su", fills: 4, depth: 6, steps: []time.Duration{s1}},
	{name: "renamed held", shapes: [][]Limit{{{Capacity: 1, Rate: 1}, {Capacity: 2, Rate: 1}, none}, {{Capacity: 1, Rate: 1}, none, {Capacity: 3, Rate: 2}}}, costs: []Units{{1, 2, 2}, {0, 1, 1}}, fates: []int{0}, ops: "hu", events: 2, holds: []time.Duration{s1}, fills: 4, depth: 6, steps: []time.Duration{s1}},
	{name: "renamed resumed", shapes: [][]Limit{{{Capacity: 1, Rate: 1}, {Capacity: 2, Rate: 1}, none}, {{Capacity: 1, Rate: 1}, none, {Capacity: 3, Rate: 2}}}, costs: []Units{{1, 2, 2}, {0, 1, 1}}, fates: []int{0}, ops: "he", events: 3, holds: []time.Duration{2 * s1}, fills: 4, depth: 7, steps: []time.Duration{s1}},
	{name: "two rates resumed", shapes: [][]Limit{{{Capacity: 1, Rate: 0.5}, {Capacity: 2, Rate: 1}}, {{Capacity: 1, Rate: 1}, {Capacity: 2, Rate: 0.5}}}, costs: []Units{{1, 2}, {1, 0}, {0, 1}}, fates: []int{0}, ops: "he", events: 2, holds: []time.Duration{2 * s1}, fills: 4, depth: 6, steps: []time.Duration{tau, s1}},
	{name: "three", shapes: [][]Limit{{{Capacity: 2, Rate: 1}, {Capacity: 1, Rate: 2}}, {{Capacity: 2, Rate: 2}, none}, {none, {Capacity: 3, Rate: 1}}}, costs: []Units{{1, 1}, {2, 3}}, fates: []int{0}, ops: "su", fills: 4, depth: 6, steps: []time.Duration{s1}},
	{name: "back", shapes: [][]Limit{{{Capacity: 2, Rate: 1}, none}, {none, {Capacity: 2, Rate: 2}}}, costs: []Units{{1, 1}, {2, 2}}, fates: []int{0}, ops: "bs", events: 2, fills: 4, depth: 6, steps: []time.Duration{s1}},
}

// The search visits every history of the worlds in which workers disagree, to a depth.
func TestNoSmallHistoryOfWorkersWhoDisagreeBreaksALimit(t *testing.T) {
	for i := range turns {
		turns[i].workers = true
		searched(t, &turns[i])
	}
}

// The histories are long and random, of all operations together.
func TestNoLongHistoryOfWorkersWhoDisagreeBreaksALimit(t *testing.T) {
	rounds := [...]int{300, 0, 10_000, 600_000}[deeper()+2]
	limits := []Limit{{Capacity: 1, Rate: 1}, {Capacity: 2, Rate: 1}, {Capacity: 3, Rate: 2}, {Capacity: 2, Rate: 0.5}, {Capacity: 1, Rate: 4}, none}
	for round := range rounds {
		r := rand.New(rand.NewPCG(2, uint64(round)))
		s := setting{name: fmt.Sprint("round ", round), fates: []int{0, 0, dead}, ops: "suhryeb", events: 1 + r.IntN(4), fills: 8, depth: 24,
			costs: []Units{{1, 1, 1}, {1, 3}, {2, 1, 2}, {0, 1}, {1, 0}, {0.5, 2}, {0, 0, 1}}, workers: true,
			steps: []time.Duration{tau, s1 / 2, s1, 3 * s1}, holds: []time.Duration{s1 / 2, s1, 2 * s1}}
		for range 2 + r.IntN(2) {
			var shape []Limit
			for range 3 {
				shape = append(shape, limits[r.IntN(len(limits))])
			}
			shape[r.IntN(3)] = Limit{Capacity: 2, Rate: 1}
			s.shapes = append(s.shapes, shape)
		}
		if round%2 == 0 {
			s.tau, s.fates = tau, []int{0, 1, dead}
		}
		s.play(t, r)
	}
}

// A store forgets a key after Expire. What a worker with a short window tells last must leave
// the units in it that count for a worker with a long one.
func TestAKeyIsKeptForTheLongestWindowOfItsWorkers(t *testing.T) {
	long := []Limit{{Kind: Moving, Capacity: 10, Rate: 10. / 3600, Window: time.Hour}}
	short := []Limit{{Kind: Moving, Capacity: 5, Rate: 5, Window: time.Second}}
	var s Stored
	op := Op{Limits: long, Action: Book, Costs: []Units{{1}}}
	op.Apply(&s, 0)
	op.Limits = short
	now := 10 * time.Second
	r := op.Apply(&s, now)
	if r.Expire != time.Hour {
		t.Errorf("a call of an hour's window: to be kept for %v, want 1h", r.Expire)
	}
	op = Op{Limits: short}
	if r := op.Apply(&s, now+time.Hour-1); r.Expire != 1 {
		t.Errorf("a nanosecond before the end of the window: to be kept for %v", r.Expire)
	}
	if r := op.Apply(&s, now+time.Hour); r.Expire != 0 {
		t.Errorf("at the end of the window: to be kept for %v", r.Expire)
	}
}

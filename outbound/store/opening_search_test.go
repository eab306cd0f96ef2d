package store

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
	"time"
)

// A booking leaves numbers that a store can read again: with any weight, and for a cost above a capacity that was lowered.
func TestOpening_ExtremesLeaveTheKeySound(t *testing.T) {
	window := func(n float64) []Limit {
		return []Limit{{Kind: Window, Capacity: n, Rate: n / 60, Window: time.Minute}}
	}
	for _, weight := range []float64{math.NaN(), math.Inf(-1), 5e-324, 1e-300, 1, 1e300, math.MaxFloat64, math.Inf(1)} {
		var s Stored
		for i, op := range []Op{
			{Limits: window(10), Costs: []Units{{6}}},
			{Limits: window(10), Costs: []Units{{6}, {6}, {1}}, Wait: time.Hour, Horizon: time.Hour, Claim: math.Inf(1)},
			{Limits: window(10), Costs: []Units{{6}, {6}, {1}}, Wait: time.Hour, Horizon: time.Hour, Claim: 1, Bid: Bid{Last: true}},
			{Limits: window(100), Costs: []Units{{60}}, Wait: math.MaxInt64, Claim: 1},
		} {
			op.Action, op.Number, op.Weight = Book, s.Number, weight
			if r := op.Apply(&s, time.Duration(i)*time.Second); r.Corrupt {
				t.Fatalf("weight %v, step %d: corrupt", weight, i)
			}
			data, err := s.MarshalBinary()
			if err == nil {
				err = new(Stored).UnmarshalBinary(data)
			}
			if err != nil {
				t.Errorf("weight %v, step %d: %v, %+v, lead %v", weight, i, err, s.Opening, s.Lead)
			}
		}
	}
}

// sharers are processes that wait for what a limit frees at one time.
type sharers struct {
	key    Stored
	limit  Limit
	now    time.Duration
	opens  time.Duration
	weight []float64
	bids   []Bid
	booked []float64
	asked  []int
	few    int // this process has two calls only
}

// ask lets a process book.
func (w *sharers) ask(i, calls int) {
	op := Op{Limits: []Limit{w.limit}, Action: Book, Wait: w.opens + time.Second - w.now, Horizon: 100 * time.Millisecond, Weight: w.weight[i], Bid: w.bids[i], Claim: 1}
	if op.Periods = []Period{{600, 660, 720}}; w.now >= 660*time.Second {
		op.Periods[0] = Period{660, 720, 780}
	}
	if i == w.few {
		calls = min(calls, 2-int(w.booked[i]))
		op.Bid.Last = true
	}
	if calls == 0 {
		return
	}
	op.Costs = slices.Repeat([]Units{{1}}, calls)
	r := op.ApplyAt(&w.key, w.now, w.now)
	w.bids[i] = r.Bid
	w.booked[i] += float64(len(r.Charges))
}

// Of what opens at one time each process that asks gets its share but for rounding, whichever order they ask in, which
// of them end, and which have few calls. A while later the rest is for the first that asks.
func TestOpening_NoOrderTakesAShare(t *testing.T) {
	const n = 24
	limits := []Limit{windowOf(n, time.Minute), {Name: "f", Kind: Fixed, Capacity: n, Rate: n / 60., Window: time.Minute}, {Name: "d", Kind: Hourly, Capacity: n}}
	histories, depth := 0, 5
	if os.Getenv("DRIPFEED_LONG") != "" {
		depth = 8
	}
	for _, weight := range [][]float64{{1, 1, 1}, {1, 2, 9}, {3, 0.5, 0.1}} {
		for k := range limits {
			for few := -1; few < 2; few++ {
				for code := range int(math.Pow(3, float64(depth))) {
					w := &sharers{limit: limits[k], weight: weight, bids: make([]Bid, 3), booked: make([]float64, 3), asked: make([]int, 3), few: few}
					histories++
					full := Op{Limits: []Limit{w.limit}, Action: Book, Costs: slices.Repeat([]Units{{1}}, n), Periods: []Period{{600, 660, 720}}}
					if w.now = 602 * time.Second; len(full.Apply(&w.key, w.now).Charges) != n {
						t.Fatal("the limit is not full")
					}
					if w.opens = 662 * time.Second; limits[k].Kind == Hourly {
						w.opens = 661 * time.Second
					}
					w.now = 610 * time.Second
					for i := range weight {
						w.ask(i, 1)
					}
					begin := w.opens - 10*time.Millisecond // a window is booked before it opens
					if k > 0 {
						begin = w.opens
					}
					order := ""
					for j := range depth { // those that have few calls leave before others ask again
						i := code % 3
						code /= 3
						order += fmt.Sprint(i)
						w.now = begin + time.Duration(j)*time.Millisecond
						w.ask(i, n)
						w.asked[i]++
					}
					sum := weight[0] + weight[1] + weight[2]
					for i, asks := range w.asked {
						share := n * weight[i] / sum
						if i == few {
							share = min(share, 2)
						}
						if asks > 0 && w.booked[i] < share-1.5 {
							t.Fatalf("%v, weights %v, few %d, order %s: process %d has %v of %v", w.limit.Kind, weight, few, order, i, w.booked[i], share)
						}
					}
					w.now = w.opens + shareTime
					rest := n - w.booked[0] - w.booked[1] - w.booked[2]
					last := (few + 1) % 3
					before := w.booked[last]
					if w.ask(last, n); w.booked[last]-before != rest {
						t.Fatalf("%v, weights %v, few %d, order %s: %v of the rest of %v", w.limit.Kind, weight, few, order, w.booked[last]-before, rest)
					}
				}
			}
		}
	}
	t.Logf("%d histories", histories)
}

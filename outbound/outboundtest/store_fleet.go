package outboundtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

var fleetCases = []storeCase{
	{sentence: "in any interval at most the capacity and what leaks meanwhile leaves, however many ask", check: checkRate, workers: 4},
	{sentence: "in any interval of a window's length at most n leave, however many ask", check: checkWindowRate, workers: 4},
	{sentence: "in any interval at most what the limits allow leaves, however many book, return, move and settle", check: checkConcurrent, workers: 4},
	{sentence: "when Update has returned, the store does not look at op", check: checkLeaves},
	{sentence: "When is the time at which the state was true", check: checkWhen},
}

// workers returns the test's stores if they share one state. Else it returns the first store as
// many times.
func (e *exam) workers() []store.Store {
	e.Helper()
	key, limits := e.key(), []store.Limit{slow(1)}
	for i, s := range e.stores {
		r, err := s.Update(bg, key, &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1}}})
		if err != nil {
			e.Fatalf("the contract says %q: %v", e.sentence, err)
		}
		if i > 0 && len(r.Charges) > 0 {
			return slices.Repeat(e.stores[:1], len(e.stores))
		}
	}
	return e.stores
}

// trip is a call that was admitted somewhere between these times.
type trip struct{ sent, arrived time.Time }

// callers is how many callers rush.
const callers = 16

// rush has callers ask for 300 ms, and returns the calls that were admitted.
func (e *exam) rush(limit store.Limit) (admitted []trip) {
	key, limits := e.key(), []store.Limit{limit}
	stores := e.workers()
	var mu sync.Mutex
	var all sync.WaitGroup
	begin := time.Now()
	for i := range callers {
		all.Go(func() {
			s := stores[i%len(stores)]
			for time.Since(begin) < 300*time.Millisecond {
				sent := time.Now()
				r, err := s.Update(bg, key, &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1}}})
				if err != nil {
					e.failf("%v", err)
					return
				}
				if len(r.Charges) > 0 {
					mu.Lock()
					admitted = append(admitted, trip{sent, time.Now()})
					mu.Unlock()
				}
				time.Sleep(500*time.Microsecond + rand.N(time.Millisecond))
			}
		})
	}
	all.Wait()
	if len(admitted) == 0 {
		e.failf("no call was admitted")
	}
	return admitted
}

// checkRate lets callers rush. It counts the calls admitted between a request and a later reply,
// so it does not matter how long trips take.
func checkRate(e *exam) {
	const capacity, perSecond = 10, 500
	admitted := e.rush(leaky(capacity, perSecond))
	slices.SortFunc(admitted, func(a, b trip) int { return a.arrived.Compare(b.arrived) })
	for _, first := range admitted {
		n := 0
		for _, t := range admitted {
			if t.sent.Before(first.sent) {
				continue
			}
			n++
			// A thousandth is for clocks that do not run alike.
			if w := t.arrived.Sub(first.sent); float64(n) > capacity+perSecond*1.001*w.Seconds()+0.01 {
				e.failf("%d calls left within %v, from a capacity of %d and %d per second; %d in all", n, w, capacity, perSecond, len(admitted))
				return
			}
		}
	}
}

// checkWindowRate lets callers rush, as rate does.
func checkWindowRate(e *exam) {
	const n, w = 20, 80 * time.Millisecond
	admitted := e.rush(moving(n, w))
	for _, first := range admitted {
		in := 0
		for _, t := range admitted {
			if !t.sent.Before(first.sent) && t.arrived.Sub(first.sent) < w-w/1000 {
				in++
			}
		}
		if in > n {
			e.failf("%d calls left within %v, want %d; %d in all", in, w, n, len(admitted))
			return
		}
	}
}

// checkConcurrent lets callers book ahead, return, move and settle what they have booked. The
// history of the departures is judged by the key's dial, because no call has to be late.
func checkConcurrent(e *exam) {
	const window = 80 * time.Millisecond
	limits := []store.Limit{leaky(8, 400), moving(30, window)}
	key, stores := e.key(), e.workers()
	var mu sync.Mutex
	var left []store.Charge // N is what each has cost
	var booked []int64
	var all sync.WaitGroup
	begin := time.Now()
	for i := range callers {
		all.Go(func() {
			s := stores[i%len(stores)]
			dice := rand.New(rand.NewPCG(uint64(i), 3))
			var mine []store.Charge
			for time.Since(begin) < 250*time.Millisecond {
				op := store.Op{Limits: limits, Action: store.Book, Wait: 200 * time.Millisecond, Horizon: 50 * time.Millisecond}
				for range 1 + dice.IntN(2) {
					n := float64(1 + dice.IntN(3))
					op.Costs = append(op.Costs, store.Units{n, n})
				}
				what := dice.IntN(6)
				var of *store.Charge // the last of mine, which may have left, or may not be returned
				if len(mine) > 0 {
					of = &mine[len(mine)-1]
				}
				switch {
				case of == nil || of.Settled:
				case what == 0:
					op.Move = of
				case what == 1:
					op.Unused = []store.Charge{*of}
				case what == 2: // it has cost less
					op.Reports = []store.Report{{Kind: store.Settled, Charge: of, Used: store.Units{1, 1}}}
				}
				r, err := s.Update(bg, key, &op)
				if err != nil {
					e.failf("%v", err)
					return
				}
				if r.Moved || op.Unused != nil {
					mine = mine[:len(mine)-1] // it never left, or gave nothing back
				} else if len(op.Reports) > 0 {
					of.N, of.Settled = store.Units{1, 1}, true
				}
				mine = append(mine, r.Charges...)
				mu.Lock()
				for _, c := range r.Charges {
					booked = append(booked, c.ID)
				}
				mu.Unlock()
				time.Sleep(200*time.Microsecond + rand.N(time.Millisecond))
			}
			mu.Lock()
			defer mu.Unlock()
			left = append(left, mine...)
		})
	}
	all.Wait()
	slices.SortFunc(left, func(a, b store.Charge) int { return int(a.ID - b.ID) })
	var history [2]History
	for i, c := range left {
		if i > 0 && c.Place < left[i-1].Place {
			e.failf("booking %d leaves %v before booking %d", c.ID, left[i-1].Place-c.Place, left[i-1].ID)
		}
		for j := range history {
			history[j].Add(time.Unix(0, int64(c.Place)), c.N[j])
		}
	}
	const round = 2 * time.Microsecond // of stores that keep microseconds
	if err := history[0].Check(limits[0].Capacity, limits[0].Rate, limits[0].Rate*round.Seconds()); err != nil {
		e.failf("%v; %d calls in all", err, len(left))
	}
	if err := history[1].CheckWindow(limits[1].Capacity, window-round); err != nil {
		e.failf("%v; %d calls in all", err, len(left))
	}
	slices.Sort(booked)
	r := e.ask(key, &store.Op{Limits: limits})
	if n := len(slices.Compact(slices.Clone(booked))); n != len(booked) || int64(n) != r.State.IDs {
		e.failf("%d bookings have %d numbers, and the key has given %d", len(booked), n, r.State.IDs)
	}
	if len(left) < callers {
		e.failf("%d calls left in all", len(left))
	}
}

// checkLeaves has callers give up, and use again the memory to which their operations point.
func checkLeaves(e *exam) {
	key, limits := e.key(), []store.Limit{slow(1000)}
	var mu sync.Mutex
	known, unknown := 0, 0
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var into [1]store.Charge
			costs := make([]store.Units, 1)
			for range 20 {
				ctx, cancel := context.WithCancel(bg)
				stop := time.AfterFunc(1+rand.N(500*time.Microsecond), cancel)
				costs[0] = store.Units{1}
				op := store.Op{Limits: limits, Action: store.Book, Costs: costs, Into: into[:0]}
				r, err := e.store.Update(ctx, key, &op)
				if err != nil && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) {
					e.failf("%v, with ctx %v", err, ctx.Err())
				}
				mu.Lock()
				if err != nil {
					unknown++
				} else {
					known += len(r.Charges)
				}
				mu.Unlock()
				costs[0] = store.Units{1e9}
				into[0] = store.Charge{}
				op = store.Op{}
				stop.Stop()
				cancel()
			}
		})
	}
	all.Wait()
	r := e.ask(key, &store.Op{Limits: limits})
	if level := r.State.Level[0]; level < float64(known)-0.01 || level > float64(known+unknown)+0.01 {
		e.failf("level %v, of %d calls that were admitted and %d of which it is unknown", level, known, unknown)
	}
}

// checkWhen looks several times, because a trip may take any time.
func checkWhen(e *exam) {
	key, limits := e.key(), []store.Limit{slow(10)}
	const slack = 20 * time.Millisecond // of a store that estimates
	var early, late time.Duration
	for range 8 {
		sent := time.Now()
		r := e.ask(key, &store.Op{Limits: limits, Action: store.Book, Costs: []store.Units{{1}}})
		arrived := time.Now()
		if early, late = sent.Sub(r.When), r.When.Sub(arrived); r.When.IsZero() || early <= slack && late <= slack {
			return
		}
	}
	e.failf("eight states were true %v before they were asked for, or %v after they had come", max(0, early), max(0, late))
}

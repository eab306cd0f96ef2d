package outboundtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// workers returns the exam's stores if they share one state. Else it returns the first
// store as many times.
func (e *exam) workers() []leak.Store {
	key := e.key()
	limits := []leak.Limit{law(slow(1))}
	for i, s := range e.stores {
		r, err := s.Update(bg, key, &leak.Op{Limits: limits, Action: leak.Book, Costs: []leak.Units{{1}}})
		if err != nil {
			e.Fatalf("the contract says %q: %v", e.sentence, err)
		}
		if i > 0 && len(r.Charges) > 0 {
			return slices.Repeat(e.stores[:1], len(e.stores))
		}
	}
	return e.stores
}

// law returns a limit as a store knows it.
func law(l outbound.Limit) leak.Limit {
	return leak.Limit{Name: l.Name, Unit: int32(l.Unit), Capacity: l.Capacity, Rate: l.LeakRate}
}

// trip is a call that was admitted somewhere between these times.
type trip struct{ sent, arrived time.Time }

// rush has sixteen callers ask for 300 ms, and returns the calls that were admitted.
func (e *exam) rush(limit leak.Limit) (admitted []trip) {
	const callers = 16
	key, limits := e.key(), []leak.Limit{limit}
	stores := e.workers()
	var mu sync.Mutex
	var all sync.WaitGroup
	begin := time.Now()
	for i := range callers {
		all.Go(func() {
			s := stores[i%len(stores)]
			for time.Since(begin) < 300*time.Millisecond {
				sent := time.Now()
				r, err := s.Update(bg, key, &leak.Op{Limits: limits, Action: leak.Book, Costs: []leak.Units{{1}}})
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
	return admitted
}

// rate lets callers rush. It counts the calls admitted between a request
// and a later reply, so it does not matter how long trips take.
func (e *exam) rate() {
	const capacity, perSecond = 10, 500
	admitted := e.rush(leak.Limit{Capacity: capacity, Rate: perSecond})
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
				e.failf("%d calls went within %v, from a capacity of %d and %d per second; %d in all", n, w, capacity, perSecond, len(admitted))
				return
			}
		}
	}
}

// leaves has callers give up, and at once use again the memory to which their operations
// point.
func (e *exam) leaves() {
	key, limits := e.key(), []leak.Limit{law(slow(1000))}
	var mu sync.Mutex
	known, unknown := 0, 0
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var into [1]leak.Charge
			costs := make([]leak.Units, 1)
			for range 20 {
				ctx, cancel := context.WithCancel(bg)
				stop := time.AfterFunc(1+rand.N(500*time.Microsecond), cancel)
				costs[0] = leak.Units{1}
				op := leak.Op{Limits: limits, Action: leak.Book, Costs: costs, Into: into[:0]}
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
				costs[0] = leak.Units{1e9}
				into[0] = leak.Charge{}
				op = leak.Op{}
				stop.Stop()
				cancel()
			}
		})
	}
	all.Wait()
	s, err := e.share(key, slow(1000)).State(bg)
	if err != nil || s.Level < float64(known)-0.01 || s.Level > float64(known+unknown)+0.01 {
		e.failf("level %v, %v, of %d that went and %d of which nobody knows", s.Level, err, known, unknown)
	}
}

// tells looks several times, because a trip may take any time.
func (e *exam) tells() {
	key, limits := e.key(), []leak.Limit{law(slow(10))}
	const slack = 20 * time.Millisecond // of a store that estimates
	var early, late time.Duration
	for range 8 {
		sent := time.Now()
		r, err := e.store.Update(bg, key, &leak.Op{Limits: limits, Action: leak.Book, Costs: []leak.Units{{1}}})
		arrived := time.Now()
		if err != nil {
			e.failf("%v", err)
			return
		}
		if early, late = sent.Sub(r.When), r.When.Sub(arrived); r.When.IsZero() || early <= slack && late <= slack {
			return
		}
	}
	e.failf("eight states were true %v before they were asked for, or %v after they had come", max(0, early), max(0, late))
}

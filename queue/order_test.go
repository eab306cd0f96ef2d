package queue

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// line lets calls arrive one by one and notes the order in which they go.
type line struct {
	q     *Queue
	mu    sync.Mutex
	order []int
	at    []time.Time
}

func (l *line) arrive(ctx context.Context, i int, c outbound.Cost, then func(p *outbound.Permit)) {
	go func() {
		p, err := l.q.Acquire(ctx, c)
		if err != nil {
			return
		}
		l.mu.Lock()
		l.order = append(l.order, i)
		l.at = append(l.at, time.Now())
		l.mu.Unlock()
		if then != nil {
			then(&p)
		}
		p.Done()
	}()
	synctest.Wait()
}

func (l *line) went() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.order)
}

// sorted reports whether the calls went in order. It ignores swaps of calls that went at one
// instant.
func (l *line) sorted() bool {
	for i := range l.order[1:] {
		if l.order[i] > l.order[i+1] && l.at[i] != l.at[i+1] {
			return false
		}
	}
	return true
}

func TestOrder_IsThatOfArrivalAtAnyRate(t *testing.T) {
	for _, rate := range []float64{1000, 20_000, 200_000} {
		for range 30 {
			synctest.Test(t, func(t *testing.T) {
				l := line{q: New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: rate}), Config{})}
				for i := range 65 {
					l.arrive(bg, i, outbound.Cost{1}, nil)
				}
				pass(time.Second)
				if len(l.order) != 65 || !l.sorted() {
					t.Errorf("at %v/s: order %v", rate, l.order)
				}
			})
		}
	}
}

// This holds whatever the others cost and whichever of them cancel.
func TestOrder_SmallCallOvertakesNoLargeOne(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			limit := outbound.Limit{Capacity: 50, LeakRate: 100}
			l := line{q: New(bucket(t, limit), Config{})}
			var h outboundtest.History
			cancelled := 0
			for i := range 300 {
				c := outbound.Cost{1}
				if rnd.IntN(4) == 0 {
					c[0] = float64(1 + rnd.IntN(50))
				}
				ctx, cancel := context.WithCancel(bg)
				l.arrive(ctx, i, c, func(*outbound.Permit) { h.Add(time.Now(), c[0]) })
				if rnd.IntN(5) == 0 {
					cancelled++
					time.AfterFunc(time.Duration(rnd.Int64N(int64(5*time.Second))), cancel)
				} else {
					defer cancel()
				}
				time.Sleep(time.Duration(rnd.Int64N(int64(20 * time.Millisecond))))
			}
			pass(time.Hour)
			s := l.q.Stats()
			if !l.sorted() || len(l.order) != 300-int(s.Cancelled) || s.Cancelled == 0 {
				t.Errorf("seed %d: %d went, %d cancelled, in order: %v", seed, len(l.order), s.Cancelled, l.sorted())
			}
			if err := h.Check(limit.Capacity, limit.LeakRate, 0); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
	}
}

// The next call uses the place of a call that cancels. If that was booked for another cost
// it goes back, and the next call books its own.
func TestOrder_CancelledHeadLeavesItsReservation(t *testing.T) {
	for _, next := range []float64{3, 1, 10} {
		synctest.Test(t, func(t *testing.T) {
			l := line{q: New(bucket(t, outbound.Limit{Capacity: 10, LeakRate: 1}), Config{})}
			l.arrive(bg, 0, outbound.Cost{10}, nil)
			begin := time.Now()
			ctx, cancel := context.WithCancel(bg)
			l.arrive(ctx, 1, outbound.Cost{3}, nil)
			var waited time.Duration
			l.arrive(bg, 2, outbound.Cost{next}, func(*outbound.Permit) { waited = time.Since(begin) })
			time.Sleep(500 * time.Millisecond)
			cancel()
			pass(time.Minute)
			if want := time.Duration(next) * time.Second; waited != want {
				t.Errorf("behind a cancelled call of 3, one of %v waited %v, want %v", next, waited, want)
			}
		})
	}
}

func TestOrder_QueuesOfOneBucketShareIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := outbound.Limit{Capacity: 2, LeakRate: 100}
		b := bucket(t, limit)
		var h outboundtest.History
		var lines [3]line
		for k := range lines {
			lines[k].q = New(b, Config{})
			for i := range 400 {
				lines[k].arrive(bg, i, outbound.Cost{1}, func(*outbound.Permit) { h.Add(time.Now(), 1) })
			}
		}
		pass(6 * time.Second)
		for k := range lines {
			if n := lines[k].went(); n < 195 || n > 210 {
				t.Errorf("queue %d had %d of 600 places, want a third", k, n)
			}
		}
		pass(6 * time.Second)
		for k := range lines {
			if !lines[k].sorted() || len(lines[k].order) != 400 {
				t.Errorf("queue %d: %d went, in order: %v", k, len(lines[k].order), lines[k].sorted())
			}
		}
		if err := h.Check(limit.Capacity, limit.LeakRate, 0); err != nil {
			t.Error(err)
		}
		if use := h.Use(limit.Capacity, limit.LeakRate); use < 0.998 {
			t.Errorf("%v of the quota used", use)
		}
	})
}

package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// booked is a store that sums up the costs of the places that did not go back.
type booked struct {
	store.Store
	mu  sync.Mutex
	sum float64
}

func (s *booked) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range op.Back {
		s.sum -= c.N[0]
	}
	was := 0.0
	if op.Move != nil {
		was = op.Move.N[0]
	}
	r, err := s.Store.Update(ctx, key, op)
	for i := range r.Charges {
		s.sum += op.Costs[i][0] - was
	}
	return r, err
}

// Calls cancel at any time, during trips as well. The queue forgets none of the others, each
// goes by a place of its own cost, and at the end nothing is booked.
func TestNobodyIsForgottenWhenOthersCancel(t *testing.T) {
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			rate := []float64{5, 20, 100}[rnd.IntN(3)]
			limit := outbound.Limit{Capacity: 10, LeakRate: 10 * rate}
			b := bucket(t, limit)
			store := &booked{Store: store.NewMemory()}
			way := rnd.IntN(30)
			if way > 0 {
				late := func(n int) time.Duration {
					k := uint64(n) * (2*seed + 1)
					return time.Duration(k%4/3*(k%41)) * ms
				}
				b = shared(t, &far{Store: store, way: time.Duration(way) * ms, jitter: 0.1, late: late}, limit)
			}
			q := New(b, Config{})
			var mu sync.Mutex
			went := 0.0
			span := func() time.Duration { return time.Duration(rnd.Float64() * 5 / rate * 1e9) }
			for range 12 {
				ctx, cancel := context.WithCancel(bg)
				cost := outbound.Cost{10}
				if rnd.IntN(4) == 0 {
					cost[0] = 5
				}
				if rnd.IntN(3) == 0 {
					time.AfterFunc(1+span(), cancel)
				} else {
					defer cancel()
				}
				time.AfterFunc(1+span()/2, func() {
					_, err := q.Acquire(ctx, cost)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						went += cost[0]
					}
				})
			}
			pass(time.Minute)
			mu.Lock()
			defer mu.Unlock()
			if way > 0 && store.sum != went {
				t.Errorf("seed %d: calls of %v have gone, by places of %v", seed, went, store.sum)
			}
			s, err := b.State(bg)
			if stats := q.Stats(); stats.Waiting != 0 || stats.Admitted+stats.Cancelled > 12 || s.Level != 0 || err != nil {
				t.Errorf("seed %d: %+v, level %v, %v", seed, stats, s.Level, err)
			}
			if len(q.line.tickets)+len(q.line.unused) != 0 || q.line.unplaced != &q.line.end {
				t.Errorf("seed %d: %d tickets, %d to give back, rest %v", seed, len(q.line.tickets), len(q.line.unused), q.line.unplaced)
			}
			q.Close() // a call that was forgotten would wait for ever
		})
	}
}

// A call's ctx may end at the instant of its place. Then the call is either cancelled, and
// has used nothing, or admitted.
func TestACallThatIsAdmittedAtTheInstantOfItsCancelIsAdmitted(t *testing.T) {
	var outcomes [2]int
	for range 1000 {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 10})
			q := New(b, Config{})
			if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(bg)
			time.AfterFunc(100*ms, cancel)
			_, err := q.Acquire(ctx, outbound.Cost{1})
			synctest.Wait()
			s, _ := b.State(bg)
			level, admitted, cancelled := 1.0, uint64(2), uint64(0)
			if err != nil {
				level, admitted, cancelled = 0, 1, 1
				outcomes[1]++
			} else {
				outcomes[0]++
			}
			if stats := q.Stats(); s.Level != level || stats.Admitted != admitted || stats.Cancelled != cancelled || err != nil && err != context.Canceled {
				t.Errorf("%v, level %v, %+v", err, s.Level, stats)
			}
		})
	}
	if outcomes[0] == 0 || outcomes[1] == 0 {
		t.Errorf("%d admitted, %d cancelled: the test proves nothing", outcomes[0], outcomes[1])
	}
}

// No call goes before the last one that is booked, whatever units that takes. The forecast
// for a newcomer counts that.
func TestAForecastKnowsOfTheLastBooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 100, LeakRate: 100}, outbound.Limit{Capacity: 10, LeakRate: 1, Unit: 1}), Config{})
		for range 2 {
			go q.Acquire(bg, outbound.Cost{1, 10})
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		begin := time.Now()
		var full *outbound.ThrottledError
		_, err := q.Acquire(ctx, outbound.Cost{1})
		if !errors.As(err, &full) || full.RetryAfter != 10*time.Second || time.Since(begin) != 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		pass(time.Minute)
	})
}

// A place that is booked anew keeps its slot.
func TestAPlaceIsBookedAnewWhileAllSlotsAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.InFlight(2), outbound.Limit{Capacity: 10, LeakRate: 1, Unit: 1}), Config{})
		begin := time.Now()
		p, err := q.Acquire(bg, outbound.Cost{1, 10})
		if err != nil {
			t.Fatal(err)
		}
		var waited time.Duration
		go func() {
			if _, err := q.Acquire(bg, outbound.Cost{1, 10}); err != nil {
				t.Error(err)
			}
			waited = time.Since(begin)
		}()
		synctest.Wait()
		time.Sleep(time.Second)
		p.Settle(outbound.Cost{1, 4})
		pass(time.Minute)
		if waited != 4*time.Second {
			t.Errorf("waited %v, want 4s", waited)
		}
		p.Done()
	})
}

// The garbage collector frees the slot of a permit that was dropped without Done. The queue
// asks for that by itself.
func TestAPermitThatWasDroppedFreesItsSlotForACallThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.InFlight(1)), Config{})
		func() {
			if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
		}()
		went := make(chan error, 1)
		go func() {
			_, err := q.Acquire(bg, outbound.Cost{1})
			went <- err
		}()
		synctest.Wait()
		for range 2000 { // the collector does not run in the bubble
			runtime.GC()
			pass(slotCheck)
			if len(went) > 0 {
				break
			}
		}
		if len(went) == 0 {
			q.Close()
			t.Error("still waits")
		}
		if err := <-went; err != nil {
			t.Error(err)
		}
	})
}

// At slow limits a call may be as late as 50 ms, and no later.
func TestALateCallIsOnTimeForFiftyMillisecondsAtMost(t *testing.T) {
	for late, want := range map[time.Duration]uint64{49 * ms: 0, 51 * ms: 1} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.1}), Config{})
			for range 2 {
				go q.Acquire(bg, outbound.Cost{1})
				synctest.Wait()
			}
			time.Sleep(9 * time.Second)
			pause(q, time.Second+late)
			synctest.Wait()
			if s := q.Stats(); s.Late != want {
				t.Errorf("late by %v: %+v", late, s)
			}
			pass(time.Minute)
		})
	}
}

// The first call cancels during a trip, and its place is due before the trip ends. A call that
// costs more must not use it.
func TestAPlaceOfAnotherCostIsNotUsedDuringATrip(t *testing.T) {
	for way := ms; way <= 16*ms; way += 5 * ms {
		for at := 50 * ms; at < 130*ms; at += ms {
			synctest.Test(t, func(t *testing.T) {
				limit := outbound.Limit{Capacity: 10, LeakRate: 10}
				q := New(shared(t, &far{Store: store.NewMemory(), way: way}, limit), Config{})
				var h outboundtest.History
				ctx, cancel := context.WithCancel(bg)
				for i, n := range []float64{10, 1, 10} {
					of := bg
					if i == 1 {
						of = ctx
					}
					go func() {
						if _, err := q.Acquire(of, outbound.Cost{n}); err == nil {
							h.Add(time.Now(), n)
						}
					}()
					time.Sleep(time.Nanosecond)
				}
				time.Sleep(at)
				cancel()
				pass(time.Minute)
				if err := h.Check(limit.Capacity, limit.LeakRate, limit.LeakRate*0.05); err != nil || h.Len() < 2 {
					t.Errorf("%v away, cancelled after %v: %d went, %v", way, at, h.Len(), err)
				}
			})
		}
	}
}

package fallback_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// slow leaks 36 units in an hour.
var slow = outbound.Limit{Capacity: 100, LeakRate: 0.01}

// reconnect mends the link and waits, with a call each second, until the store is used again.
func (w *worker) reconnect() {
	w.Helper()
	w.set(false)
	for range 6 {
		if _, err := w.b.State(background); err != nil {
			w.Error(err)
		}
		time.Sleep(time.Second)
	}
	synctest.Wait()
}

func TestUnitsSpentInAnOutageAreChargedOnReturn(t *testing.T) {
	for spent, want := range map[int]float64{0: 5, 4: 9, 20: 25, 45: 50} {
		synctest.Test(t, func(t *testing.T) {
			m := leak.NewMemory()
			w := newWorker(t, m, &fallback.Store{Share: 0.5}, slow)
			w.set(true)
			if n := w.take(outbound.Cost{1}); n != 0 {
				t.Errorf("%d went at first", n)
			}
			time.Sleep(3 * time.Hour)
			for range spent {
				p, err := w.b.Acquire(background, outbound.Cost{1.5})
				if err != nil {
					t.Fatal(err)
				}
				p.Settle(outbound.Cost{1}) // the call has cost less
				p.Done()
			}
			w.set(false)
			other := outbound.Must(outbound.NewSharedBucket(m, "key", slow))
			if _, err := other.Fillup(background, outbound.Cost{5}); err != nil {
				t.Fatal(err)
			}
			w.reconnect()
			s, err := other.State(background)
			if err != nil || math.Abs(s.Level-want) > 0.5 {
				t.Errorf("spent %d: level %v, %v; want %v", spent, s.Level, err, want)
			}
			w.level(s.Level)
		})
	}
}

func TestAtMostTheCapacityIsChargedAndNoUnitThatHasLeaked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := leak.NewMemory()
		w := newWorker(t, m, &fallback.Store{Share: 1}, outbound.Limit{Capacity: 10, LeakRate: 0.5}, outbound.Limit{Capacity: 1000, LeakRate: 0.4, Name: "long"})
		w.set(true)
		for range 300 { // 120 calls
			w.take(outbound.Cost{1})
			time.Sleep(time.Second)
		}
		w.reconnect()
		all, err := w.b.States(background)
		if err != nil || all[0].Level < 6 || all[0].Level > 10 || math.Abs(all[1].Level-117) > 3 {
			t.Errorf("%+v, %v", all, err)
		}
		w.set(true)
		w.take(outbound.Cost{1})
		time.Sleep(10 * time.Second)
		if n := w.take(outbound.Cost{1}); n != 4 {
			t.Errorf("%d went, want 4", n)
		}
		time.Sleep(2e5 * time.Second)
		w.reconnect()
		if all, err = w.b.States(background); err != nil || all[0].Level+all[1].Level != 0 {
			t.Errorf("after more than the time to drain: %+v, %v", all, err)
		}
	})
}

func TestPermitsGiveBackOnlyToTheirOwnLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.5}, slow)
		before, err := w.b.Acquire(background, outbound.Cost{30})
		if err != nil {
			t.Fatal(err)
		}
		w.set(true)
		before.Settle(outbound.Cost{})
		time.Sleep(24 * time.Hour)
		w.level(50) // the others' shares are full, this worker's is empty
		during, err := w.b.Acquire(background, outbound.Cost{40})
		if err != nil {
			t.Fatal(err)
		}
		early, err := w.b.Acquire(background, outbound.Cost{10})
		if err != nil {
			t.Fatal(err)
		}
		early.Settle(outbound.Cost{2})
		w.level(92)
		w.reconnect()
		s, err := w.b.State(background)
		if err != nil || math.Abs(s.Level-42) > 0.2 {
			t.Errorf("on return %+v, %v; want 42", s, err)
		}
		during.Settle(outbound.Cost{})
		w.level(s.Level)
	})
}

func TestAHoldGoesOnWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.5}, slow)
		if err := w.b.Hold(background, time.Hour); err != nil {
			t.Fatal(err)
		}
		w.set(true)
		var full *outbound.ThrottledError
		if _, err := w.b.Acquire(background, outbound.Cost{1}); !errors.As(err, &full) || !full.Held || full.RetryAfter < time.Hour {
			t.Errorf("during the hold: %v", err)
		}
		time.Sleep(59 * time.Minute)
		if n := w.take(outbound.Cost{1}); n != 0 {
			t.Errorf("%d went in a hold", n)
		}
		time.Sleep(time.Minute + time.Second)
		if n := w.take(outbound.Cost{1}); n != 1 {
			t.Errorf("%d went after the hold, want 1", n)
		}
	})
}

// Three refusals of one burst of calls that the store had admitted count once.
func TestARefusalCountsInTheShareAndInTheStore(t *testing.T) {
	for _, d := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			m := leak.NewMemory()
			w := newWorker(t, m, &fallback.Store{Share: 0.5}, slow)
			other := outbound.Must(outbound.NewSharedBucket(m, "key", slow))
			var calls [4]outbound.Permit
			for i := range calls {
				var err error
				if calls[i], err = w.b.Acquire(background, outbound.Cost{1}); err != nil {
					t.Fatal(err)
				}
			}
			calls[3].Done()
			if _, err := w.b.Acquire(background, outbound.Cost{1}); err != nil { // this call reports the success
				t.Fatal(err)
			}
			w.set(true)
			for i := range 3 {
				calls[i].Refused(d)
			}
			want := max(d, time.Second)
			if s, err := w.b.State(background); err != nil || s.HeldFor != want {
				t.Errorf("held for %v, %v; want %v", s.HeldFor, err, want)
			}
			if s, err := other.State(background); err != nil || s.HeldFor != 0 {
				t.Errorf("the store knows of it: %+v, %v", s, err)
			}
			begin := time.Now()
			w.reconnect()
			s, err := other.State(background)
			if left := max(0, want-time.Since(begin)); err != nil || s.HeldFor != left || math.Abs(s.Speed-0.9) > 0.01 {
				t.Errorf("on return held for %v at speed %v, %v; want %v, 0.9", s.HeldFor, s.Speed, err, left)
			}
		})
	}
}

func TestLimitsThatWereSetForAllAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.5}, slow)
		if err := w.b.SetLimits(background, outbound.Limit{Capacity: 10, LeakRate: 1}); err != nil {
			t.Fatal(err)
		}
		w.take(outbound.Cost{1})
		w.set(true)
		w.take(outbound.Cost{1})
		time.Sleep(4 * time.Second)
		if n := w.take(outbound.Cost{1}); n != 2 {
			t.Errorf("%d went in 4 s, want 2", n)
		}
		time.Sleep(time.Hour)
		if n := w.take(outbound.Cost{1}); n != 5 {
			t.Errorf("%d went after a pause, want 5", n)
		}
	})
}

func TestLimitsThatWereSetJustBeforeAnOutageAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.5}, slow)
		for _, limits := range [][]outbound.Limit{{{Capacity: 10, LeakRate: 1}}, nil} {
			w.set(false)
			if err := w.b.SetLimits(background, limits...); err != nil {
				t.Fatal(err)
			}
			w.set(true)
			want := 5
			if limits == nil {
				want = 50
			}
			w.take(outbound.Cost{1})
			time.Sleep(3 * time.Hour)
			if n := w.take(outbound.Cost{1}); n != want {
				t.Errorf("%v: %d went, want %d", limits, n, want)
			}
			w.reconnect()
		}
	})
}

func TestUnlimitedAdmitsAllAndIsChargedAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Unlimited: true}, slow)
		w.set(true)
		if n := w.take(outbound.Cost{1}); n != 1000 {
			t.Errorf("%d of 1000 went", n)
		}
		if err := w.b.Hold(background, time.Minute); err != nil {
			t.Fatal(err)
		}
		if n := w.take(outbound.Cost{1}); n != 0 {
			t.Errorf("%d went in a hold", n)
		}
		w.reconnect()
		if s, err := w.b.State(background); err != nil || s.Level < 99 || s.HeldFor < 40*time.Second {
			t.Errorf("on return %+v, %v", s, err)
		}
	})
}

func TestAStoreThatFailsOnReturnIsAwayAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 1}, slow)
		w.set(true)
		w.take(outbound.Cost{1})
		time.Sleep(20000 * time.Second)
		w.take(outbound.Cost{20})
		w.set(false)
		for range 3 { // the calls go on until the store is found, and no longer
			if s, err := w.b.State(background); err != nil || s.Level < 99 {
				t.Errorf("%+v, %v", s, err)
			}
			time.Sleep(time.Second)
		}
		w.set(true)
		for range 5 {
			if _, err := w.b.State(background); err != nil {
				t.Error(err)
			}
			time.Sleep(2 * time.Second)
		}
		if n := w.take(outbound.Cost{1}); n != 0 {
			t.Errorf("%d went: the level is lost", n)
		}
		w.reconnect()
		w.reconnect()
		if s, err := w.b.State(background); err != nil || s.Level < 99 {
			t.Errorf("on return %+v, %v", s, err)
		}
	})
}

// Each worker loses the store and finds it again at times of its own.
func TestTheSharesOfAllWorkersStayWithinTheLimit(t *testing.T) {
	limits := []outbound.Limit{{Capacity: 40, LeakRate: 20}, {Capacity: 8, LeakRate: 1}, {Capacity: 200, LeakRate: 5}}
	for i, limit := range limits {
		for round := range 4 {
			t.Run(fmt.Sprint(limit, ", round ", round), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := leak.NewMemory()
					var all outboundtest.History
					var workers [4]*worker
					begin := time.Now()
					for n := range workers {
						w := newWorker(t, m, &fallback.Store{Share: 0.25}, limit)
						w.hangs = time.Duration(n) * 600 * time.Millisecond
						workers[n] = w
						r := rand.New(rand.NewPCG(uint64(round), uint64(10*i+n)))
						go func() {
							for time.Since(begin) < 5*time.Minute {
								p, err := w.b.Acquire(background, outbound.Cost{1})
								var full *outbound.ThrottledError
								switch {
								case err == nil:
									all.Add(time.Now(), 1)
									p.Done()
								case errors.As(err, &full):
									time.Sleep(min(full.RetryAfter, time.Second))
								default:
									t.Error(err)
									return
								}
								if r.IntN(int(limit.Capacity)) == 0 {
									time.Sleep(time.Duration(r.Float64() * float64(time.Second)))
								}
							}
						}()
					}
					cut := func(away bool, after time.Duration) {
						time.Sleep(after)
						for _, w := range workers {
							w.set(away)
						}
					}
					cut(true, 20*time.Second)
					cut(false, time.Duration(4+40*round)*time.Second)
					cut(true, 7*time.Second) // before all have found the store
					cut(false, 3*time.Second)
					cut(true, 40*time.Second)
					cut(false, 4*time.Second)
					time.Sleep(time.Until(begin.Add(6 * time.Minute)))
					if err := all.Check(limit.Capacity, limit.LeakRate, 1e-6); err != nil {
						t.Error(err)
					}
					if use := all.Use(limit.Capacity, limit.LeakRate); use < 0.75 {
						t.Errorf("%v of the rate was used", use)
					}
				})
			})
		}
	}
}

// A worker that has nothing to do returns to its store when the others do. If it returned
// later, its share would come on top of what they use.
func TestAWorkerThatIsIdleComesBackWithTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := leak.NewMemory()
		var all outboundtest.History
		var workers [2]*worker
		for i := range workers {
			workers[i] = newWorker(t, m, &fallback.Store{Share: 0.5}, slow)
			workers[i].set(true)
			workers[i].take(outbound.Cost{1})
		}
		time.Sleep(3 * time.Hour)
		workers[1].set(false)
		workers[0].reconnect()
		for _, w := range workers {
			for range w.take(outbound.Cost{1}) {
				all.Add(time.Now(), 1)
			}
		}
		if err := all.Check(slow.Capacity, slow.LeakRate, 1e-6); err != nil {
			t.Error(err)
		}
	})
}

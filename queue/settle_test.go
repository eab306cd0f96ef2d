package queue

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Twelve callers acquire by an estimate and settle to 0.4 of it. They use all of the token
// rate, whatever limit on calls stands beside it.
func TestQueue_SettledEstimatesUseTheTokenRate(t *testing.T) {
	tokens := outbound.Limit{Capacity: 500, LeakRate: 1000, Unit: 1, Name: "tokens"}
	for _, limits := range [][]outbound.Limit{
		{tokens},
		{tokens, {Capacity: 1, LeakRate: 20}},
		{{Capacity: 2, LeakRate: 10}, tokens},
		{{Capacity: 500, LeakRate: 50}, tokens},
		{tokens, {Capacity: 1, LeakRate: 7}, {Capacity: 1000, LeakRate: 6, Name: "more calls"}},
	} {
		for _, memory := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				b := bucket(t, limits...)
				if !memory {
					b = shared(t, store.NewMemory(), limits...)
				}
				q := New(b, Config{})
				var used outboundtest.History
				begin, length := time.Now(), 2*time.Minute
				for range 12 {
					go func() {
						for time.Since(begin) < length {
							p, err := q.Acquire(bg, outbound.Cost{1, 500})
							if err != nil {
								t.Error(err)
							}
							used.Add(time.Now(), 200)
							time.Sleep(50 * ms)
							p.Settle(outbound.Cost{1, 200})
							p.Done()
						}
					}()
				}
				pass(length + time.Minute)
				if err := used.Check(tokens.Capacity, tokens.LeakRate, tokens.LeakRate*0.05); err != nil {
					t.Errorf("%v: %v", limits, err)
				}
				use := used.Use(tokens.Capacity, tokens.LeakRate)
				if use < 0.99 {
					t.Errorf("%v, in memory %v: %.4f of the token rate used, want 0.99", limits, memory, use)
				} else {
					t.Logf("%v, in memory %v: %.4f of the token rate used", limits, memory, use)
				}
			})
		}
	}
}

func TestSettle_AddedUnitsMoveNoReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 100, LeakRate: 10}), Config{MaxWait: 2 * time.Second})
		p, err := q.Acquire(bg, outbound.Cost{100})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		time.AfterFunc(100*time.Millisecond, func() { p.Settle(outbound.Cost{300}) })
		if _, err := q.Acquire(bg, outbound.Cost{10}); err != nil || time.Since(begin) != time.Second {
			t.Errorf("%v after %v, want its place at 1s", err, time.Since(begin))
		}
	})
}

// Calls acquire tokens by an estimate and settle to less when they end. When units come
// back the queue books its next place anew, or they would come too late for it.
func TestSettle_ReturnedUnitsAreUsed(t *testing.T) {
	for _, largest := range []float64{500, 1000} {
		unitsThatComeBackAreUsed(t, largest)
	}
}

func unitsThatComeBackAreUsed(t *testing.T, estimate float64) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1000, LeakRate: 100})
		q := New(b, Config{})
		var used atomic.Int64
		for range 500 {
			go func() {
				p, err := q.Acquire(bg, outbound.Cost{estimate})
				if err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				used.Add(200)
				p.Settle(outbound.Cost{200})
				p.Done()
			}()
		}
		begin := time.Now()
		for used.Load() < 90_000 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if rate := float64(used.Load()-1000) / time.Since(begin).Seconds(); rate < 95 || rate > 100.5 {
			t.Errorf("%v units per second used, want at least 95 of 100", rate)
		} else {
			t.Logf("%.1f %% of the quota", rate)
		}
		pass(time.Hour)
	})
}

// A settle takes one trip of its own at most. The queue whose trip has carried it does not
// take the news of it for a change.
func TestSettle_TakesAtMostOneRequest(t *testing.T) {
	for _, rate := range []float64{5, 50, 1000} {
		synctest.Test(t, func(t *testing.T) {
			s := &far{Store: store.NewMemory(), way: ms}
			q := New(shared(t, s, outbound.Limit{Capacity: 10, LeakRate: rate}), Config{})
			for range 2000 {
				go func() {
					p, err := q.Acquire(bg, outbound.Cost{1})
					if err != nil && err != ErrClosed {
						t.Error(err)
					}
					p.Settle(outbound.Cost{0.9})
					p.Done()
				}()
			}
			pass(20 * time.Second)
			calls := q.Stats().Admitted
			if trips := float64(s.trips.Load()) / float64(calls); trips > 2.1 {
				t.Errorf("%v/s: %.2f trips a call", rate, trips)
			}
			q.Close()
			pass(time.Second)
		})
	}
}

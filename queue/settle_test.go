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
// rate, whatever limit of calls stands next to it.
func TestSettle_EstimatesUseTheTokenRate(t *testing.T) {
	tokens := outbound.Limit{Capacity: 500, LeakRate: 1000, Unit: 1, Name: "tokens"}
	for _, limits := range [][]outbound.Limit{
		{tokens},
		{tokens, {Capacity: 1, LeakRate: 20}},
		{{Capacity: 2, LeakRate: 10}, tokens},
		{{Capacity: 500, LeakRate: 50}, tokens},
		{tokens, {Capacity: 1, LeakRate: 7}, {Capacity: 1000, LeakRate: 6, Name: "more calls"}},
	} {
		bothWays(t, limits, func(t *testing.T, b *outbound.Bucket) {
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
			use, err := used.Use(tokens.Capacity, tokens.LeakRate), used.Check(tokens.Capacity, tokens.LeakRate, tokens.LeakRate*0.05)
			if t.Logf("%v: %.4f of the token rate used", limits, use); use < 0.99 || err != nil {
				t.Errorf("%v: %.4f of the token rate used, want 0.99; %v", limits, use, err)
			}
		})
	}
}

// Units that a call settles above its cost do not delay a reservation.
func TestSettle_AddedUnitsMoveNoReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 100, LeakRate: 10}), Config{MaxWait: 2 * time.Second})
		p := admitted(t, q, 100)
		c := come(bg, q, 10)
		time.Sleep(100 * ms)
		p.Settle(outbound.Cost{300})
		if pass(time.Minute); c.ended().err != nil || c.took() != time.Second {
			t.Errorf("%v after %v, want its reservation at 1s", c.ended().err, c.took())
		}
	})
}

// Calls acquire tokens by an estimate and settle to less when they end. When units return the queue moves its
// next reservation, or they would come too late for it.
func TestSettle_ReturnedUnitsAreUsed(t *testing.T) {
	for _, estimate := range []float64{500, 1000} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, outbound.Limit{Capacity: 1000, LeakRate: 100}), Config{})
			var used atomic.Int64
			begin := time.Now()
			for range 500 {
				comeAndUse(bg, q, func(p *outbound.Permit) {
					time.Sleep(time.Second)
					used.Add(200)
					p.Settle(outbound.Cost{200})
					p.Done()
				}, estimate)
			}
			for used.Load() < 90_000 {
				pass(time.Second)
			}
			rate := float64(used.Load()-1000) / time.Since(begin).Seconds()
			if t.Logf("%.1f %% of the quota", rate); rate < 95 || rate > 100.5 {
				t.Errorf("%v units per second used, want at least 95 of 100", rate)
			}
			pass(time.Hour)
		})
	}
}

// A settle takes one request of its own at most. The queue whose request has carried it does not
// take it for a change.
func TestSettle_TakesAtMostOneRequest(t *testing.T) {
	for _, rate := range []float64{5, 50, 1000} {
		synctest.Test(t, func(t *testing.T) {
			s := &far{Store: store.NewMemory(), way: ms}
			q := New(shared(t, s, outbound.Limit{Capacity: 10, LeakRate: rate}), Config{})
			for range 2000 {
				comeAndUse(bg, q, func(p *outbound.Permit) { p.Settle(outbound.Cost{0.9}); p.Done() }, 1)
			}
			pass(20 * time.Second)
			if trips := float64(s.trips.Load()) / float64(q.Stats().Admitted); trips > 2.1 {
				t.Errorf("%v/s: %.2f requests a call", rate, trips)
			}
			q.Close()
			pass(time.Second)
		})
	}
}

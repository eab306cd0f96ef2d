package queue

import (
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
						noError(t, err)
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
		pass(time.Minute)
		c.wantWait(t, time.Second)
	})
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

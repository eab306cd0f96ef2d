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

package queue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

func TestAQueueServesAStoreThatIsFarAway(t *testing.T) {
	for _, way := range []time.Duration{0, 500 * time.Microsecond, 5 * time.Millisecond} {
		for _, rate := range []float64{10, 1000} {
			synctest.Test(t, func(t *testing.T) {
				limit := outbound.Limit{Capacity: 1, LeakRate: rate}
				s := &far{Store: store.NewMemory(), way: way}
				var h outboundtest.History
				var lines [2]line
				for k := range lines {
					b, err := outbound.NewSharedBucket(s, "k", limit)
					if err != nil {
						t.Fatal(err)
					}
					lines[k].q = New(b, Config{})
					for i := range 500 {
						lines[k].arrive(bg, i, outbound.Cost{1}, func(*outbound.Permit) { h.Add(time.Now(), 1) })
					}
				}
				pass(5 * time.Minute)
				for k := range lines {
					if len(lines[k].order) != 500 || !lines[k].sorted() {
						t.Errorf("%v away, %v/s: %d went, in order: %v", way, rate, len(lines[k].order), lines[k].sorted())
					}
				}
				late := 0.05 + way.Seconds()*2
				if err := h.Check(limit.Capacity, limit.LeakRate, late*rate); err != nil {
					t.Errorf("%v away, %v/s: %v", way, rate, err)
				}
				use := h.Use(limit.Capacity, limit.LeakRate)
				if use < 0.99 {
					t.Errorf("%v away, %v/s: %v of the rate used", way, rate, use)
				}
				t.Logf("%v away, %v/s: %.4f of the rate, %.2f trips a call, %d late", way, rate, use,
					float64(s.trips.Load())/1000, lines[0].q.Stats().Late+lines[1].q.Stats().Late)
			})
		}
	}
}

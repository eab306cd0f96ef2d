package outbound_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// A worker of an old release and one of a new, each with its own limits and one
// that both have.
func TestWorkersWithDifferentLimitsAreEachHeldToTheirOwn(t *testing.T) {
	common := outbound.Limit{Capacity: 50, LeakRate: 12, Name: "common"}
	own := [2]outbound.Limit{{Capacity: 5, LeakRate: 10, Name: "old"}, {Capacity: 20, LeakRate: 8, Name: "new"}}
	synctest.Test(t, func(t *testing.T) {
		m := leak.NewMemory()
		var each [2]outboundtest.History
		var all outboundtest.History
		for i, l := range own {
			b := outbound.Must(outbound.NewSharedBucket(m, "key", l, common))
			go func() {
				for all.Len() < 40_000 {
					_, err := b.Acquire(context.Background(), outbound.Cost{1})
					var full *outbound.ThrottledError
					switch {
					case err == nil:
						each[i].Add(time.Now(), 1)
						all.Add(time.Now(), 1)
					case errors.As(err, &full):
						time.Sleep(full.RetryAfter)
					default:
						t.Error(err)
						return
					}
				}
			}()
		}
		time.Sleep(time.Hour)
		for i, l := range own {
			if err := each[i].Check(l.Capacity, l.LeakRate, 0); err != nil {
				t.Errorf("%s: %v", l.Name, err)
			}
			if each[i].Len() < 10_000 {
				t.Errorf("only %d calls of %s", each[i].Len(), l.Name)
			}
		}
		if err := all.Check(common.Capacity, common.LeakRate, 0); err != nil {
			t.Errorf("together: %v", err)
		}
		if use := all.Use(common.Capacity, common.LeakRate); use < 0.999 {
			t.Errorf("%v of what they have in common was used", use)
		}
	})
}

// One rate is raised while some still have the old one, and all book ahead.
func TestWorkersWithDifferentRatesOfOneLimitKeepGoing(t *testing.T) {
	limits := [2]outbound.Limit{{Capacity: 1, LeakRate: 10}, {Capacity: 2, LeakRate: 40}}
	synctest.Test(t, func(t *testing.T) {
		m := leak.NewMemory()
		var all outboundtest.History
		begin := time.Now()
		for _, l := range limits {
			b := outbound.Must(outbound.NewSharedBucket(m, "key", l))
			go func() {
				for time.Since(begin) < 10*time.Minute {
					k := outbound.Booking{Costs: []outbound.Cost{{1}}, Wait: math.MaxInt64}
					if err := b.Book(context.Background(), &k); err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Until(k.Clock.Due(k.Tickets[0])))
					all.Add(time.Now(), 1)
					p := k.Tickets[0].Permit()
					p.Done()
				}
			}()
		}
		time.Sleep(11 * time.Minute)
		if err := all.Check(2, 40, 0); err != nil {
			t.Error(err)
		}
		// Together they are no slower than the slower one alone.
		if n := all.Len(); n < 5950 {
			t.Errorf("%d calls in 10 minutes, want 6000 and more", n)
		}
	})
}

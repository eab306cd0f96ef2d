package outbound_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// A worker of an old release and one of a new, each with its own limits and one
// that both have.
func TestWorkersWithDifferentLimitsAreEachHeldToTheirOwn(t *testing.T) {
	common := outbound.Limit{Capacity: 50, LeakRate: 12, Name: "common"}
	own := [2]outbound.Limit{{Capacity: 5, LeakRate: 10, Name: "old"}, {Capacity: 20, LeakRate: 8, Name: "new"}}
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		var each [2]outboundtest.History
		var all outboundtest.History
		for i, l := range own {
			b := outbound.Must(outbound.NewSharedBucket(m, "key", l, common))
			go func() {
				for all.Len() < 16_000 {
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
			if each[i].Len() < 4000 {
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
		m := store.NewMemory()
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

// A hold without bookings lets a limit leak ahead, and a Resume takes that back: for the
// limit with the larger capacity as well, under whichever it comes.
func TestAResumeUnderASmallerCapacityTakesBackWhatAHoldLetLeak(t *testing.T) {
	for _, set := range []bool{false, true} { // or the other worker's own limits count
		synctest.Test(t, func(t *testing.T) {
			m := store.NewMemory()
			var workers [2]*outbound.Bucket
			var limits [2][]outbound.Limit
			for i, capacity := range []float64{20, 10} {
				limits[i] = []outbound.Limit{{Capacity: 20, LeakRate: 20}, {Capacity: capacity, LeakRate: 1, Name: "long"}}
				workers[i] = outbound.Must(outbound.NewSharedBucket(m, "key", limits[i]...))
			}
			ctx := context.Background()
			_, err := workers[0].Acquire(ctx, outbound.Cost{20})
			time.Sleep(time.Second)
			err = errors.Join(err, workers[0].Hold(ctx, time.Minute))
			if set {
				err = errors.Join(err, workers[0].SetLimits(ctx, limits[1]...))
			}
			err = errors.Join(err, workers[1].Resume(ctx))
			if set {
				err = errors.Join(err, workers[1].SetLimits(ctx, limits[0]...))
			}
			time.Sleep(time.Second)
			s, also := workers[0].States(ctx)
			if err = errors.Join(err, also); err != nil || s[1].Level < 18 {
				t.Errorf("limits set %v: level %v (%v) two seconds after 20 of 20 at 1/s", set, s[1].Level, err)
			}
		})
	}
}

package outbound

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/calendar"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A call that comes back at RetryAfter is admitted, whatever limits the bucket has, and through holds
// and slow-downs.
func TestBucket_RetryAfterIsEnoughForAllKinds(t *testing.T) {
	all := []Limit{Window(5, time.Second), Window(40, time.Minute), FixedWindow(7, 3*time.Second), FixedWindow(60, 2*time.Minute), Hourly(90),
		Daily(400, pacific), Monthly(5_000, pacific), PerSecond(3), PerMinute(60).Burst(20), {Capacity: 6, LeakRate: 1. / 3}}
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			var limits []Limit
			for range 1 + r.IntN(4) {
				if l := all[r.IntN(len(all))]; !slices.ContainsFunc(limits, l.same) {
					limits = append(limits, l)
				}
			}
			if _, err := checkLimits("", limits, false); err != nil {
				return
			}
			time.Sleep(time.Duration(r.Int64N(int64(100 * 24 * time.Hour))))
			b := Must(NewBucket("k", limits...))
			for range 200 {
				p, err := b.Acquire(ctx, Cost{float64(r.IntN(3))})
				if full, ok := errors.AsType[*ThrottledError](err); ok {
					time.Sleep(full.RetryAfter)
					if p, err = b.Acquire(ctx, Cost{1}); full.Held || err == nil {
						// A call of another cost, or after a hold.
					} else if errors.As(err, &full); full.RetryAfter > 0 {
						time.Sleep(full.RetryAfter)
						if p, err = b.Acquire(ctx, Cost{1}); err != nil {
							t.Fatalf("%v: back after %v: %v", limits, full.RetryAfter, err)
						}
					}
				}
				switch r.IntN(12) {
				case 0:
					p.Settle(Cost{float64(r.IntN(4))})
				case 1:
					p.Refused(time.Duration(r.Int64N(int64(20 * time.Second))))
				case 2:
					must(t, b.Hold(ctx, time.Duration(1+r.Int64N(int64(time.Minute)))))
				case 3:
					time.Sleep(time.Duration(r.ExpFloat64() * float64(10*time.Second)))
				}
				p.Done()
			}
		})
	}
}

// The store's time of day counts, and not the process's. It is learned in one more request.
func TestCalendar_CountsByTheStoresTimeOfDay(t *testing.T) {
	clocked := func(ahead func() time.Duration) *Bucket { // in a store whose clock is ahead of this process's
		var kept store.Stored
		return Must(NewSharedBucket(StoreFunc(func(_ context.Context, _ string, op *store.Op) (store.Reply, error) {
			return op.ApplyAt(&kept, now(), calendar.Stamp(time.Now())+ahead()), nil
		}), "k", Daily(10, time.UTC)))
	}
	for _, ahead := range []time.Duration{0, time.Minute, -time.Minute, 5 * time.Hour, -5 * time.Hour, 72 * time.Hour, -72 * time.Hour, 40 * 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(12 * time.Hour)
			requests := 0
			b := clocked(func() time.Duration { requests++; return ahead })
			if admit(t, b, 10); requests > 2 {
				t.Errorf("ahead %v: the first call takes %d requests", ahead, requests)
			}
			requests = 0
			full := refused(t, b, Cost{1})
			stores := time.Now().Add(ahead).UTC()
			midnight := stores.Truncate(24 * time.Hour).Add(24*time.Hour + store.Slack)
			if full.RetryAfter != midnight.Sub(stores) || requests != 1 {
				t.Errorf("ahead %v: %v in %d requests, want %v", ahead, full, requests, midnight.Sub(stores))
			}
			time.Sleep(full.RetryAfter)
			if admit(t, b, 10); requests > 2 {
				t.Errorf("ahead %v: after midnight %d requests", ahead, requests)
			}
		})
	}
	ahead := time.Duration(0)
	_, err := clocked(func() time.Duration { ahead += 72 * time.Hour; return ahead }).Acquire(ctx, Cost{1})
	if _, bad := errors.AsType[*StoreError](err); !bad || !strings.Contains(err.Error(), "store's clock") {
		t.Errorf("a clock that runs away: %v", err)
	}
}

// An answer with what remains of a window holds the bucket only if the calls since can have used it up, by the limit
// that admits the fewest.
func TestAnswerRemaining_OfAWindowHoldsWhenLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Minute)
		m := new(FakeStore)
		b := Must(NewSharedBucket(m, "github", PerSecond(10), Window(5_000, time.Hour), Daily(50_000, time.UTC)))
		for _, c := range []struct {
			left  float64
			trips int64
		}{{4_000, 0}, {30, 0}, {2, 1}, {0, 1}} {
			p := mustAcquire(t, b)
			time.Sleep(200 * time.Millisecond)
			before := m.Requests.Load()
			p.Answered(Answer{Kind: AnswerRemaining, Remaining: Cost{c.left, -1, -1, -1}, Wait: time.Hour})
			if got := m.Requests.Load() - before; got != c.trips {
				t.Errorf("%v left: %d trips, want %d", c.left, got, c.trips)
			}
		}
		if s := states(t, b); s[0].HeldFor == 0 || s[0].Reason != "exhausted" {
			t.Errorf("%+v", s[0])
		}
	})
}

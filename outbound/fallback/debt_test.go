package fallback_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// also returns another bucket of the worker's key, with limits of its own.
func (w *worker) also(limits ...outbound.Limit) *outbound.Bucket {
	return outbound.Must(outbound.NewSharedBucket(w.f, "key", limits...))
}

// spend acquires n units, one after the other.
func (w *worker) spend(b *outbound.Bucket, n int) {
	w.Helper()
	for range n {
		if _, err := b.Acquire(background, outbound.Cost{1}); err != nil {
			w.Fatal(err)
		}
	}
}

// serves makes a call, which goes or finds no room.
func (w *worker) serves(b *outbound.Bucket) {
	w.Helper()
	if _, err := b.Acquire(background, outbound.Cost{1}); err != nil && !errors.Is(err, outbound.ErrThrottled) {
		w.Error(err)
	}
}

// Each bucket of a key is held to its own limits, and the store is charged under those of
// each, whoever called last.
func TestEachBucketsDebtIsChargedUnderItsOwnLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := leak.NewMemory()
		day, hour := outbound.Daily(100, time.UTC), outbound.Window(60, 10*time.Hour)
		hour.Name = "window"
		w := newWorker(t, m, &fallback.Store{Share: 0.5}, day)
		time.Sleep(time.Hour)
		w.serves(w.b) // the store tells the day's level
		window := w.also(hour)
		w.set(true)
		w.spend(w.b, 20)
		_, _ = window.State(background)
		time.Sleep(12 * time.Hour)
		w.spend(window, 10)
		w.reconnect()
		if is := stored(t, m, day); is != 21 {
			t.Errorf("the store is charged with %v of the day, want 21", is)
		}
		if is := stored(t, m, hour); is != 10 {
			t.Errorf("the store is charged with %v of the window, want 10", is)
		}
	})
}

// A key has a debt under as many limits as it can have. Beyond that the oldest debt counts
// under those that come.
func TestDebtsUnderMoreLimitsThanAKeyHasAreCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := leak.NewMemory()
		w := newWorker(t, m, &fallback.Store{Unlimited: true}, slow)
		w.set(true)
		for n := range leak.Max + 1 {
			limit := slow
			limit.Capacity += float64(n)
			w.spend(w.also(limit), 2)
		}
		w.reconnect()
		if is := stored(t, m, slow); math.Abs(is-2*(leak.Max+1)) > 0.5 {
			t.Errorf("the store is charged with %v", is)
		}
	})
}

// slowly is a store that takes 5 ms to answer.
type slowly struct{ leak.Store }

func (s slowly) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	r, err := s.Store.Update(ctx, key, op)
	time.Sleep(5 * time.Millisecond)
	return r, err
}

// The store has lost the limits that were set, and the buckets hear of it one after the other.
func TestAStoreThatComesBackEmptyServesEveryBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(2 * time.Hour)
		w := newWorker(t, slowly{leak.NewMemory()}, &fallback.Store{Share: 0.5}, outbound.Daily(100, time.UTC))
		buckets := []*outbound.Bucket{w.b, w.also(outbound.Daily(100, time.UTC))}
		if err := w.b.SetLimits(background, outbound.Daily(50, time.UTC)); err != nil {
			t.Fatal(err)
		}
		for _, b := range buckets {
			w.serves(b)
		}
		w.set(true)
		w.take(outbound.Cost{1})
		m := leak.NewMemory()
		w.link.Store = slowly{m}
		w.set(false)
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				for range 800 {
					w.serves(buckets[i%2])
					time.Sleep(5*time.Millisecond + time.Duration(i)*100*time.Microsecond)
				}
			})
		}
		all.Wait()
		if is := stored(t, m, outbound.Daily(100, time.UTC)); is < 24 {
			t.Errorf("the store is charged with %v", is)
		}
	})
}

// One bucket counts hours, and is not used any more. The other does not know what time it is.
func TestAPeriodThatIsOverStopsNoOtherBucket(t *testing.T) {
	hour := outbound.Hourly(100).Of(0, "hour")
	rate := outbound.Limit{Capacity: 100, LeakRate: 0.01, Name: "rate"}
	for name, c := range map[string]struct {
		limits []outbound.Limit // of the bucket that counts hours
		ahead  time.Duration    // of the store's clock
		idle   time.Duration
		want   float64 // the level of rate
	}{
		"hours alone":                   {[]outbound.Limit{hour}, 0, 2 * time.Hour, 0},
		"hours and a rate":              {[]outbound.Limit{hour, rate}, 0, 2 * time.Hour, 10},
		"a rate and hours":              {[]outbound.Limit{rate, hour}, 0, 2 * time.Hour, 10},
		"hours of another clock":        {[]outbound.Limit{hour}, 120 * time.Hour, 0, 0},
		"hours of another clock, later": {[]outbound.Limit{hour, rate}, 120 * time.Hour, 2 * time.Hour, 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(2*time.Hour + time.Minute)
				s := &elsewhere{make(map[string]*leak.Stored), c.ahead}
				w := newWorker(t, s, &fallback.Store{Share: 0.5}, c.limits...)
				other := w.also(rate)
				w.set(true)
				w.take(outbound.Cost{1})
				time.Sleep(time.Hour)
				w.spend(w.b, 10)
				time.Sleep(c.idle)
				w.set(false)
				for range 6 {
					time.Sleep(time.Second)
					if _, err := other.State(background); err != nil {
						t.Error(err)
					}
				}
				if is := stored(t, s, rate); math.Abs(is-c.want) > 0.1 {
					t.Errorf("the store is charged with %v, want %v", is, c.want)
				}
				owed := 0.
				if c.idle == 0 { // the hour is not over
					owed = 10
				}
				if _, err := w.b.State(background); err != nil || stored(t, s, hour) != owed {
					t.Errorf("the store is charged with %v of the hour, %v; want %v", stored(t, s, hour), err, owed)
				}
			})
		})
	}
}

// Another worker has set limits that count by the calendar. This one's bucket knows none.
func TestADebtIsChargedUnderACalendarThatWasSetMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		m := leak.NewMemory()
		w := newWorker(t, m, &fallback.Store{Share: 0.5}, slow)
		w.set(true)
		w.take(outbound.Cost{1})
		time.Sleep(3 * time.Hour)
		w.spend(w.b, 20)
		day := outbound.Daily(100, time.UTC)
		if err := outbound.Must(outbound.NewSharedBucket(m, "key", slow)).SetLimits(background, day); err != nil {
			t.Fatal(err)
		}
		w.reconnect()
		w.level(20)
	})
}

// The store goes away again before the debt is charged. What was used of a day counts once.
func TestASecondOutageCountsWhatWasUsedOfADayOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(2 * time.Hour)
		var w *worker
		f := &fallback.Store{Share: 0.5}
		w = newWorker(t, leak.NewMemory(), f, outbound.Daily(100, time.UTC))
		if _, err := w.b.Fillup(background, outbound.Cost{40}); err != nil {
			t.Fatal(err)
		}
		f.OnSwitch = func(away bool, _ error) {
			if !away {
				w.set(true)
			}
		}
		w.set(true)
		w.spend(w.b, 5)
		w.set(false)
		time.Sleep(20 * time.Second)
		if got := w.take(outbound.Cost{1}); got != 25 {
			t.Errorf("%d in the second outage, want the other 25 of a share of 30", got)
		}
	})
}

// windowless is a store that is away from the first charge of a window on.
type windowless struct {
	leak.Store
	*link
}

func (s *windowless) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if op.Action == leak.Meter && op.Limits[0].Kind == leak.Moving {
		s.set(true)
		return leak.Reply{}, errCut
	}
	return s.Store.Update(ctx, key, op)
}

// One of two debts of a key is charged before the store is away again. Its reply has told what
// other workers have used of the day.
func TestASecondOutageHeedsWhatWasUsedOfADayMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		m := leak.NewMemory()
		day, minute := outbound.Daily(100, time.UTC), outbound.Window(60, time.Minute).Of(0, "window")
		s := &windowless{Store: m}
		w := newWorker(t, s, &fallback.Store{Share: 0.5}, day)
		s.link = w.link
		w.level(0)
		w.set(true)
		w.spend(w.b, 5)
		_, _ = w.also(minute).State(background)
		time.Sleep(61 * time.Second)
		w.spend(w.also(minute), 1)
		if _, err := outbound.Must(outbound.NewSharedBucket(m, "key", day)).Fillup(background, outbound.Cost{55}); err != nil {
			t.Fatal(err)
		}
		w.set(false)
		time.Sleep(10 * time.Second)
		if got := w.take(outbound.Cost{1}); got != 20 {
			t.Errorf("%d in the second outage, want half of the 40 that are left", got)
		}
	})
}

// The period of the bucket that was refused is over, and the store hears of the hold with the
// call of another one, or under the limits that are left.
func TestAHoldOutlastsThePeriodOfItsBucket(t *testing.T) {
	hour := outbound.Hourly(100).Of(0, "hour")
	rate := outbound.Limit{Capacity: 100, LeakRate: 0.001, Unit: 1, Name: "rate"}
	for name, limits := range map[string][]outbound.Limit{"hours alone": {hour}, "hours and a rate": {hour, rate}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(2*time.Hour + time.Minute)
				m := leak.NewMemory()
				w := newWorker(t, m, &fallback.Store{Share: 0.5}, limits...)
				other, direct := w.also(rate), outbound.Must(outbound.NewSharedBucket(m, "key", rate))
				cost := outbound.Cost{1, 30}
				if len(limits) == 1 {
					cost[1] = 0
				}
				p, err := w.b.Acquire(background, cost)
				if err != nil {
					t.Fatal(err)
				}
				w.set(true)
				p.Refused(5 * time.Hour)
				time.Sleep(3 * time.Hour)
				w.set(false)
				for range 6 {
					time.Sleep(time.Second)
					if s, err := other.State(background); err != nil || s.HeldFor < time.Hour {
						t.Errorf("held for %v, %v", s.HeldFor, err)
					}
				}
				// The hold leaves room for a call such as the one that was refused.
				want := 99.
				if len(limits) > 1 {
					want = 70
				}
				if s, err := direct.State(background); err != nil || s.HeldFor < time.Hour || math.Abs(s.Level-want) > 0.1 {
					t.Errorf("the store is held for %v at a level of %v, %v; want %v", s.HeldFor, s.Level, err, want)
				}
			})
		})
	}
}

// Calls at the end of an hour are of the next one as well.
func TestCallsAtTheEndOfAnHourAreChargedToTheNext(t *testing.T) {
	hour := outbound.Hourly(100)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(2*time.Hour + 50*time.Minute)
		m := leak.NewMemory()
		w := newWorker(t, m, &fallback.Store{Share: 0.5}, hour)
		w.level(0)
		w.set(true)
		w.spend(w.b, 10)
		time.Sleep(10*time.Minute - 500*time.Millisecond)
		w.spend(w.b, 5)
		_, _ = w.also(slow.Of(0, "slow")).State(background) // another bucket is used last
		w.set(false)                                        // and no call comes until the debt is charged
		time.Sleep(10 * time.Second)
		if is := stored(t, m, hour); is != 5 {
			t.Errorf("the store is charged with %v, want 5", is)
		}
	})
}

// Two buckets of a key share a limit. It begins full once, and in a second outage with the first
// call of each.
func TestALimitOfTwoBucketsBeginsFullOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newToll(leak.NewMemory())
		w := newWorker(t, s, &fallback.Store{Share: 0.5}, slow)
		second := w.also(slow, outbound.Limit{Capacity: 100, LeakRate: 1, Name: "fast"})
		w.set(true)
		w.take(outbound.Cost{1})
		time.Sleep(time.Hour)
		w.spend(w.b, 1)
		if _, err := second.Acquire(background, outbound.Cost{16}); err != nil {
			t.Errorf("in the first outage: %v", err)
		}
		w.outage(s, w.b)
		w.set(true)
		_, _ = w.other().State(background)
		_, _ = w.b.State(background)
		time.Sleep(time.Hour)
		if n := w.take(outbound.Cost{1}); n != 18 {
			t.Errorf("%d went in the second outage, want 18", n)
		}
		_, _ = second.State(background)
		if n := w.take(outbound.Cost{1}); n != 0 {
			t.Errorf("%d more went in the second outage", n)
		}
		close(s.open)
		synctest.Wait()
	})
}

// A key keeps the levels of so many limits, and forgets others. Those that come again begin full.
func TestLimitsThatAKeyHasForgottenBeginFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.5}, slow)
		w.set(true)
		for range 2 {
			for i := range 4 {
				var limits []outbound.Limit
				for j := range leak.Max {
					limits = append(limits, slow.Of(0, string(rune('a'+leak.Max*i+j))))
				}
				if _, err := w.also(limits...).Acquire(background, outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
					t.Errorf("bucket %d: %v", i, err)
				}
			}
		}
	})
}

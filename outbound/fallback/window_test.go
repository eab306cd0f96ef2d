package fallback_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// elsewhere is a store whose clock is ahead of this process's.
type elsewhere struct {
	kept  map[string]*leak.Stored
	ahead time.Duration
}

func (s *elsewhere) Update(_ context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if s.kept[key] == nil {
		s.kept[key] = new(leak.Stored)
	}
	return op.Apply(s.kept[key], time.Duration(time.Now().Add(s.ahead).UnixNano())), nil
}

// stored returns the level of the one limit of a store's only key.
func stored(t *testing.T, s leak.Store, l outbound.Limit) float64 {
	t.Helper()
	is, err := outbound.Must(outbound.NewSharedBucket(s, "key", l)).State(background)
	if err != nil {
		t.Error(err)
	}
	return is.Level
}

// A share of a window begins full, and no window has more than the limit, whatever went just
// before the store went away.
func TestAShareOfAWindowIsAWindow(t *testing.T) {
	const n, window = 128, time.Minute + 10*time.Millisecond
	for _, limit := range []outbound.Limit{outbound.Window(n, time.Minute), outbound.FixedWindow(n, time.Minute)} {
		synctest.Test(t, func(t *testing.T) {
			m := leak.NewMemory()
			w := newWorker(t, m, &fallback.Store{Share: 1}, limit)
			begin := time.Now()
			var at []time.Time
			take := func(d time.Duration) {
				for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
					for range w.take(outbound.Cost{1}) {
						at = append(at, time.Now())
					}
				}
			}
			take(time.Millisecond)
			if len(at) != n {
				t.Errorf("%v: %d before the outage", limit, len(at))
			}
			w.set(true)
			take(5*window + time.Second)
			for i := range at[n:] {
				if d := at[i+n].Sub(at[i]); d < window {
					t.Fatalf("%v: calls %d to %d within %v", limit, i, i+n, d)
				}
			}
			if len(at) != 6*n {
				t.Errorf("%v: %d of %d have gone after %v", limit, len(at), 6*n, time.Since(begin))
			}
			// What went in the last window is in the store as well.
			w.reconnect()
			if is := stored(t, m, limit); is != n {
				t.Errorf("%v: the store is charged with %v", limit, is)
			}
		})
	}
}

// uncharged is a store that takes no charge.
type uncharged struct{ leak.Store }

func (s *uncharged) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if op.Action == leak.Meter {
		return leak.Reply{}, errors.New("not this key")
	}
	return s.Store.Update(ctx, key, op)
}

// Other workers use all of a window between two outages, of which this worker was not charged
// with the first. What it has there from before comes back no sooner than what they have used.
func TestAShareOfAWindowBeginsAnewInASecondOutage(t *testing.T) {
	limit := outbound.Window(100, time.Minute)
	synctest.Test(t, func(t *testing.T) {
		m := leak.NewMemory()
		w := newWorker(t, &uncharged{m}, &fallback.Store{Share: 0.5}, limit)
		w.set(true)
		if got := w.take(outbound.Cost{1}); got != 0 {
			t.Errorf("%d at the switch", got)
		}
		time.Sleep(61 * time.Second)
		if got := w.take(outbound.Cost{1}); got != 50 {
			t.Errorf("%d after a window, want 50", got)
		}
		w.set(false)
		time.Sleep(40 * time.Second)
		others := outbound.Must(outbound.NewSharedBucket(m, "key", limit))
		for range 100 {
			if _, err := others.Acquire(background, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
		}
		w.set(true)
		begin := time.Now()
		_, _ = w.b.Acquire(background, outbound.Cost{1}) // finds the store away
		for time.Since(begin) < time.Minute+10*time.Millisecond {
			if got := w.take(outbound.Cost{1}); got != 0 {
				t.Fatalf("%d after %v, within a window of what others have used", got, time.Since(begin))
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Second)
		if got := w.take(outbound.Cost{1}); got != 50 {
			t.Errorf("%d after a window of the second outage, want 50", got)
		}
	})
}

// A share of a period is that of what is left of it, as the store has told last.
func TestAShareOfAPeriodIsThatOfItsRest(t *testing.T) {
	hour := outbound.Hourly(100)
	for _, ahead := range []time.Duration{0, 7 * time.Minute, -7 * time.Minute, 5 * time.Hour, -5 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := &elsewhere{make(map[string]*leak.Stored), ahead}
			w := newWorker(t, s, &fallback.Store{Share: 0.5}, hour)
			end := time.Now().Add(90 * time.Minute).Truncate(time.Hour) // by this process's clock
			time.Sleep(time.Until(end.Add(-30 * time.Minute)))
			if _, err := w.b.Fillup(background, outbound.Cost{40}); err != nil {
				t.Fatal(err)
			}
			w.set(true)
			if got := w.take(outbound.Cost{1}); got != 30 {
				t.Errorf("ahead %v: %d of the rest of the hour, want 30", ahead, got)
			}
			w.reconnect()
			if is := stored(t, s, hour); is != 70 {
				t.Errorf("ahead %v: the store is charged with %v, want 70", ahead, is)
			}
			w.set(true)
			if got := w.take(outbound.Cost{1}); got != 15 {
				t.Errorf("ahead %v: %d of the rest of the hour, want 15", ahead, got)
			}
			time.Sleep(time.Until(end.Add(10 * time.Minute)))
			if got := w.take(outbound.Cost{1}); got != 50 {
				t.Errorf("ahead %v: %d of the next hour, want 50", ahead, got)
			}
			w.reconnect()
			if is := stored(t, s, hour); is != 50 {
				t.Errorf("ahead %v: in the next hour the store is charged with %v, want 50", ahead, is)
			}
		})
	}
}

// Nobody calls for hours. Then the store is back, and its time is in no period that was told.
func TestAKeyThatWasIdleForHoursIsChargedWithTheNextCall(t *testing.T) {
	hour := outbound.Hourly(100)
	synctest.Test(t, func(t *testing.T) {
		m := leak.NewMemory()
		w := newWorker(t, m, &fallback.Store{Share: 0.5}, hour)
		w.set(true)
		if got := w.take(outbound.Cost{1}); got != 0 {
			t.Errorf("%d of an hour of which the store has told nothing", got)
		}
		time.Sleep(time.Hour)
		if got := w.take(outbound.Cost{1}); got != 50 {
			t.Errorf("%d of the next hour, want 50", got)
		}
		time.Sleep(5 * time.Hour)
		w.set(false)
		time.Sleep(10 * time.Second)
		if got := w.take(outbound.Cost{1}); got != 100 {
			t.Errorf("%d with the store, want 100", got)
		}
	})
}

func TestUnlimitedAdmitsWhateverTheWindow(t *testing.T) {
	limits := []outbound.Limit{outbound.Window(10, time.Millisecond), outbound.FixedWindow(10, 100*365*24*time.Hour), outbound.Monthly(10, time.UTC), outbound.Hourly(10)}
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Unlimited: true}, limits...)
		w.set(true)
		if got := w.take(outbound.Cost{1}); got != 1000 {
			t.Errorf("%d have gone", got)
		}
		all, err := w.b.States(background)
		for _, s := range all {
			if err != nil || s.Remaining != s.Limit.Capacity {
				t.Errorf("%+v, %v", s, err)
			}
		}
	})
}

// A step that comes with the periods of the store's clock, and not of this process's, counts
// once.
func TestAReportUnderAnotherClockCountsOnce(t *testing.T) {
	day := outbound.Daily(100, time.UTC)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		s := &elsewhere{make(map[string]*leak.Stored), 120 * time.Hour}
		w := newWorker(t, s, &fallback.Store{Share: 0.5}, day)
		p, err := w.b.Acquire(background, outbound.Cost{40})
		if err != nil {
			t.Fatal(err)
		}
		w.set(true)
		p.Settle(outbound.Cost{60})
		w.reconnect()
		if is := stored(t, s, day); is != 60 {
			t.Errorf("the store is charged with %v, want 60", is)
		}
	})
}

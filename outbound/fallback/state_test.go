package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

func TestStateTellsOfAnOutage(t *testing.T) {
	for name, f := range map[string]*fallback.Store{"fails": {}, "share": {Share: 0.5}, "unlimited": {Unlimited: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorker(t, leak.NewMemory(), f, slow)
				var told []fallback.State // as OnSwitch finds it
				f.OnSwitch = func(bool, error) { told = append(told, f.State()) }
				_, _ = w.b.State(background)
				if is := f.State(); is != (fallback.State{}) {
					t.Errorf("before the first outage: %+v", is)
				}
				time.Sleep(time.Minute)
				left := time.Now()
				w.set(true)
				for i := range 3 {
					b := outbound.Must(outbound.NewSharedBucket(f, fmt.Sprint(i), slow))
					_, _ = b.Acquire(background, outbound.Cost{1})
				}
				keys := 3
				if name == "fails" {
					keys = 0
				}
				trips := w.count()
				want := fallback.State{Away: true, Since: left, Err: errCut, Keys: keys, Outages: 1}
				for range 3 {
					if is := f.State(); !same(is, want) {
						t.Errorf("away: %+v, want %+v", is, want)
					}
				}
				if n := w.count() - trips; n != 0 {
					t.Errorf("%d trips for three looks", n)
				}
				time.Sleep(time.Minute)
				if is := f.State(); !same(is, want) {
					t.Errorf("a minute later: %+v, want %+v", is, want)
				}
				w.set(false)
				var until time.Time
				for is := f.State(); is.Away; is = f.State() { // a call makes the try, or a timer does
					if !is.Until.IsZero() {
						until = is.Until
					}
					_, _ = w.b.State(background)
					time.Sleep(10 * time.Millisecond)
				}
				if name == "share" != !until.IsZero() {
					t.Errorf("until %v", until)
				}
				is := f.State()
				if name == "share" && !is.Since.Equal(until) {
					t.Errorf("back at %v, and was to be at %v", is.Since, until)
				}
				time.Sleep(time.Second)
				want = fallback.State{Since: is.Since, Outages: 1}
				if is := f.State(); !same(is, want) || is.Since.Sub(left) < time.Minute {
					t.Errorf("after the outage: %+v, want %+v", is, want)
				}
				if len(told) != 2 || !told[0].Away || told[0].Outages != 1 || !same(told[1], fallback.State{Since: is.Since, Keys: told[1].Keys, Outages: 1}) {
					t.Errorf("told %+v", told)
				}
				w.set(true)
				_, _ = w.b.State(background)
				if is := f.State(); !is.Away || is.Outages != 2 || !is.Until.IsZero() {
					t.Errorf("away again: %+v", is)
				}
			})
		})
	}
}

// same compares times as moments.
func same(a, b fallback.State) bool {
	as, bs, au, bu := a.Since, b.Since, a.Until, b.Until
	a.Since, b.Since, a.Until, b.Until = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	return a == b && as.Equal(bs) && au.Equal(bu)
}

func TestStateOfNoStoreIsZero(t *testing.T) {
	var none *fallback.Store
	if is := none.State(); is != (fallback.State{}) {
		t.Errorf("%+v", is)
	}
	if is := new(fallback.Store).State(); is != (fallback.State{}) {
		t.Errorf("%+v", is)
	}
}

// looking is a store that looks at the state in each trip.
type looking struct {
	leak.Store
	f *fallback.Store
}

func (l *looking) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	l.f.State() // if a lock is held during the trip, it never returns
	return l.Store.Update(ctx, key, op)
}

// Whoever looks while calls come and the store comes and goes waits for no trip, and sees no
// outage uncounted.
func TestStateWaitsForNoTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fallback.Store{Share: 0.5}
		w := newWorker(t, &looking{Store: leak.NewMemory(), f: f}, f, outbound.Limit{Capacity: 10, LeakRate: 4})
		w.hangs = time.Second // each trip of an outage
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() {
				for range 20 {
					if _, err := w.b.Acquire(background, outbound.Cost{1}); err != nil && !errors.Is(err, outbound.ErrThrottled) {
						t.Error(err)
					}
					time.Sleep(700 * time.Millisecond)
				}
			})
		}
		calls.Go(func() {
			for i := range 10 {
				w.set(i%2 == 0)
				time.Sleep(5 * time.Second)
			}
		})
		was := fallback.State{}
		for range 5000 {
			begin := time.Now()
			is := w.f.State()
			if time.Since(begin) != 0 || is.Outages < was.Outages || is.Away && is.Outages == 0 || is.Away != (is.Err != nil) {
				t.Errorf("%+v after %+v", is, was)
			}
			was = is
			time.Sleep(10 * time.Millisecond)
		}
		calls.Wait()
		if was.Outages < 2 {
			t.Errorf("%d outages", was.Outages)
		}
	})
}

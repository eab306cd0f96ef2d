package fallback_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// served counts the calls that go in an outage of so many minutes, in which one comes each 20 s.
// Others find no room, or, if refused, get the store's error.
func (w *worker) served(minutes int, refused bool) (n int) {
	w.Helper()
	if _, err := w.b.State(background); err != nil {
		w.Error(err)
	}
	w.set(true)
	for range 3 * minutes {
		switch p, err := w.b.Acquire(background, outbound.Cost{1}); {
		case err == nil:
			p.Done()
			n++
		case refused != errors.Is(err, outbound.ErrAway):
			w.Fatal(err)
		}
		time.Sleep(20 * time.Second)
	}
	return n
}

// Half a unit a minute is a unit each second minute.
func TestAShareBelowAUnitComesBackAsSeldomAsItSays(t *testing.T) {
	for _, limit := range []outbound.Limit{outbound.Window(5, time.Minute), outbound.FixedWindow(5, time.Minute), outbound.PerMinute(5)} {
		synctest.Test(t, func(t *testing.T) {
			m := leak.NewMemory()
			w := newWorker(t, m, &fallback.Store{Share: 0.1}, limit)
			if n := w.served(12, false); n < 4 || n > 6 {
				t.Errorf("%v: %d calls in 12 minutes, want 6 at most", limit, n)
			}
			w.reconnect()
			if is := stored(t, m, limit); is > 1 {
				t.Errorf("%v: the store is charged with %v", limit, is)
			}
		})
	}
}

// A unit of each hour would be more than half a unit of an hour.
func TestAShareOfAnHourBelowAUnitAdmitsNoCall(t *testing.T) {
	for _, c := range []struct {
		n, share float64
		want     int
	}{{5, 0.1, 0}, {10, 0.1, 1}, {49, 1. / 49, 1}, {21, 1. / 7, 3}} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(2 * time.Hour)
			w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: c.share}, outbound.Hourly(c.n))
			if n := w.served(50, c.want == 0); n != c.want {
				t.Errorf("a share of %v of %v an hour: %d calls, want %d", c.share, c.n, n, c.want)
			}
		})
	}
}

// A share that is hardly anything admits hardly anything, and is no garbage.
func TestTheSmallestShareAdmitsNothingAtOnce(t *testing.T) {
	limits := []outbound.Limit{
		outbound.PerSecond(10), outbound.Per(1, 90*365*24*time.Hour), outbound.Window(1, 90*365*24*time.Hour), outbound.Window(100, time.Second), outbound.FixedWindow(100, time.Second),
		{Capacity: 1e-9, LeakRate: 1e-9},
	}
	for _, share := range []float64{math.SmallestNonzeroFloat64, 1e-300, 1e-13} {
		synctest.Test(t, func(t *testing.T) {
			f := &fallback.Store{Share: share}
			w := newWorker(t, leak.NewMemory(), f, limits[0])
			for i, l := range limits {
				b := outbound.Must(outbound.NewSharedBucket(f, fmt.Sprint(i), l))
				w.set(true)
				for range 10 {
					_, err := b.Acquire(background, outbound.Cost{min(1, l.Capacity)})
					var full *outbound.ThrottledError
					if !errors.As(err, &full) || full.RetryAfter < time.Second {
						t.Errorf("a share of %v of %v: %v", share, l, err)
					}
					time.Sleep(100 * time.Millisecond)
				}
			}
			b := outbound.Must(outbound.NewSharedBucket(f, "day", outbound.Daily(1000, time.UTC)))
			if _, err := b.Acquire(background, outbound.Cost{1}); !errors.Is(err, outbound.ErrAway) {
				t.Errorf("a share of %v of a day: %v", share, err)
			}
		})
	}
}

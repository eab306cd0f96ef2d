package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// pause keeps the queue from doing anything for d, as if its process were stopped or short
// of CPU.
func pause(q *Queue, d time.Duration) {
	synctest.Wait() // a pump that was called before could set the timer again
	q.mu.Lock()
	for q.pumping {
		q.mu.Unlock()
		time.Sleep(50 * time.Microsecond) // a request is in flight
		q.mu.Lock()
	}
	q.pumping = true
	if q.timer != nil {
		q.timer.Stop()
	}
	q.mu.Unlock()
	time.Sleep(d)
	q.mu.Lock()
	q.pumping = false
	q.setTimerLocked(time.Now())
	q.mu.Unlock()
}

// After a pause of the process the calls that came due meanwhile do not leave together: their reservations
// return, and count as late.
func TestTolerance_PauseOfTheProcessBunchesNoCalls(t *testing.T) {
	for _, l := range []outbound.Limit{{Capacity: 1, LeakRate: 200}, {Capacity: 10, LeakRate: 200}, {Capacity: 1, LeakRate: 2}} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, l), Config{})
			n := int(l.LeakRate) * 20
			all := comeAll(n, bg, q, 1)
			time.Sleep(3003 * ms)
			var event outbound.Event
			errorIf(t, q.Stats().Late > 0, "%v: late before the pause", l)
			defer q.bucket.Observe(func(e outbound.Event) { event = e })()
			pause(q, 5*time.Second)
			synctest.Wait()
			if late := q.Stats().Late; late == 0 || event.Kind != outbound.EventLate || uint64(event.Calls) != late || event.Late < 4*time.Second || event.Late > 5*time.Second {
				t.Errorf("%v: %d reservations were lost, and the event is %+v", l, late, event)
			}
			pass(40 * time.Second)
			h := all.history(0)
			err := h.Check(l.Capacity, l.LeakRate, l.LeakRate*0.05)
			errorIf(t, err != nil || h.Len() != n, "%v: %d of %d left, %v", l, h.Len(), n, err)
		})
	}
}

// Calls that are late within the tolerance use all of the rate.
func TestTolerance_LatenessWithinItCostsNoThroughput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := outbound.Limit{Capacity: 1, LeakRate: 100}
		q := New(bucket(t, l), Config{})
		all := comeAll(2000, bg, q, 1)
		for q.Len() > 10 {
			time.Sleep(7 * ms)
			pause(q, 5*ms) // the tolerance at 100/s
		}
		pass(time.Second)
		h := all.history(0)
		if err := h.Check(l.Capacity, l.LeakRate, l.LeakRate*0.005); err != nil || h.Use(l.Capacity, l.LeakRate) < 0.998 {
			t.Errorf("%v of the rate used, %v", h.Use(l.Capacity, l.LeakRate), err)
		}
		late := q.Stats().Late
		errorIf(t, late != 0, "%d late, within the tolerance", late)
	})
}

// The tolerance is that of the Config, or, at slow limits, 50 ms.
func TestTolerance_IsAtMostThatOfTheConfig(t *testing.T) {
	for _, c := range []struct {
		rate              float64
		config, tolerance time.Duration
	}{
		{100, 20 * ms, 20 * ms},
		{0.1, 0, 50 * ms},
	} {
		for _, over := range []time.Duration{0, 1} {
			synctest.Test(t, func(t *testing.T) {
				q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: c.rate}), Config{Tolerance: c.config})
				comeAll(2, bg, q, 1)
				due := time.Duration(float64(time.Second) / c.rate)
				time.Sleep(due - ms)
				pause(q, ms+c.tolerance+over)
				synctest.Wait()
				errorIf(t, q.Stats().Late != uint64(over), "%v later than %v: %+v", over, c.tolerance, q.Stats())
				pass(time.Minute)
			})
		}
	}
}

// PerMinute promises what the API counts in any minute, with 10 ms to spare. If a call leaves
// later than that, the calls after it are not on time.
func TestTolerance_PerMinuteKeepsItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.PerMinute(10)), Config{})
		all := comeAll(60, bg, q, 1)
		for q.Len() > 0 {
			time.Sleep(5990 * ms)
			pause(q, 40*ms)
		}
		w := all.history(0).Worst(time.Minute)
		errorIf(t, w.Units > 10, "%v calls in a minute: %+v", w.Units, w)
	})
}

// All of a window may leave together, so a tolerance of more than a window has to spare counts
// as 5 ms.
func TestTolerance_BreaksNoWindow(t *testing.T) {
	for _, l := range []outbound.Limit{outbound.Window(10, time.Second), outbound.FixedWindow(10, time.Second)} {
		synctest.Test(t, func(t *testing.T) {
			q, begin := New(bucket(t, outbound.PerSecond(1000), l), Config{Tolerance: maxTolerance}), time.Now()
			all := comeAll(40, bg, q, 1)
			for q.Len() > 0 {
				if q.Len() == 30 {
					time.Sleep(time.Second - time.Since(begin))
					pause(q, 80*ms)
				}
				pass(ms)
			}
			w := all.history(0).Worst(time.Second)
			errorIf(t, w.Units > 10, "%v: %v calls in a second: %+v", l, w.Units, w)
			// When a fixed window is over no call has a reservation to be late for.
			late := q.Stats().Late
			errorIf(t, (late == 0) != (l == outbound.FixedWindow(10, time.Second)), "%v: %d were late", l, late)
		})
	}
}

// The bucket's events count as many late reservations as Stats.Late.
func TestTolerance_EventsCountWhatStatsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tolerance = 100 * time.Microsecond
		q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 100}), Config{Tolerance: tolerance})
		comeAll(20, bg, q, 1)
		time.Sleep(49 * ms)
		events := 0
		defer q.bucket.Observe(func(e outbound.Event) {
			events += e.Calls
			errorIf(t, e.Kind != outbound.EventLate || e.Late <= tolerance || e.Late > ms, "%+v", e)
		})()
		pause(q, 1500*time.Microsecond) // half a millisecond after the reservation
		pass(time.Second)
		late := q.Stats().Late
		errorIf(t, late == 0 || uint64(events) != late, "%d in events, %d in Stats", events, late)
	})
}

// A reservation that returns because its call was cancelled is not late.
func TestTolerance_UnwantedReservationIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(shared(t, store.NewMemory(), outbound.Limit{Capacity: 1, LeakRate: 100}), Config{})
		admitted(t, q, 1)
		events := 0
		defer q.bucket.Observe(func(e outbound.Event) { events += e.Calls })()
		ctx, cancel := context.WithCancel(bg)
		come(ctx, q, 1)
		pass(ms)
		q.mu.Lock()
		q.pumping = true // as during a request
		q.timer.Stop()
		q.mu.Unlock()
		cancel()
		pass(11 * ms)
		q.pump() // 2 ms after the reservation, within the tolerance
		q.mu.Lock()
		back := len(q.line.unused)
		q.pumping = false
		q.setTimerLocked(time.Now())
		q.mu.Unlock()
		pass(time.Second)
		if late := q.Stats().Late; back != 1 || events != 0 || late != 0 {
			t.Errorf("of %d that returned %d are in events, %d in Stats", back, events, late)
		}
	})
}

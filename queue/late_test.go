package queue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// pause keeps the queue from doing anything for d, as if its process were stopped or short
// of CPU.
func pause(q *Queue, d time.Duration) {
	synctest.Wait() // a pump that was called before could set the timer again
	q.mu.Lock()
	for q.pumping {
		q.mu.Unlock()
		time.Sleep(50 * time.Microsecond) // a trip is under way
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

func TestLate_PauseOfTheProcessBunchesNoCalls(t *testing.T) {
	for _, l := range []outbound.Limit{{Capacity: 1, LeakRate: 200}, {Capacity: 10, LeakRate: 200}, {Capacity: 1, LeakRate: 2}} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, l), Config{})
			var h outboundtest.History
			n := int(l.LeakRate) * 20
			for range n {
				go func() {
					if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
						t.Error(err)
					}
					h.Add(time.Now(), 1)
				}()
			}
			time.Sleep(3003 * time.Millisecond)
			var told outbound.Event
			if q.Stats().Late > 0 {
				t.Errorf("%v: late before the pause", l)
			}
			defer q.bucket.Observe(func(c outbound.Event) { told = c })()
			pause(q, 5*time.Second)
			synctest.Wait()
			if late := q.Stats().Late; told.Kind != outbound.EventLate || uint64(told.Calls) != late || told.Late < 4*time.Second || told.Late > 5*time.Second {
				t.Errorf("%v: %d places were lost, and told is %+v", l, late, told)
			}
			pass(40 * time.Second)
			if h.Len() != n {
				t.Errorf("%v: %d of %d went", l, h.Len(), n)
			}
			if err := h.Check(l.Capacity, l.LeakRate, l.LeakRate*0.05); err != nil {
				t.Errorf("%v: %v", l, err)
			}
			if q.Stats().Late == 0 {
				t.Errorf("%v: a pause of 5 s made nobody late", l)
			}
		})
	}
}

func TestLate_WithinToleranceCostsNoThroughput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := outbound.Limit{Capacity: 1, LeakRate: 100}
		q := New(bucket(t, l), Config{})
		var h outboundtest.History
		begin := time.Now()
		for range 2000 {
			go func() {
				q.Acquire(bg, outbound.Cost{1})
				h.Add(time.Now(), 1)
			}()
		}
		for h.Len() < 1990 {
			time.Sleep(7 * time.Millisecond)
			pause(q, 5*time.Millisecond) // the tolerance at 100/s
		}
		if took, ideal := time.Since(begin), 19900*time.Millisecond; took > ideal+ideal/1000+20*time.Millisecond {
			t.Errorf("took %v, want %v", took, ideal)
		}
		if err := h.Check(l.Capacity, l.LeakRate, l.LeakRate*0.005); err != nil {
			t.Error(err)
		}
		if late := q.Stats().Late; late != 0 {
			t.Errorf("%d late, within the tolerance", late)
		}
		pass(time.Second)
	})
}

func TestLate_ToleranceCanBeSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 100}), Config{Tolerance: 20 * time.Millisecond})
		for range 100 {
			go q.Acquire(bg, outbound.Cost{1})
		}
		time.Sleep(50 * time.Millisecond)
		pause(q, 20*time.Millisecond)
		if late := q.Stats().Late; late != 0 {
			t.Errorf("%d late after 20 ms, which was the tolerance", late)
		}
		pause(q, 31*time.Millisecond)
		synctest.Wait()
		if q.Stats().Late == 0 {
			t.Error("nobody late after 31 ms")
		}
		pass(2 * time.Second)
	})
}

// PerMinute promises what the API sees in any minute, with 10 ms to spare. If a call leaves
// later than that, the calls after it must not be on time.
func TestLate_PerMinuteKeepsItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.PerMinute(10)), Config{})
		var h outboundtest.History
		for range 60 {
			go func() {
				q.Acquire(bg, outbound.Cost{1})
				h.Add(time.Now(), 1)
			}()
		}
		for h.Len() < 60 {
			time.Sleep(5990 * time.Millisecond)
			pause(q, 40*time.Millisecond)
		}
		if w := h.Worst(time.Minute); w.Units > 10 {
			t.Errorf("%v calls in a minute: %+v", w.Units, w)
		}
	})
}

// All of a window may leave together, so a tolerance of more than a window has to spare counts
// as 5 ms.
func TestLate_NoToleranceBreaksAWindow(t *testing.T) {
	for _, l := range []outbound.Limit{outbound.Window(10, time.Second), outbound.FixedWindow(10, time.Second)} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, outbound.PerSecond(1000), l), Config{Tolerance: maxTolerance})
			var h outboundtest.History
			for range 40 {
				go func() {
					q.Acquire(bg, outbound.Cost{1})
					h.Add(time.Now(), 1)
				}()
			}
			for begin := time.Now(); h.Len() < 40; {
				if h.Len() == 10 {
					time.Sleep(time.Second - time.Since(begin))
					pause(q, 80*time.Millisecond)
				}
				time.Sleep(time.Millisecond)
			}
			if w := h.Worst(time.Second); w.Units > 10 {
				t.Errorf("%v: %v calls in a second: %+v", l, w.Units, w)
			}
			// When a fixed window is over nobody has a place to be late for.
			if late := q.Stats().Late; (late == 0) != (l == outbound.FixedWindow(10, time.Second)) {
				t.Errorf("%v: %d were late", l, late)
			}
		})
	}
}

// The bucket tells of as many late places as Stats.Late counts.
func TestLate_EventsCountWhatStatsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tolerance = 100 * time.Microsecond
		q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 100}), Config{Tolerance: tolerance})
		for range 20 {
			go q.Acquire(bg, outbound.Cost{1})
		}
		time.Sleep(49 * time.Millisecond)
		told := 0
		defer q.bucket.Observe(func(c outbound.Event) {
			if told += c.Calls; c.Kind != outbound.EventLate || c.Late <= tolerance || c.Late > time.Millisecond {
				t.Errorf("%+v", c)
			}
		})()
		pause(q, 1500*time.Microsecond) // half a millisecond beyond the place
		pass(time.Second)
		if late := q.Stats().Late; late == 0 || uint64(told) != late {
			t.Errorf("%d told, %d counted", told, late)
		}
	})
}

func TestLate_UnwantedReservationIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(shared(t, store.NewMemory(), outbound.Limit{Capacity: 1, LeakRate: 100}), Config{})
		if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		told := 0
		defer q.bucket.Observe(func(c outbound.Event) { told += c.Calls })()
		ctx, cancel := contextWithCancel()
		go q.Acquire(ctx, outbound.Cost{1})
		pass(time.Millisecond)
		q.mu.Lock()
		q.pumping = true // as during a trip
		q.timer.Stop()
		q.mu.Unlock()
		cancel()
		pass(11 * time.Millisecond)
		q.pump() // 2 ms after the place, within the tolerance
		q.mu.Lock()
		back := len(q.line.unused)
		q.pumping = false
		q.setTimerLocked(time.Now())
		q.mu.Unlock()
		pass(time.Second)
		if late := q.Stats().Late; back != 1 || told != 0 || late != 0 {
			t.Errorf("of %d that went back %d told, %d counted", back, told, late)
		}
	})
}

// At slow limits a call may be as late as 50 ms, and no later.
func TestLate_ToleranceIsAtMost50Milliseconds(t *testing.T) {
	for late, want := range map[time.Duration]uint64{50 * ms: 0, 50*ms + 1: 1} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.1}), Config{})
			for range 2 {
				go q.Acquire(bg, outbound.Cost{1})
				synctest.Wait()
			}
			time.Sleep(9 * time.Second)
			pause(q, time.Second+late)
			synctest.Wait()
			if s := q.Stats(); s.Late != want {
				t.Errorf("late by %v: %+v", late, s)
			}
			pass(time.Minute)
		})
	}
}

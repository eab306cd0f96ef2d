package queue

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// delayed lets two workers share a bucket. Each n-th reply to the second worker is late.
// It returns the calls that have left and the share of the rate that they used.
func delayed(t *testing.T, limit outbound.Limit, waiters, n int, late time.Duration, silent bool) (*outboundtest.History, float64) {
	h := new(outboundtest.History)
	use := 0.0
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		begin, length := time.Now(), 6*time.Second
		if limit.LeakRate == 50 {
			length = 20 * time.Second
		}
		for i := range 2 {
			s := &far{Store: m, way: ms, silent: silent}
			if i == 1 {
				s.late = func(k int) time.Duration {
					if k%n == 0 {
						return late
					}
					return 0
				}
			}
			q := New(shared(t, s, limit), Config{})
			for range waiters {
				go func() {
					for time.Since(begin) < length {
						if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
							t.Error(err)
						}
						h.Add(time.Now(), 1)
					}
				}()
			}
		}
		time.Sleep(length)
		use = float64(h.Len()) / limit.LeakRate / length.Seconds()
		pass(10 * time.Second)
	})
	return h, use
}

func TestQueue_DelayedReplyShiftsNoReservation(t *testing.T) {
	for _, rate := range []float64{50, 200, 1000} {
		if raced && rate > 50 {
			continue
		}
		limit := outbound.Limit{Capacity: 1, LeakRate: rate}
		for _, late := range []time.Duration{30 * ms, 100 * ms, 500 * ms} {
			for _, n := range []int{7, 100} {
				h, _ := delayed(t, limit, 1, n, late, false)
				if err := h.Check(1, rate, rate*(5*ms).Seconds()); err != nil {
					t.Errorf("one caller, each %dth reply late by %v: %v", n, late, err)
				}
				h, use := delayed(t, limit, 20, n, late, false)
				if err := h.Check(1, rate, rate*(5*ms).Seconds()); err != nil {
					t.Errorf("each %dth reply late by %v: %v", n, late, err)
				}
				// The queue loses a place that it cannot use in time.
				if use < 0.7 || n == 100 && use < 0.98 {
					t.Errorf("each %dth reply late by %v: %v of %v/s used", n, late, use, rate)
				}
			}
		}
	}
	// If a place counted from its reply's arrival it would fall together with those of others.
	h, _ := delayed(t, outbound.Limit{Capacity: 1, LeakRate: 50}, 20, 7, 100*ms, true)
	if h.Check(1, 50, 50*(5*ms).Seconds()) == nil {
		t.Error("no excess when the store does not tell when its replies were true: the test proves nothing")
	}
}

// A call that is late because its process was paused is late, however far the store.
func TestQueue_PauseFarFromTheStoreBunchesNoCalls(t *testing.T) {
	for _, way := range []time.Duration{ms / 10, ms} {
		synctest.Test(t, func(t *testing.T) {
			l := outbound.Limit{Capacity: 1, LeakRate: 200}
			m := store.NewMemory()
			var h outboundtest.History
			var queues [2]*Queue
			for i := range queues {
				queues[i] = New(shared(t, &far{Store: m, way: way}, l), Config{})
				for range 2000 {
					go func() {
						if _, err := queues[i].Acquire(bg, outbound.Cost{1}); err != nil {
							t.Error(err)
						}
						h.Add(time.Now(), 1)
					}()
				}
			}
			for range 10 {
				time.Sleep(703 * ms)
				pause(queues[0], 500*ms)
			}
			pass(30 * time.Second)
			if err := h.Check(l.Capacity, l.LeakRate, l.LeakRate*(5*ms).Seconds()); err != nil || h.Len() != 4000 {
				t.Errorf("%v away: %d went, %v", way, h.Len(), err)
			}
			if late := queues[0].Stats().Late; late < 10 {
				t.Errorf("%v away: %d late in 10 pauses", way, late)
			}
		})
	}
}

func TestQueue_AtMostOneCallLeavesIntoAHold(t *testing.T) {
	for rate, way := range map[float64]time.Duration{10: ms, 100: ms, 101: 10 * ms, 1000: ms, 50: 25 * ms} {
		synctest.Test(t, func(t *testing.T) {
			limit := outbound.Limit{Capacity: 1, LeakRate: rate}
			m := store.NewMemory()
			var mu sync.Mutex
			held, into, worst := false, 0, 0
			end := time.Now().Add(40 * time.Second)
			for range 2 {
				q := New(shared(t, &far{Store: m, way: way}, limit), Config{})
				for range 20 {
					go func() {
						for time.Now().Before(end) {
							if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
								t.Error(err)
							}
							mu.Lock()
							if held {
								into++
							}
							mu.Unlock()
						}
					}()
				}
			}
			b := shared(t, m, limit) // of a third worker
			for range 50 {
				time.Sleep(487*ms + 100*time.Microsecond)
				mu.Lock()
				held, into = true, 0
				mu.Unlock()
				if err := b.Hold(bg, 200*ms); err != nil {
					t.Fatal(err)
				}
				time.Sleep(200*ms - 1)
				mu.Lock()
				worst = max(worst, into)
				held = false
				mu.Unlock()
			}
			pass(time.Until(end.Add(10 * time.Second)))
			// A reply is as old as its way back is long. It counts for 25 ms, or for a trip if that takes longer.
			if most := 1 + int(rate*(max(25*ms, 2*way)+way).Seconds()); worst > most || rate <= 100 && way == ms && worst > 1 {
				t.Errorf("%v/s: %d calls went into a hold, want at most %d", rate, worst, most)
			} else {
				t.Logf("%v/s, %v away: at most %d calls went into one of 50 holds", rate, way, worst)
			}
		})
	}
}

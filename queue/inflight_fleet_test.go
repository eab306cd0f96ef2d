package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// slotStore is a store at a distance, which counts asks and other trips.
type slotStore struct {
	*store.Memory
	asks, trips *atomic.Int64
}

func (s slotStore) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if s.trips.Add(1); op.Action == store.Allot {
		s.asks.Add(1)
	}
	time.Sleep(time.Duration(rand.Int64N(int64(time.Millisecond))))
	r, err := s.Memory.Update(ctx, key, op)
	time.Sleep(time.Duration(rand.Int64N(int64(time.Millisecond))))
	return r, err
}

// fleetOfSlots has processes with as many callers each make calls in n slots for a time, and returns
// how many calls were in flight at most, how much of the slots was in use, Jain's index of the
// processes' calls, and the asks and all trips in a second.
func fleetOfSlots(t *testing.T, processes, callers, n int, takes, lasts time.Duration) (most int64, use, jain, asks, trips float64) {
	synctest.Test(t, func(t *testing.T) {
		s := slotStore{store.NewMemory(), new(atomic.Int64), new(atomic.Int64)}
		var inFlight, highest, busy atomic.Int64
		counts := make([]atomic.Int64, processes)
		ctx, cancel := context.WithCancel(t.Context())
		warm := time.Now().Add(lasts / 5)
		end := warm.Add(lasts)
		for i := range processes {
			q := queue.New(outbound.Must(outbound.NewSharedBucket(s, "erp", outbound.InFlight(n))), queue.Config{})
			for range callers {
				go func() {
					for {
						p, err := q.Acquire(ctx, outbound.Cost{1})
						if err != nil {
							return
						}
						for now, old := inFlight.Add(1), highest.Load(); now > old && !highest.CompareAndSwap(old, now); old = highest.Load() {
						}
						began := time.Now()
						time.Sleep(takes)
						if from, to := later(began, warm), earlier(time.Now(), end); to.After(from) {
							busy.Add(int64(to.Sub(from)))
							counts[i].Add(1)
						}
						inFlight.Add(-1)
						p.Done()
					}
				}()
			}
		}
		time.Sleep(time.Until(warm))
		wasAsks, wasTrips := s.asks.Load(), s.trips.Load()
		time.Sleep(time.Until(end))
		asks, trips = float64(s.asks.Load()-wasAsks)/lasts.Seconds(), float64(s.trips.Load()-wasTrips)/lasts.Seconds()
		sum, squares := 0.0, 0.0
		for i := range counts {
			c := float64(counts[i].Load())
			sum, squares = sum+c, squares+c*c
		}
		most, use, jain = highest.Load(), float64(busy.Load())/float64(n)/float64(lasts), sum*sum/squares/float64(processes)
		time.Sleep(takes)
		cancel()
		time.Sleep(takes + time.Second)
	})
	return most, use, jain, asks, trips
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Processes that wait use nearly all slots, have equal shares, and make few trips.
func TestInFlight_AFleetSharesSlots(t *testing.T) {
	for _, c := range []struct {
		processes, callers, n int
		takes, lasts          time.Duration
		use, jain, trips      float64
	}{
		{50, 4, 10, 10 * time.Millisecond, 10 * time.Second, 0.9, 0.97, 1900},
		{50, 4, 10, 100 * time.Millisecond, 20 * time.Second, 0.92, 0.98, 1300},
		{50, 4, 10, 5 * time.Second, 400 * time.Second, 0.97, 0.98, 160},
		{10, 4, 1, 100 * time.Millisecond, 60 * time.Second, 0.9, 0.98, 300},
		{4, 20, 40, 100 * time.Millisecond, 10 * time.Second, 0.95, 0.93, 250},
	} {
		t.Run(fmt.Sprintf("%d processes, n %d, %v", c.processes, c.n, c.takes), func(t *testing.T) {
			most, use, jain, asks, trips := fleetOfSlots(t, c.processes, c.callers, c.n, c.takes, c.lasts)
			t.Logf("%d in flight, use %.3f, Jain %.3f, %.0f asks and %.0f trips a second", most, use, jain, asks, trips)
			if most > int64(c.n) || use < c.use || jain < c.jain || trips > c.trips {
				t.Errorf("%d in flight, use %.3f, Jain %.3f, %.0f trips a second; want at most %d, %v, %v, %v", most, use, jain, trips, c.n, c.use, c.jain, c.trips)
			}
		})
	}
}

// A queue that waits for a slot makes no trip beside its asks but one a second. By that it learns of a
// hold, and refuses what cannot leave in time.
func TestInFlight_AQueueWithoutASlotLearnsOfAHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slotStore{store.NewMemory(), new(atomic.Int64), new(atomic.Int64)}
		other := outbound.Must(outbound.NewSharedBucket(s, "erp", outbound.InFlight(1)))
		p, err := other.Acquire(t.Context(), outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		q := queue.New(outbound.Must(outbound.NewSharedBucket(s, "erp", outbound.InFlight(1))), queue.Config{MaxWait: 30 * time.Second})
		refused := make(chan error)
		for range 5 {
			go func() {
				_, err := q.Acquire(t.Context(), outbound.Cost{1})
				refused <- err
			}()
		}
		time.Sleep(time.Second)
		was := s.trips.Load() - s.asks.Load()
		time.Sleep(10 * time.Second)
		if n := s.trips.Load() - s.asks.Load() - was; n > 11 {
			t.Errorf("%d trips in 10 s to wait", n)
		}
		if err := other.Pause(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		paused := time.Now()
		for range 5 {
			var full *outbound.ThrottledError
			if err := <-refused; !errors.As(err, &full) || full.RetryAfter < 50*time.Second {
				t.Errorf("on hold: %v", err)
			}
		}
		if d := time.Since(paused); d > 1100*time.Millisecond {
			t.Errorf("refused %v after the pause", d)
		}
		p.Done()
		time.Sleep(time.Second)
	})
}

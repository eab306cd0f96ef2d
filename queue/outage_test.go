package queue

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// answers counts the calls that went and failed, and notes when the last one did.
type answers struct {
	t            *testing.T
	mu           sync.Mutex
	went, failed int
	last         time.Time
}

func (a *answers) call(ctx context.Context, q *Queue) {
	_, err := q.Acquire(ctx, outbound.Cost{1})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = time.Now()
	var broken *outbound.StoreError
	switch {
	case err == nil:
		a.went++
	case errors.As(err, &broken) && errors.Is(err, errAway):
		a.failed++
	default:
		a.t.Error(err)
	}
}

func (a *answers) expect(went, failed int) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.went != went || a.failed != failed {
		a.t.Errorf("%d went and %d failed, want %d and %d", a.went, a.failed, went, failed)
	}
}

// The first trip to a store that is away answers all calls.
func TestOutage_OneErrorAnswersCallsWithoutReservation(t *testing.T) {
	for _, rate := range []float64{0.5, 10, 1000} {
		synctest.Test(t, func(t *testing.T) {
			s := &far{Store: store.NewMemory(), way: ms, hangs: time.Second}
			q := New(shared(t, s, outbound.Limit{Capacity: 1, LeakRate: rate}), Config{})
			a := &answers{t: t}
			for range 10_000 {
				go a.call(bg, q)
			}
			pass(2100 * ms)
			s.away.Store(true)
			begin, before := time.Now(), s.trips.Load()
			pass(20 * time.Second)
			if a.went+a.failed != 10_000 || q.Len() != 0 {
				t.Errorf("%v/s: %d went, %d failed, %d wait; want all answered", rate, a.went, a.failed, q.Len())
			}
			// The next place is due in 1/rate. The queue makes no trip before.
			if took, most := a.last.Sub(begin), time.Duration(float64(time.Second)/rate)+1100*ms; took > most {
				t.Errorf("%v/s: the last one heard of it after %v, want at most %v", rate, took, most)
			}
			if n := s.trips.Load() - before; n > 3 {
				t.Errorf("%v/s: %d trips to a store that is away", rate, n)
			}
			s.away.Store(false)
			went, failed := a.went, a.failed
			for range 3 {
				go a.call(bg, q)
			}
			pass(10 * time.Second)
			a.expect(went+3, failed)
		})
	}
}

// One call goes, one has a place after 20 s, two have none.
func TestOutage_ReservationOutlastsAShortOne(t *testing.T) {
	for _, c := range []struct {
		outage time.Duration
		moves  bool // the first trip that fails was to book the place anew
		during int  // calls that fail in the outage
		went   int  // in the end
	}{
		{12 * time.Second, false, 0, 4}, // a trip for news fails, and no call needs it
		{30 * time.Second, false, 3, 1}, // the queue cannot hear the clock when the place is due
		{time.Second, true, 3, 1},       // nobody knows whether the place is still booked
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &far{Store: store.NewMemory(), way: ms}
			q := New(shared(t, s, outbound.Limit{Capacity: 1, LeakRate: 0.05}), Config{})
			a := &answers{t: t}
			for range 4 {
				go a.call(bg, q)
				synctest.Wait()
				time.Sleep(10 * ms)
			}
			a.expect(1, 0)
			s.away.Store(true)
			if c.moves {
				q.onChange() // the queue has to ask what has changed, and cannot
			}
			pass(c.outage)
			a.expect(1, c.during)
			s.away.Store(false)
			pass(2 * time.Minute)
			a.expect(c.went, c.during)
		})
	}
}

// A call uses its place if the queue has heard the clock lately, whatever has failed since.
func TestOutage_ReservationIsUsedIfTheClockIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: store.NewMemory(), way: ms}
		q := New(shared(t, s, outbound.Limit{Capacity: 1, LeakRate: 100}), Config{})
		a := &answers{t: t}
		for range 100 {
			go a.call(bg, q)
		}
		// Places are 10 ms apart. The queue books each 7 ms before the one ahead of it is
		// due, so the next call has its place.
		pass(502 * ms)
		went := a.went
		s.away.Store(true)
		pass(time.Second)
		a.expect(went+1, 99-went)
	})
}

func TestOutage_ErrorAnswersCallsOfTheSameRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: store.NewMemory(), way: 500 * ms}
		s.away.Store(true)
		q := New(shared(t, s, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{})
		a := &answers{t: t}
		for range 100 {
			go a.call(bg, q)
		}
		pass(500 * ms)
		a.expect(0, 100)
		if n := s.trips.Load(); n != 1 {
			t.Errorf("%d trips, want one for all", n)
		}
	})
}

// generous is a store that books further ahead than the booking asks, as a store does for a
// worker that catches up, and then fails at once.
type generous struct {
	store.Store
	fails atomic.Bool
	trips atomic.Int64
}

func (g *generous) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if n := g.trips.Add(1); g.fails.Load() && n < 5000 {
		return store.Reply{}, errAway
	}
	op.Horizon = 100 * ms
	return g.Store.Update(ctx, key, op)
}

// A place that was too old to use stayed behind one that was not, and the queue asked the
// store without a pause until that one was due.
func TestOutage_StoreIsNotAskedWithoutPause(t *testing.T) {
	for after := ms; after < 60*ms; after += ms {
		synctest.Test(t, func(t *testing.T) {
			g := &generous{Store: store.NewMemory()}
			q := New(shared(t, g, outbound.Limit{Capacity: 1, LeakRate: 500}), Config{})
			went, failed := 0, 0
			done := make(chan error, 400)
			for range 400 {
				go func() {
					_, err := q.Acquire(bg, outbound.Cost{1})
					done <- err
				}()
			}
			time.Sleep(after)
			g.fails.Store(true)
			pass(time.Second)
			for range 400 {
				if err := <-done; err == nil {
					went++
				} else {
					failed++
				}
			}
			if n := g.trips.Load(); n > 100 {
				t.Errorf("%d went, %d failed, %d trips", went, failed, n)
			}
		})
	}
}

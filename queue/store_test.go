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
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// far is a store that is some way off, and sometimes away.
type far struct {
	outbound.Store
	way   time.Duration // there, and back
	trips atomic.Int64
	away  atomic.Bool
}

var errAway = errors.New("connection refused")

func (f *far) Update(ctx context.Context, key string, op *outbound.Op) (outbound.Result, error) {
	f.trips.Add(1)
	time.Sleep(f.way)
	if f.away.Load() {
		return outbound.Result{}, errAway
	}
	r, err := f.Store.Update(ctx, key, op)
	time.Sleep(f.way)
	return r, err
}

func TestAQueueServesAStoreThatIsFarAway(t *testing.T) {
	for _, way := range []time.Duration{0, 500 * time.Microsecond, 5 * time.Millisecond} {
		for _, rate := range []float64{10, 1000} {
			synctest.Test(t, func(t *testing.T) {
				limit := outbound.Limit{Capacity: 1, LeakRate: rate}
				s := &far{Store: outbound.NewMemory(), way: way}
				var h outboundtest.History
				var lines [2]line
				for k := range lines {
					b, err := outbound.NewSharedBucket(s, "k", limit)
					if err != nil {
						t.Fatal(err)
					}
					lines[k].q = New(b, Config{})
					for i := range 500 {
						lines[k].arrive(bg, i, outbound.Cost{1}, func(*outbound.Permit) { h.Add(time.Now(), 1) })
					}
				}
				pass(5 * time.Minute)
				for k := range lines {
					if len(lines[k].order) != 500 || !lines[k].sorted() {
						t.Errorf("%v away, %v/s: %d went, in order: %v", way, rate, len(lines[k].order), lines[k].sorted())
					}
				}
				late := 0.05 + way.Seconds()*2
				if err := h.Check(limit.Capacity, limit.LeakRate, late*rate); err != nil {
					t.Errorf("%v away, %v/s: %v", way, rate, err)
				}
				use := h.Use(limit.Capacity, limit.LeakRate)
				if use < 0.99 {
					t.Errorf("%v away, %v/s: %v of the rate used", way, rate, use)
				}
				t.Logf("%v away, %v/s: %.4f of the rate, %.2f trips a call, %d late", way, rate, use,
					float64(s.trips.Load())/1000, lines[0].q.Stats().Late+lines[1].q.Stats().Late)
			})
		}
	}
}

func TestWhoWaitsHearsThatTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: outbound.NewMemory(), way: time.Millisecond}
		b, err := outbound.NewSharedBucket(s, "k", outbound.Limit{Capacity: 1, LeakRate: 10})
		if err != nil {
			t.Fatal(err)
		}
		q := New(b, Config{})
		var mu sync.Mutex
		failed, went := 0, 0
		call := func() {
			_, err := q.Acquire(bg, outbound.Cost{1})
			mu.Lock()
			defer mu.Unlock()
			var broken *outbound.StoreError
			switch {
			case err == nil:
				went++
			case errors.As(err, &broken) && errors.Is(err, errAway):
				failed++
			default:
				t.Error(err)
			}
		}
		for range 100 {
			go call()
		}
		time.Sleep(2 * time.Second)
		s.away.Store(true)
		pass(2 * time.Second)
		if failed == 0 || failed+went != 100 || q.Len() != 0 {
			t.Errorf("%d went, %d failed, %d wait; want all answered", went, failed, q.Len())
		}
		s.away.Store(false)
		was := went
		for range 10 {
			go call()
		}
		pass(2 * time.Second)
		if went != was+10 {
			t.Errorf("%d went after the store was back, want 10", went-was)
		}
	})
}

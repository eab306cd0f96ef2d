package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A call of a shared bucket that cannot make its deadline because of another process's reservations is
// refused at once, and does not wait for its deadline.
func TestQueue_OtherProcessesReservationsRefuseNewcomer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		limit := outbound.Limit{Capacity: 1, LeakRate: 10}
		q := New(shared(t, &far{Store: m, way: 10 * ms}, limit), Config{})
		other := shared(t, m, limit)
		for range 30 {
			go func() { _, _ = q.Acquire(bg, outbound.Cost{1}) }()
			pass(ms)
		}
		within := func(d time.Duration) (time.Duration, error) {
			ctx, cancel := context.WithTimeout(bg, d)
			defer cancel()
			begin := time.Now()
			_, err := q.Acquire(ctx, outbound.Cost{1})
			return time.Since(begin), err
		}
		pass(500 * ms)
		go func() { _, _ = within(10 * time.Second) }() // the queue computes this call's time
		pass(ms)
		k := outbound.BookRequest{Costs: make([]outbound.Cost, 50), Wait: time.Hour, Horizon: time.Hour}
		for i := range k.Costs {
			k.Costs[i] = outbound.Cost{1}
		}
		if err := other.Book(bg, &k); err != nil || len(k.Tickets) != 50 {
			t.Fatal(err, len(k.Tickets))
		}
		pass(500 * ms) // replies of the store have shown the reservations
		if took, err := within(4 * time.Second); !errors.Is(err, outbound.ErrThrottled) || took > 100*ms {
			t.Errorf("the call ended with %v after %v, want a refusal at once", err, took)
		}
		_ = q.Close()
		pass(time.Minute)
	})
}

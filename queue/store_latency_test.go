package queue

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// The queue asked for ever for places that were due before their replies came, if nothing
// that it said made the store book later ones.
func TestStore_WithoutTimesServesAll(t *testing.T) {
	for name, s := range map[string]*far{
		"it does not tell of its way back":   {unheard: true},
		"its replies are later than it says": {late: func(int) time.Duration { return 100 * ms }},
	} {
		for _, waiters := range []int{1, 20} {
			synctest.Test(t, func(t *testing.T) {
				s := &far{Store: store.NewMemory(), way: 50 * ms, jitter: 0.02, unheard: s.unheard, late: s.late}
				q := New(shared(t, s, outbound.PerSecond(1000)), Config{})
				for range 5 {
					done := make(chan error)
					begin := time.Now()
					for range waiters {
						go func() {
							ctx, cancel := context.WithTimeout(bg, 10*time.Second)
							defer cancel()
							_, err := q.Acquire(ctx, outbound.Cost{1})
							done <- err
						}()
					}
					for range waiters {
						if err := <-done; err != nil {
							t.Error(name, err)
						}
					}
					if took := time.Since(begin); took > 1500*ms {
						t.Errorf("%s: %d calls took %v", name, waiters, took)
					}
					pass(time.Second)
				}
				t.Logf("%s, %d calls: %d trips, %+v", name, waiters, s.trips.Load(), q.Stats())
			})
		}
	}
}

// useless is a store whose places have passed when they are booked.
type useless struct {
	store.Store
	trips atomic.Int64
}

func (v *useless) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if v.trips.Add(1) > 1000 {
		return store.Reply{}, errors.New("asked without a pause")
	}
	r, err := v.Store.Update(ctx, key, op)
	for i := range r.Charges {
		r.Charges[i].Place -= time.Minute
	}
	return r, err
}

// The queue asks a broken store with growing pauses. A call waits for that no longer than
// MaxWait.
func TestStore_UselessOneIsAskedWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &useless{Store: store.NewMemory()}
		q := New(shared(t, v, outbound.PerSecond(1000)), Config{MaxWait: 10 * time.Second})
		begin := time.Now()
		_, err := q.Acquire(bg, outbound.Cost{1})
		if took := time.Since(begin); !errors.Is(err, outbound.ErrThrottled) || took < 10*time.Second || took > 11*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		pass(time.Second)
		if n := v.trips.Load(); n > 100 {
			t.Errorf("%d trips in 10 s", n)
		}
		if q.Len() != 0 || !q.Idle() {
			t.Errorf("%d wait", q.Len())
		}
	})
}

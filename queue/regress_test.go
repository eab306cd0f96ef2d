package queue

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

func TestADoneBesideAWaiterDoesNotMakeTheQueueAskWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.5}, outbound.InFlight(5))
		q := New(b, Config{})
		p, err := q.Acquire(bg, outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		var told atomic.Int32
		defer b.Waiting(func() { told.Add(1) })()
		go q.Acquire(bg, outbound.Cost{1})
		synctest.Wait()
		p.Done()
		pass(time.Second)
		if n := told.Load(); n > 3 {
			t.Errorf("one Done has told of %d changes", n)
		}
		pass(2 * time.Second)
		if q.Len() != 0 {
			t.Error("the other call still waits")
		}
	})
}

func TestASettleThatAddsUnitsMovesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 100, LeakRate: 10}), Config{MaxWait: 2 * time.Second})
		p, err := q.Acquire(bg, outbound.Cost{100})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		time.AfterFunc(100*time.Millisecond, func() { p.Settle(outbound.Cost{300}) })
		if _, err := q.Acquire(bg, outbound.Cost{10}); err != nil || time.Since(begin) != time.Second {
			t.Errorf("%v after %v, want its place at 1s", err, time.Since(begin))
		}
	})
}

// between is a store that does something once, while a reply is on its way.
type between struct {
	store.Store
	then func()
}

func (s *between) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	r, err := s.Store.Update(ctx, key, op)
	if then := s.then; then != nil && op.Action == store.Book {
		s.then = nil
		then()
	}
	return r, err
}

// The bucket has answered, and the queue does not listen to it yet.
func TestAResumeBeforeTheQueueListensIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &between{Store: store.NewMemory()}
		b, err := outbound.NewSharedBucket(s, "k", outbound.Limit{Capacity: 1, LeakRate: 1})
		if err != nil {
			t.Fatal(err)
		}
		q := New(b, Config{})
		b.Hold(bg, time.Hour)
		s.then = func() { b.Resume(bg) }
		begin := time.Now()
		if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil || time.Since(begin) > 3*time.Second {
			t.Errorf("%v after %v, want soon after the Resume", err, time.Since(begin))
		}
	})
}

// While nobody waits the queue does not listen to the bucket, and forgets what it knew.
func TestAQueueDoesNotRefuseByAnOldClockAfterItWasEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: store.NewMemory(), way: 10 * time.Millisecond}
		b, err := outbound.NewSharedBucket(s, "k", outbound.Limit{Capacity: 10, LeakRate: 10})
		if err != nil {
			t.Fatal(err)
		}
		q := New(b, Config{})
		if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if err := b.SetLimits(bg, outbound.Limit{Capacity: 1000, LeakRate: 1000}); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second comes during the trip of the first
			go func() {
				if _, err := q.Acquire(bg, outbound.Cost{50}); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		pass(time.Minute)
	})
}

package outbound

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Calls that a store fails keep no slots.
func TestInFlight_StoreFailureKeepsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := new(FakeStore)
		b := Must(NewSharedBucket(s, "k", Limit{Capacity: 10, LeakRate: 1}, InFlight(1)))
		s.Fail(errors.New("the reply is lost"), true)
		for range 3 {
			_, err := b.Acquire(ctx, Cost{1})
			if _, failed := errors.AsType[*StoreError](err); !failed {
				t.Errorf("%v", err)
			}
		}
		synctest.Wait()
		s.Fail(nil, false)
		p := admit(t, b, 1)
		p.Done()
		admit(t, b, 1)
	})
}

// A call that was refused because a request had reserved the slot is notified when the request does not use it.
func TestInFlight_UnusedSlotOfARequestIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewSharedBucket(&FakeStore{Way: 10 * time.Millisecond}, "k", Limit{Capacity: 10, LeakRate: 1}, InFlight(1)))
		p := admit(t, b, 10)
		p.Done()
		notified := make(chan struct{}, 9)
		defer b.Waiting(func() { notified <- struct{}{} })()
		var request sync.WaitGroup
		request.Go(func() { refused(t, b, Cost{5}) })
		time.Sleep(5 * time.Millisecond)
		refused(t, b, Cost{1}) // while the slot is reserved
		request.Wait()
		if len(notified) == 0 {
			t.Error("no call was notified of the free slot")
		}
	})
}

// heldUp returns a store whose replies are held up on their way.
func heldUp() StoreFunc {
	var s FakeStore
	return func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
		r, err := s.Apply(key, op)
		r.When = time.Now()
		time.Sleep(300 * time.Millisecond)
		return r, err
	}
}

// A call whose replies come too late has a slot until it gives up. Waiting calls are notified of the end.
func TestInFlight_CallWithLateRepliesFreesItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewSharedBucket(heldUp(), "k", Limit{Capacity: 10, LeakRate: 1}, InFlight(1)))
		var notified atomic.Int64
		defer b.Waiting(func() { notified.Add(1) })()
		var requests sync.WaitGroup
		requests.Go(func() {
			_, err := b.Acquire(ctx, Cost{1})
			if _, failed := errors.AsType[*StoreError](err); !failed {
				t.Errorf("every reply was late: %v", err)
			}
		})
		time.Sleep(350 * time.Millisecond)
		notified.Store(0) // until now of the slot that it has been granted
		requests.Wait()
		time.Sleep(time.Second) // its reservation is returned without it
		synctest.Wait()
		if able, err := b.AbleToAccept(ctx, Cost{1}); !able || err != nil || notified.Load() == 0 {
			t.Errorf("able %v, %v, notified %d times", able, err, notified.Load())
		}
	})
}

// A call whose reply comes too late, and which is refused when it asks again, notifies waiting calls of its units.
func TestAcquire_LateReplyReportsReturnedUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewSharedBucket(heldUp(), "k", Limit{Capacity: 1, LeakRate: 1}))
		notified := 0
		defer b.Waiting(func() { notified++ })()
		var requests sync.WaitGroup
		requests.Go(func() { refused(t, b, Cost{1}) }) // behind one that is booked
		time.Sleep(50 * time.Millisecond)
		must(t, b.Book(ctx, &BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}))
		if requests.Wait(); notified == 0 {
			t.Error("no call was notified of the units")
		}
	})
}

// A ticket that is booked again takes its slot along, and no second one during its request. Further
// calls of the request are not booked: they would be in flight without slots.
func TestInFlight_MoveTakesNoSecondSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewSharedBucket(&FakeStore{Way: 10 * time.Millisecond}, "k", Limit{Capacity: 1, LeakRate: 1}, InFlight(2)))
		p := admit(t, b, 1)
		k := BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}
		must(t, b.Book(ctx, &k))
		p.Settle(Cost{})
		p.Done()
		first := k.Tickets[0]
		k.Move, k.Costs, k.Horizon = first, []Cost{{1}, {1}, {1}}, time.Minute
		var request sync.WaitGroup
		request.Go(func() {
			if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != 1 || k.Tickets[0] == first {
				t.Errorf("moved: %v, %v", k.Tickets, err)
			}
		})
		time.Sleep(5 * time.Millisecond)
		if full := refused(t, b, Cost{1}); full.InProgress > 0 || full.RetryAfter == 0 {
			t.Errorf("with one of two in progress, and no unit: %v", full)
		}
		request.Wait()
		if n := inProgress(t, b); n != 1 {
			t.Errorf("%v in progress, want 1", n)
		}
		moved := k.Tickets[0].Permit()
		moved.Done()
		if n := inProgress(t, b); n != 0 {
			t.Errorf("%v in progress after the end, want 0", n)
		}
	})
}

// A ticket is booked again also while there are fewer slots than calls in progress.
func TestInFlight_MoveNeedsNoFreeSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Limit{Capacity: 1, LeakRate: 1}
		b := Must(NewBucket("k", l, InFlight(2)))
		p := admit(t, b, 1)
		k := BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}
		must(t, b.Book(ctx, &k))
		must(t, b.SetLimits(ctx, l, InFlight(1)))
		k.Move = k.Tickets[0]
		if must(t, b.Book(ctx, &k)); len(k.Tickets) != 1 {
			t.Errorf("moved: %v", k.Tickets)
		}
		if s := states(t, b); s[0].Level != 2 || s[1].Level != 2 {
			t.Errorf("%v units and %v in progress, want 2 and 2", s[0].Level, s[1].Level)
		}
		p.Done()
	})
}

// The calls that come after an invalid cost in a booking take no slots.
func TestInFlight_CostsAfterAnInvalidOneTakeNoSlot(t *testing.T) {
	var s FakeStore
	var b *Bucket
	free := false
	b = Must(NewSharedBucket(StoreFunc(func(_ context.Context, key string, op *store.Op) (store.Reply, error) {
		if len(op.Costs) > 0 {
			used, _ := b.slots().Crowd()
			free = used == 1
		}
		return s.Apply(key, op)
	}), "key", Limit{Capacity: 10, LeakRate: 1}, InFlight(2)))
	k := &BookRequest{Costs: []Cost{{1}, {math.NaN()}, {1}}, Wait: time.Hour, Horizon: time.Hour}
	if must(t, b.Book(ctx, k)); len(k.Tickets) != 1 || !free {
		t.Errorf("%d tickets; another call could start: %v", len(k.Tickets), free)
	}
}

// Tickets that come back together with a call above a capacity free their slots and their units.
func TestInFlight_TicketsBesideATooLargeCallFreeSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewSharedBucket(new(FakeStore), "k", Limit{Capacity: 10, LeakRate: 1}, InFlight(2)))
		k := BookRequest{Costs: []Cost{{5}, {5}}, Wait: time.Hour, Horizon: time.Hour}
		must(t, b.Book(ctx, &k))
		k.Unused, k.Costs = k.Tickets, []Cost{{11}}
		k.Tickets = nil
		if err := b.Book(ctx, &k); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%v", err)
		}
		synctest.Wait()
		if s := states(t, b); s[0].Level != 0 || s[1].Level != 0 {
			t.Errorf("%v units and %v in progress, want none", s[0].Level, s[1].Level)
		}
	})
}

// The calls of other processes count by the limit of the reply that says so, and not by the one that follows.
func TestInFlight_StateOfANewLimitCountsNoSlotTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := new(FakeStore), Limit{Capacity: 10, LeakRate: 1}
		old := Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			op.Age += time.Hour
			return s.Update(ctx, key, op)
		}), "k", l, InFlight(2)))
		p := admit(t, old, 1)
		time.Sleep(time.Minute)
		if n := inProgress(t, Must(NewSharedBucket(s, "k", l, InFlight(5)))); n != 1 {
			t.Errorf("%v calls in progress, want 1", n)
		}
		p.Done()
	})
}

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

// fragile fails while it is told to, after it has done its work.
type fragile struct {
	*store.Memory
	fails atomic.Bool
}

func (f *fragile) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	r, err := f.Memory.Update(ctx, key, op)
	if f.fails.Load() {
		return store.Reply{}, errors.New("the reply is lost")
	}
	return r, err
}

func TestAStoreThatFailsKeepsNoPlaceAmongTheCallsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &fragile{Memory: store.NewMemory()}
		b := Must(NewSharedBucket(store, "k", Limit{Capacity: 10, LeakRate: 1}, InFlight(1)))
		store.fails.Store(true)
		for range 3 {
			var failed *StoreError
			if _, err := b.Acquire(ctx, Cost{1}); !errors.As(err, &failed) {
				t.Errorf("%v", err)
			}
		}
		synctest.Wait()
		store.fails.Store(false)
		p := admit(t, b, 1)
		p.Done()
		admit(t, b, 1)
	})
}

// far answers after a trip.
type far struct {
	*store.Memory
	trip time.Duration
}

func (f *far) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	time.Sleep(f.trip)
	return f.Memory.Update(ctx, key, op)
}

// A caller that was refused because a trip had reserved the place hears at once when the
// trip does not use it.
func TestCallersThatWaitHearOfAPlaceThatATripGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewSharedBucket(&far{store.NewMemory(), 10 * time.Millisecond}, "k", Limit{Capacity: 10, LeakRate: 1}, InFlight(1)))
		p := admit(t, b, 10)
		p.Done()
		told := make(chan struct{}, 9)
		defer b.Waiting(func() { told <- struct{}{} })()
		var trip sync.WaitGroup
		trip.Go(func() {
			if _, err := b.Acquire(ctx, Cost{5}); !errors.Is(err, ErrThrottled) {
				t.Errorf("the limit is full: %v", err)
			}
		})
		time.Sleep(5 * time.Millisecond)
		if _, err := b.Acquire(ctx, Cost{1}); !errors.Is(err, ErrThrottled) {
			t.Errorf("while the place is reserved: %v", err)
		}
		trip.Wait()
		if len(told) == 0 {
			t.Error("nobody heard that the place is free")
		}
	})
}

// heldUp has its answers held up on their way.
type heldUp struct{ *store.Memory }

func (h heldUp) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	r, err := h.Memory.Update(ctx, key, op)
	r.When = time.Now()
	time.Sleep(300 * time.Millisecond)
	return r, err
}

// A call whose answers come too late has a place among the calls at once until it gives
// up. Callers that wait hear of the end.
func TestACallWhoseAnswersComeTooLateTellsThatItsPlaceIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewSharedBucket(heldUp{store.NewMemory()}, "k", Limit{Capacity: 10, LeakRate: 1}, InFlight(1)))
		var told atomic.Int64
		defer b.Waiting(func() { told.Add(1) })()
		var trips sync.WaitGroup
		trips.Go(func() {
			var failed *StoreError
			if _, err := b.Acquire(ctx, Cost{1}); !errors.As(err, &failed) {
				t.Errorf("every answer was late: %v", err)
			}
		})
		time.Sleep(350 * time.Millisecond)
		told.Store(0) // until now of the slot that it has been granted
		trips.Wait()
		time.Sleep(time.Second) // its place goes back without it
		synctest.Wait()
		if able, err := b.AbleToAccept(ctx, Cost{1}); !able || err != nil {
			t.Errorf("able %v, %v", able, err)
		}
		if told.Load() == 0 {
			t.Error("nobody heard that the place is free")
		}
	})
}

// Likewise of its units, if it is refused when it asks again.
func TestACallWhoseAnswerCameTooLateTellsOfItsUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewSharedBucket(heldUp{store.NewMemory()}, "k", Limit{Capacity: 1, LeakRate: 1}))
		told := 0
		defer b.Waiting(func() { told++ })()
		var trips sync.WaitGroup
		trips.Go(func() {
			if _, err := b.Acquire(ctx, Cost{1}); !errors.Is(err, ErrThrottled) {
				t.Errorf("behind one that is booked: %v", err)
			}
		})
		time.Sleep(50 * time.Millisecond)
		k := BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}
		if err := b.Book(ctx, &k); err != nil {
			t.Fatal(err)
		}
		trips.Wait()
		if told == 0 {
			t.Error("nobody heard that units came back")
		}
	})
}

// A ticket that is booked anew takes its place among the calls at once along.
func TestAMoveTakesNoSecondPlaceDuringItsTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewSharedBucket(&far{store.NewMemory(), 10 * time.Millisecond}, "k", Limit{Capacity: 1, LeakRate: 1}, InFlight(2)))
		p := admit(t, b, 1)
		k := BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}
		if err := b.Book(ctx, &k); err != nil {
			t.Fatal(err)
		}
		p.Settle(Cost{})
		p.Done()
		old := k.Tickets[0]
		k.Move = old
		var trip sync.WaitGroup
		trip.Go(func() {
			if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != 1 || k.Tickets[0] == old {
				t.Errorf("moved: %v, %v", k.Tickets, err)
			}
		})
		time.Sleep(5 * time.Millisecond)
		var full *ThrottledError
		if _, err := b.Acquire(ctx, Cost{1}); !errors.As(err, &full) || full.InProgress > 0 || full.RetryAfter == 0 {
			t.Errorf("with one of two in progress, and no unit: %v", err)
		}
		trip.Wait()
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

// Also where there are fewer places by now than calls in progress.
func TestAMoveNeedsNoFreePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Limit{Capacity: 1, LeakRate: 1}
		b := Must(NewBucket("k", l, InFlight(3)))
		set := func(slots int) {
			if err := b.SetLimits(ctx, l, InFlight(slots)); err != nil {
				t.Fatal(err)
			}
		}
		set(2)
		p := admit(t, b, 1)
		k := BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}
		if err := b.Book(ctx, &k); err != nil {
			t.Fatal(err)
		}
		set(1)
		k.Move = k.Tickets[0]
		if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != 1 {
			t.Errorf("moved: %v, %v", k.Tickets, err)
		}
		if s := states(t, b); s[0].Level != 2 || s[1].Level != 2 {
			t.Errorf("%v units and %v in progress, want 2 and 2", s[0].Level, s[1].Level)
		}
		p.Done()
	})
}

// peeking is a store that asks during a trip whether another call could start.
type peeking struct {
	store.Store
	during func()
}

func (p *peeking) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if p.during != nil && len(op.Costs) > 0 {
		p.during()
	}
	return p.Store.Update(ctx, key, op)
}

func TestWhatComesAfterAnInvalidCostTakesNoSlot(t *testing.T) {
	p := &peeking{Store: store.NewMemory()}
	b := Must(NewSharedBucket(p, "key", Limit{Capacity: 10, LeakRate: 1}, InFlight(2)))
	free := false
	p.during = func() { free = b.slots().used == 1 }
	k := &BookRequest{Costs: []Cost{{1}, {math.NaN()}, {1}}, Wait: time.Hour, Horizon: time.Hour}
	if err := b.Book(ctx, k); err != nil {
		t.Fatal(err)
	}
	if len(k.Tickets) != 1 || !free {
		t.Errorf("%d tickets; another call could start: %v", len(k.Tickets), free)
	}
}

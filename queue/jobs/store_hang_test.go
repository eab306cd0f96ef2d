package jobs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// hung is a store that answers some operations only when their ctx ends.
type hung struct {
	*store.Memory
	mu    sync.Mutex // held during hangs
	hangs func(*store.Op) bool
}

// set has another function say what hangs.
func (s *hung) set(hangs func(*store.Op) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs = hangs
}

func (s *hung) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	s.mu.Lock()
	hangs := s.hangs(op)
	s.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return store.Reply{}, ctx.Err()
	}
	return s.Memory.Update(ctx, key, op)
}

// The hold of the desk is no reason to keep a job whose ctx has ended.
func TestScheduler_HungStoreKeepsCtx(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := &hung{Memory: store.NewMemory(), hangs: func(*store.Op) bool { return false }}
		l := New(shared(t, kept, "api", perSecond...), Config{})
		ticket := book(t, l, 1)[0].Ticket
		if err := l.bucket.Hold(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		kept.set(func(op *store.Op) bool { return len(op.Reports) > 0 })
		ctx, cancel := context.WithTimeout(WithTicket(bg, ticket), 3*time.Second)
		defer cancel()
		begin := time.Now()
		_, err := l.Acquire(ctx, one)
		if later, ok := AsLater(err); !ok || later.Ticket != ticket || !near(time.Since(begin), 3*time.Second) {
			t.Errorf("after %v it has %v", time.Since(begin), err)
		}
	})
}

// A store that hangs keeps Book only for a while after its ctx: places that do not go back pass
// unused.
func TestBook_HungStoreEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var trips atomic.Int64
		kept := &hung{Memory: store.NewMemory(), hangs: func(*store.Op) bool { return trips.Add(1) > 3 }}
		l := New(shared(t, kept, "api", perSecond...), Config{})
		ctx, cancel := context.WithTimeout(bg, 3*time.Second)
		defer cancel()
		begin := time.Now()
		places, err := l.Book(ctx, slices.Repeat([]outbound.Cost{one}, mostBooked+1)...)
		if took := time.Since(begin); places != nil || !errors.Is(err, context.DeadlineExceeded) || took > 10*time.Second || trips.Load() != 5 {
			t.Errorf("after %v and %d trips it has %d places, %v", took, trips.Load(), len(places), err)
		}
	})
}

// Places go back as they are booked: the latest first, and 4 096 in a trip.
func TestBook_ReturnsReservationsAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var back []int
		store := &hung{Memory: store.NewMemory(), hangs: func(op *store.Op) bool {
			if len(op.Back) > 0 {
				back = append(back, len(op.Back))
			}
			return false
		}}
		l := New(shared(t, store, "api", outbound.Limit{Capacity: 1, LeakRate: 1000}), Config{})
		costs := append(slices.Repeat([]outbound.Cost{one}, 2*mostBooked+5), outbound.Cost{2})
		if _, err := l.Book(bg, costs...); !errors.Is(err, outbound.ErrTooLarge) {
			t.Error(err)
		}
		if !slices.Equal(back, []int{mostBooked, mostBooked, 5}) {
			t.Errorf("%d go back", back)
		}
		if at := book(t, l, 1)[0].At; time.Until(at) > 0 {
			t.Errorf("the next place is in %v", time.Until(at))
		}
	})
}

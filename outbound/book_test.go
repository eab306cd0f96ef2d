package outbound

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Reservations that return in one step are undone from the latest to the first, in whatever order they are named. Of
// several for one time, the one that was booked last is undone first.
func TestBook_ReturnedTogetherIsAsIfNeverBooked(t *testing.T) {
	for name, order := range map[string]func(tickets []Ticket){
		"as booked": func([]Ticket) {},
		"reversed":  slices.Reverse[[]Ticket],
		"shuffled": func(tickets []Ticket) {
			rand.Shuffle(len(tickets), func(i, j int) { tickets[i], tickets[j] = tickets[j], tickets[i] })
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("k", Limit{Capacity: 5, LeakRate: 128}, Limit{Capacity: 3, LeakRate: 128, Unit: 1, Name: "rows"}))
			costs := append([]Cost{{1, 1}, {1, 1}}, slices.Repeat([]Cost{{1}}, 98)...) // five of them for one time
			costs[99] = Cost{0.5}
			for range 3 {
				k := BookRequest{Costs: costs, Wait: time.Hour, Horizon: time.Hour}
				err := b.Book(ctx, &k)
				fatalIf(t, err != nil || len(k.Tickets) != 100, "%v %v", len(k.Tickets), err)
				order(k.Tickets)
				must(t, b.Book(ctx, &BookRequest{Unused: append(k.Tickets, Ticket{})})) // the last one is no reservation
			}
			for i := range 5 {
				errorIs(t, errOf(b.Acquire(ctx, Cost{1})), nil, "%s, call %d", name, i)
			}
		})
	}
}

// A hold after a reservation has returned is the same as if it had not been booked.
func TestBook_ReturnedReservationChangesNoHold(t *testing.T) {
	for _, before := range []time.Duration{-1, 0, 50 * time.Millisecond, 150 * time.Millisecond} {
		for _, kept := range []time.Duration{0, 20 * time.Millisecond} {
			wait := map[bool]time.Duration{} // without the reservation, of a bucket that is shared or not
			for _, booked := range []bool{false, true} {
				bothWays(t, func(t *testing.T, b *Bucket) {
					if before >= 0 {
						admit(t, b, 1)
						time.Sleep(before + 1)
					}
					k := BookRequest{Costs: []Cost{{1}}}
					if booked {
						must(t, b.Book(ctx, &k))
					}
					time.Sleep(kept + 1)
					must(t, b.Book(ctx, &BookRequest{Unused: k.Tickets}))
					must(t, b.Hold(ctx, 10*time.Second))
					_, due := reserve(t, b, 2)
					got := time.Until(due[1])
					if !booked {
						wait[b.Shared()] = got
					} else if d := got - wait[b.Shared()]; d.Abs() > 2 {
						t.Errorf("a call %v before, kept for %v: the second leaves in %v, want %v", before, kept, got, wait[b.Shared()])
					}
				}, Limit{Capacity: 10, LeakRate: 1})
			}
		}
	}
}

// A settle that waits for the next booking of a queue is not lost when the queue stops waiting.
func TestSettle_OutlivesTheQueueThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, limit := store.NewMemory(), Limit{Capacity: 10, LeakRate: 0.001}
		b := Must(NewSharedBucket(m, "k", limit))
		p := admit(t, b, 10)
		stop := b.Waiting(func() {})
		p.Settle(Cost{4})
		stop()
		synctest.Wait()
		s, err := Must(NewSharedBucket(m, "k", limit)).State(ctx)
		errorIf(t, err != nil || s.Level > 4, "level %v, %v, want 4", s.Level, err)
	})
}

// A booking that fails for its cost still returns its tickets.
func TestBook_InvalidCostLosesNoReturnedTicket(t *testing.T) {
	b := Must(NewBucket("k", Limit{Capacity: 5, LeakRate: 0.001}))
	k := book(t, b, BookRequest{Costs: []Cost{{5}}, Wait: time.Hour})
	err := b.Book(ctx, &BookRequest{Unused: k.Tickets, Costs: []Cost{{math.NaN()}}})
	s, _ := b.State(ctx)
	errorIf(t, !errors.Is(err, ErrInvalid) || s.Level != 0, "%v, level %v", err, s.Level)
}

package outbound

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// Places that are given back in one step are undone from the latest to the first,
// in whatever order they are named.
func TestBook_ReturnedTogetherIsAsIfNeverBooked(t *testing.T) {
	for name, shuffle := range map[string]func(tickets []Ticket){
		"as booked": func([]Ticket) {},
		"reversed": func(tickets []Ticket) {
			for i, j := 0, len(tickets)-1; i < j; i, j = i+1, j-1 {
				tickets[i], tickets[j] = tickets[j], tickets[i]
			}
		},
		"shuffled": func(tickets []Ticket) {
			rand.Shuffle(len(tickets), func(i, j int) { tickets[i], tickets[j] = tickets[j], tickets[i] })
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("k", Limit{Capacity: 1, LeakRate: 128}))
			k := BookRequest{Wait: time.Hour, Horizon: time.Hour}
			for range 100 {
				k.Costs = append(k.Costs, Cost{1})
			}
			k.Costs[99] = Cost{0.5}
			for range 3 {
				if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != 100 {
					t.Fatal(len(k.Tickets), err)
				}
				k.Back = append(k.Back[:0], k.Tickets...)
				shuffle(k.Back)
				k.Back = append(k.Back, Ticket{}) // which is no place
				costs := k.Costs
				k.Costs = nil
				must(t, b.Book(ctx, &k))
				k.Costs = costs
			}
			if _, err := b.Acquire(ctx, Cost{1}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// Several places for one time are undone, too: what was booked first of them is
// known by the order of booking alone.
func TestBook_ReservationsOfOneTimeAreUndoneInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("k", Limit{Capacity: 5, LeakRate: 5, Name: "calls"}, Limit{Capacity: 1, LeakRate: 1, Unit: 1, Name: "rows"}))
		k := BookRequest{Costs: []Cost{{1, 1}, {1, 1}, {1}, {1}, {1}}, Wait: time.Hour, Horizon: time.Hour}
		if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != 5 {
			t.Fatal(len(k.Tickets), err)
		}
		for _, i := range []int{2, 4, 0, 3, 1} {
			k.Back = append(k.Back, k.Tickets[i])
		}
		k.Costs = nil
		must(t, b.Book(ctx, &k))
		for i := range 5 {
			if _, err := b.Acquire(ctx, Cost{1}); err != nil {
				t.Errorf("call %d: %v", i, err)
			}
		}
	})
}

// A booking that was given back is no booking: a hold after it takes no call for on its
// way.
func TestBook_ReturnedReservationChangesNoHold(t *testing.T) {
	for _, before := range []time.Duration{-1, 0, 50 * time.Millisecond, 150 * time.Millisecond} {
		for _, kept := range []time.Duration{0, 20 * time.Millisecond} {
			for _, shared := range []bool{false, true} {
				var wait [2]time.Duration // without the booking, and with it
				for i := range wait {
					synctest.Test(t, func(t *testing.T) {
						b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 1}))
						if shared {
							b = Must(NewSharedBucket(store.NewMemory(), "k", Limit{Capacity: 10, LeakRate: 1}))
						}
						if before >= 0 {
							admit(t, b, 1)
							time.Sleep(before + 1)
						}
						if i == 1 {
							k := BookRequest{Costs: []Cost{{1}}}
							must(t, b.Book(ctx, &k))
							time.Sleep(kept + 1)
							must(t, b.Book(ctx, &BookRequest{Back: k.Tickets}))
						} else {
							time.Sleep(kept + 1)
						}
						must(t, b.Hold(ctx, 10*time.Second))
						k := BookRequest{Costs: []Cost{{1}, {1}}, Wait: time.Hour, Horizon: time.Hour}
						if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != 2 {
							t.Fatal(err)
						}
						wait[i] = time.Until(k.Clock.Due(k.Tickets[1]))
					})
				}
				if d := wait[1] - wait[0]; d > 2 || d < -2 {
					t.Errorf("a call %v before, kept for %v, shared %v: the second goes %v after the hold began, want %v", before, kept, shared, wait[1], wait[0])
				}
			}
		}
	}
}

// A settle that was to ride on the next booking of a queue is not lost when the queue
// stops waiting.
func TestSettle_OutlivesTheQueueThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, limit := store.NewMemory(), Limit{Capacity: 10, LeakRate: 0.001}
		b := Must(NewSharedBucket(m, "k", limit))
		p := admit(t, b, 10)
		stop := b.Waiting(func() {})
		p.Settle(Cost{4})
		stop()
		synctest.Wait()
		if s, err := Must(NewSharedBucket(m, "k", limit)).State(ctx); err != nil || s.Level > 4 {
			t.Errorf("level %v, %v, want 4", s.Level, err)
		}
	})
}

func TestBook_InvalidCostLosesNoReturnedTicket(t *testing.T) {
	b := Must(NewBucket("k", Limit{Capacity: 5, LeakRate: 0.001}))
	k := BookRequest{Costs: []Cost{{5}}, Wait: time.Hour}
	must(t, b.Book(ctx, &k))
	err := b.Book(ctx, &BookRequest{Back: k.Tickets, Costs: []Cost{{math.NaN()}}})
	if s, _ := b.State(ctx); !errors.Is(err, ErrInvalid) || s.Level != 0 {
		t.Errorf("%v, level %v", err, s.Level)
	}
}

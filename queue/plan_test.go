package queue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A queue books for one call while the store's distance is unknown, and books nothing while the last
// reservation is due beyond the low mark.
func TestPlan_ToBook(t *testing.T) {
	limit := outbound.Limit{Capacity: 1, LeakRate: 10} // reservations are due after 100 ms, 200 ms, and so on
	for _, c := range []struct {
		name           string
		shared         bool
		calls, booked  int
		wayBack, after time.Duration
		books          int
	}{
		{name: "in this process", calls: 50, books: 16},
		{name: "a store at an unknown distance", shared: true, calls: 50, books: 1},
		{name: "the last is due beyond the low mark", calls: 2, booked: 1, after: 95*ms - 1},
		{name: "the last is due at the low mark", calls: 2, booked: 1, after: 95 * ms, books: 1},
		{name: "a request is due, and the last within the latency of a reply", shared: true, calls: 3, booked: 2, wayBack: 95*ms - 1, after: 100 * ms, books: 1},
		{name: "no request is due", shared: true, calls: 3, booked: 2, wayBack: 97 * ms, after: 99 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, limit)
			if c.shared {
				b = shared(t, store.NewMemory(), limit)
			}
			if _, err := b.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
			q, begin := New(b, Config{}), time.Now()
			for range c.calls {
				q.line.add(&waiter{cost: outbound.Cost{1}, came: begin.Sub(start), ready: make(chan struct{}), deadline: begin.Add(farthest), err: ErrFar}, false)
			}
			k := outbound.BookRequest{Wait: time.Hour, Horizon: time.Hour}
			for range c.booked {
				k.Costs = append(k.Costs, outbound.Cost{1})
			}
			if err := b.Book(bg, &k); err != nil || len(k.Tickets) != c.booked {
				t.Fatalf("%s: %d reservations, %v", c.name, len(k.Tickets), err)
			}
			q.clock = k.Clock
			if c.wayBack > 0 {
				q.trips.mean, q.trips.wayBack = 1, c.wayBack
			}
			q.placeLocked(k.Tickets)
			time.Sleep(c.after)
			var now outbound.BookRequest // has the clock of now
			if err := b.Book(bg, &now); err != nil {
				t.Fatal(err)
			}
			q.clock, q.trips.ended = now.Clock, time.Now()
			first := q.toBook(time.Now())
			if n := len(q.booking.Costs); n != c.books || (first == nil) != (n == 0) {
				t.Errorf("%s: books %d, want %d", c.name, n, c.books)
			}
		})
	}
}

package queue

import (
	"slices"
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
		{name: "in this process", calls: 100, books: 64},
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
			admitted(t, b, 1)
			q, begin := New(b, Config{}), time.Now()
			for range c.calls {
				q.line.add(&waiter{cost: one, came: begin.Sub(start), ready: make(chan struct{}), deadline: begin.Add(farthest), err: ErrFar}, false)
			}
			k := outbound.BookRequest{Wait: time.Hour, Horizon: time.Hour, Costs: slices.Repeat([]outbound.Cost{one}, c.booked)}
			err := b.Book(bg, &k)
			fatalIf(t, err != nil || len(k.Tickets) != c.booked, "%s: %d reservations, %v", c.name, len(k.Tickets), err)
			q.clock = k.Clock
			if c.wayBack > 0 {
				q.requests.mean, q.requests.wayBack = 1, c.wayBack
			}
			q.giveLocked(k.Tickets)
			time.Sleep(c.after)
			var now outbound.BookRequest // has the clock of now
			must(t, b.Book(bg, &now))
			q.clock, q.requests.ended = now.Clock, time.Now()
			first := q.toBook(time.Now())
			n := len(q.booking.Costs)
			errorIf(t, n != c.books || (first == nil) != (n == 0), "%s: books %d, want %d", c.name, n, c.books)
		})
	}
}

// The queue estimates how long a request takes as TCP does, and how far away the store is.
func TestPlan_MeasuresRequests(t *testing.T) {
	for _, c := range []struct {
		name                     string
		was                      requestTimes
		took, wayBack, tolerance time.Duration
		want                     requestTimes
	}{
		{"the first", requestTimes{}, 8 * ms, 4 * ms, 5 * ms, requestTimes{mean: 8 * ms, deviation: ms * 3 / 4, wayBack: 4 * ms}},
		{"in this process", requestTimes{}, 0, 0, 5 * ms, requestTimes{mean: 1}},
		{"as usual", requestTimes{mean: 8 * ms, deviation: ms}, 8 * ms, 2 * ms, 5 * ms, requestTimes{mean: 8 * ms, deviation: ms * 3 / 4}},
		{"longer", requestTimes{mean: 8 * ms, deviation: ms}, 16 * ms, 0, 5 * ms, requestTimes{mean: 9 * ms, deviation: ms * 11 / 4}},
		{"shorter", requestTimes{mean: 8 * ms, deviation: 4 * ms}, 4 * ms, 0, 5 * ms, requestTimes{mean: 8*ms - ms/2, deviation: 4 * ms}},
		{"far too long", requestTimes{mean: 8 * ms, deviation: ms}, time.Second, 0, 5 * ms, requestTimes{mean: 8*ms + 10*ms/8, deviation: ms + 9*ms/4}},
		{"less than half, as after one that opened a connection", requestTimes{mean: 80 * ms, deviation: ms}, 8 * ms, 0, 5 * ms, requestTimes{mean: 8 * ms, deviation: ms * 3 / 4}},
		{"after an outage that ended immediately", requestTimes{mean: ms, deviation: ms}, 80 * ms, 40 * ms, 5 * ms, requestTimes{mean: 41*ms + ms/4, deviation: ms + 9*ms/4, wayBack: 40 * ms}},
		{"the latency of a reply is half the tolerance", requestTimes{mean: 8 * ms, wayBack: 4 * ms}, 8 * ms, 4 * ms, 8 * ms, requestTimes{mean: 8 * ms}},
	} {
		c.was.measure(c.took, c.wayBack, c.tolerance)
		errorIf(t, c.was != c.want, "%s: %+v, want %+v", c.name, c.was, c.want)
	}
	got := (&requestTimes{mean: 8 * ms, deviation: 2 * ms}).lowMark()
	errorIf(t, got != 21*ms, "low mark %v", got)
}

// If no call waits the sums are zero: no rounding error is left behind.
func TestPlan_EmptyQueueHasNoSum(t *testing.T) {
	q, all := New(bucket(t, outbound.PerSecond(1)), Config{}), []*waiter(nil)
	for _, n := range []float64{0.1, 0.2, 0.3} {
		all = append(all, &waiter{cost: outbound.Cost{n}})
		q.line.add(all[len(all)-1], true)
	}
	for _, i := range []int{1, 2, 0} {
		q.line.remove(all[i])
	}
	errorIf(t, q.line.all != (outbound.Cost{}) || q.line.sure != (outbound.Cost{}),
		"%v and %v are left", q.line.all, q.line.sure)
}

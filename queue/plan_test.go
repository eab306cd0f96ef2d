package queue

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// moment is a state to decide in. Ten calls of cost 1 may leave per second, and one has left
// just now: places are due after 100 ms, 200 ms and so on.
type moment struct {
	name   string
	store  bool            // the bucket is in a store
	calls  []float64       // the costs of the calls that wait
	places int             // how many places are booked; costs tells for what, if not for the first calls
	costs  []float64       // the costs that the places were booked for, if not those of the calls
	at     time.Duration   // since they were booked
	within []time.Duration // the calls' deadlines, since then; 0: none
	edit   func(*Queue, *outbound.Bucket)
}

// run calls f with the moment's state. Times count from when the places were booked.
func (m moment) run(t *testing.T, f func(s *Queue, calls []*waiter, now time.Time)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 10})
		if m.store {
			b = shared(t, store.NewMemory(), outbound.Limit{Capacity: 1, LeakRate: 10})
		}
		if _, err := b.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		s := New(b, Config{MaxLen: 5})
		s.trips.ended = begin
		var calls []*waiter
		for i, n := range m.calls {
			w := &waiter{cost: outbound.Cost{n}, came: begin.Sub(start), ready: make(chan struct{}), deadline: begin.Add(farthest), err: ErrFar}
			if i < len(m.within) && m.within[i] > 0 {
				w.deadline, w.err = begin.Add(m.within[i]), nil
			}
			s.line.add(w, false)
			calls = append(calls, w)
		}
		if m.costs == nil {
			for i := range m.places {
				m.costs = append(m.costs, 1)
				if i < len(m.calls) {
					m.costs[i] = m.calls[i]
				}
			}
		}
		k := outbound.BookRequest{Wait: time.Hour, Horizon: time.Hour}
		for _, n := range m.costs {
			k.Costs = append(k.Costs, outbound.Cost{n})
		}
		if err := b.Book(bg, &k); err != nil || len(k.Tickets) != m.places {
			t.Fatalf("%s: %d places, %v", m.name, len(k.Tickets), err)
		}
		s.clock = k.Clock
		s.placeLocked(k.Tickets)
		time.Sleep(m.at)
		if m.edit != nil {
			m.edit(s, b)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pumping = true // no other goroutine is to decide
		f(s, calls, time.Now())
	})
}

func TestPlan_ToBookDecidesWhatToBook(t *testing.T) {
	many := make([]float64, 5000)
	for i := range many {
		many[i] = 1
	}
	inf := math.Inf(1)
	day := farthest + rounding
	changed := func(s *Queue, _ *outbound.Bucket) { s.news = 1 }
	wayBack := func(d time.Duration) func(*Queue, *outbound.Bucket) {
		return func(s *Queue, b *outbound.Bucket) {
			hear(s, b)
			s.trips = trips{mean: 1, wayBack: d}
		}
	}
	for _, c := range []struct {
		moment
		first   int // the first call to book for; -1: nothing is booked
		n       int
		moves   bool
		wait    time.Duration // of the booking
		horizon time.Duration
		after   time.Duration
		claim   float64
	}{
		{moment{name: "nobody waits"}, -1, 0, false, 0, 0, 0, 0},
		{moment{name: "all have places", calls: []float64{1, 1}, places: 2}, -1, 0, false, 0, 0, 0, 0},
		{moment{name: "one has none", calls: []float64{1}}, 0, 1, false, day, 15 * ms, 0, 0},
		{moment{name: "a backlog begins", calls: []float64{1, 1, 1}}, 0, 3, false, day, 15 * ms, 0, inf},
		{moment{name: "a backlog goes on", calls: []float64{1, 1}, edit: func(s *Queue, _ *outbound.Bucket) { s.booking.Claim = 7 }}, 0, 2, false, day, 15 * ms, 0, 7},
		{moment{name: "a backlog ends", calls: []float64{1}, edit: func(s *Queue, _ *outbound.Bucket) { s.booking.Claim = 7 }}, 0, 1, false, day, 15 * ms, 0, 0},
		{moment{name: "few places were granted", calls: many}, 0, 16, false, day, 15 * ms, 0, inf},
		{moment{name: "100 were granted", calls: many, edit: func(s *Queue, _ *outbound.Bucket) { s.granted = 100 }}, 0, 116, false, day, 15 * ms, 0, inf},
		{moment{name: "very many were granted", calls: many, edit: func(s *Queue, _ *outbound.Bucket) { s.granted = 1e6 }}, 0, 4096, false, day, 15 * ms, 0, inf},
		{moment{name: "nobody knows the store's distance", store: true, calls: many}, 0, 1, false, day, 15 * ms, 0, 0},
		{moment{name: "a trip takes 6 ms", store: true, calls: many, edit: func(s *Queue, _ *outbound.Bucket) { s.trips = trips{mean: 2 * ms, deviation: ms} }},
			0, 16, false, day, 21 * ms, 0, inf},
		{moment{name: "the last place is due beyond the low mark", calls: []float64{1, 1}, places: 1, at: 95*ms - 1}, -1, 0, false, 0, 0, 0, 0},
		{moment{name: "the last place is due at the low mark", calls: []float64{1, 1}, places: 1, at: 95 * ms}, 1, 1, false, day, 15 * ms, 0, 0},
		{moment{name: "no slot is free", calls: []float64{1}, edit: func(s *Queue, _ *outbound.Bucket) {
			s.head.full, s.head.until = new(outbound.ThrottledError), time.Now().Add(slotCheck)
		}}, -1, 0, false, 0, 0, 0, 0},
		{moment{name: "a pause lasts", calls: []float64{1}, edit: func(s *Queue, _ *outbound.Bucket) { s.pause = time.Now().Add(1) }}, -1, 0, false, 0, 0, 0, 0},
		{moment{name: "a pause has ended", calls: []float64{1}, edit: func(s *Queue, _ *outbound.Bucket) { s.pause = time.Now() }}, 0, 1, false, day, 15 * ms, 0, 0},
		{moment{name: "a change, one place, far away", calls: []float64{1, 1}, places: 1, edit: changed}, 0, 1, true, day, 15 * ms, 0, 0},
		{moment{name: "the same with a backlog", calls: []float64{1, 1}, places: 1, edit: func(s *Queue, _ *outbound.Bucket) { s.news, s.booking.Claim = 1, 7 }}, 0, 1, true, day, 15 * ms, 0, 0},
		{moment{name: "a change, one place, due soon", calls: []float64{1, 1}, places: 1, at: 95 * ms, edit: changed}, 1, 1, false, day, 15 * ms, 0, 0},
		{moment{name: "a change, two places", calls: []float64{1, 1}, places: 2, edit: changed}, -1, 0, false, 0, 0, 0, 0},
		{moment{name: "a change, a place that nobody wants", places: 1, edit: changed}, -1, 0, false, 0, 0, 0, 0},
		{moment{name: "a trip is needed, and the last place is due within a way back", store: true, calls: []float64{1, 1, 1}, places: 2, at: 100 * ms, edit: wayBack(95*ms - 1)},
			2, 1, false, day, 110 * ms, 95*ms - 1, 0},
		{moment{name: "the last place is due later", store: true, calls: []float64{1, 1, 1}, places: 2, at: 100 * ms, edit: wayBack(94 * ms)}, -1, 0, false, 0, 0, 0, 0},
		{moment{name: "no trip is needed yet", store: true, calls: []float64{1, 1, 1}, places: 2, at: 99 * ms, edit: wayBack(95 * ms)}, -1, 0, false, 0, 0, 0, 0},
		{moment{name: "two trips in vain to a store", store: true, calls: []float64{1}, edit: func(s *Queue, _ *outbound.Bucket) { s.wasted, s.trips.mean = 2, 30*ms }},
			0, 1, false, day, 45 * ms, 30 * ms, 0},
		{moment{name: "one trip in vain", store: true, calls: []float64{1}, edit: func(s *Queue, _ *outbound.Bucket) { s.wasted, s.trips.mean = 1, 30*ms }},
			0, 1, false, day, 45 * ms, 0, 0},
		{moment{name: "two in vain in this process", calls: []float64{1}, edit: func(s *Queue, _ *outbound.Bucket) { s.wasted, s.trips.mean = 2, 30*ms }},
			0, 1, false, day, 45 * ms, 0, 0},
		{moment{name: "a deadline", calls: []float64{1}, at: ms, within: []time.Duration{300 * ms}}, 0, 1, false, 299*ms + rounding, 15 * ms, 0, 0},
		{moment{name: "a deadline that has passed", calls: []float64{1}, at: ms, within: []time.Duration{1}}, 0, 1, false, rounding, 15 * ms, 0, 0},
		{moment{name: "a MaxWait that is shorter than the way", store: true, calls: []float64{1}, within: []time.Duration{ms}, edit: func(s *Queue, _ *outbound.Bucket) { s.trips = trips{mean: 40 * ms, wayBack: 20 * ms} }},
			0, 1, false, 110*ms + rounding, 75 * ms, 20 * ms, 0},
		{moment{name: "a ctx that is shorter than the way", store: true, calls: []float64{1}, within: []time.Duration{ms}, edit: func(s *Queue, _ *outbound.Bucket) {
			s.trips = trips{mean: 40 * ms, wayBack: 20 * ms}
			s.line.end.next.err = context.DeadlineExceeded
		}}, 0, 1, false, ms + rounding, 75 * ms, 20 * ms, 0},
	} {
		c.run(t, func(s *Queue, calls []*waiter, now time.Time) {
			k := &s.booking
			k.Costs = []outbound.Cost{{9}}
			first := s.toBook(now)
			if c.first < 0 {
				if first != nil || len(k.Costs) > 0 || k.Move != (outbound.Ticket{}) {
					t.Errorf("%s: books %d, for %v", c.name, len(k.Costs), first)
				}
				return
			}
			if first != calls[c.first] || len(k.Costs) != c.n || k.Costs[0] != first.cost || (k.Move != outbound.Ticket{}) != c.moves {
				t.Errorf("%s: books %d of %v, moves %v, want %d from call %d on, moves %v", c.name, len(k.Costs), k.Costs[0], k.Move, c.n, c.first, c.moves)
			}
			if first.err == ErrFar { // it counts from when the call came
				c.wait -= c.at
			}
			if k.Wait != c.wait || k.Horizon != c.horizon || k.After != c.after || k.Claim != c.claim {
				t.Errorf("%s: wait %v, horizon %v, after %v, claim %v, want %v, %v, %v, %v", c.name, k.Wait, k.Horizon, k.After, k.Claim, c.wait, c.horizon, c.after, c.claim)
			}
		})
	}
}

// hear is an edit: the queue has heard the clock just now.
func hear(s *Queue, b *outbound.Bucket) {
	var k outbound.BookRequest
	if err := b.Book(bg, &k); err != nil {
		panic(err)
	}
	s.clock, s.trips.ended = k.Clock, time.Now()
}

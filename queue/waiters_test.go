package queue

import (
	"slices"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// check fails the test unless the numbers of calls that wait, and of those without a place,
// are as wanted, and the sum of their costs is right.
func (m moment) check(t *testing.T, l *waiters, n, unplaced, unused int) {
	t.Helper()
	for l.uncounted != &l.end {
		l.countNext()
	}
	all, without, sum := 0, 0, outbound.Cost{}
	for w := l.end.next; w != &l.end; w = w.next {
		if all++; w.seq >= l.unplaced.seq {
			without++
			sum[0] += w.cost[0]
		}
		if w.next.prev != w || all <= len(l.tickets) && l.tickets[all-1].Cost() != w.cost {
			t.Errorf("%s: the line is broken", m.name)
		}
	}
	if all != n || l.n != n || without != unplaced || len(l.unused) != unused || sum != l.all {
		t.Errorf("%s: %d (%d) wait, %d without a place, which cost %v (%v), %d places are unused; want %d, %d and %d",
			m.name, all, l.n, without, sum, l.all, len(l.unused), n, unplaced, unused)
	}
}

func TestWaiters_RemoveLeavesTheReservation(t *testing.T) {
	for i, unplaced := range []int{1, 1, 1, 1} {
		m := moment{name: "four calls, two places", calls: []float64{1, 1, 1, 1}, places: 2}
		m.run(t, func(s *Queue, calls []*waiter, _ time.Time) {
			s.line.remove(calls[i])
			m.check(t, &s.line, 3, unplaced, 0)
		})
	}
	m := moment{name: "all leave", calls: []float64{0.1, 0.2, 0.3}, places: 1}
	m.run(t, func(s *Queue, calls []*waiter, _ time.Time) {
		for _, i := range []int{1, 2, 0} {
			s.line.remove(calls[i])
		}
		m.check(t, &s.line, 0, 0, 1)
		s.line.add(&waiter{cost: outbound.Cost{1}}, false)
		m.check(t, &s.line, 1, 1, 1)
	})
}

func TestWaiters_UnfitReservationsAreReturned(t *testing.T) {
	for _, c := range []struct {
		moment
		unplaced, unused int
	}{
		{moment{name: "all fit", calls: []float64{1, 1, 1}, places: 2}, 1, 0},
		{moment{name: "one is beyond the last call", calls: []float64{1}, places: 2}, 0, 1},
		{moment{name: "nobody waits", places: 2}, 0, 2},
		{moment{name: "of other costs from the second on", calls: []float64{1, 0.5, 1, 1}, places: 3, costs: []float64{1, 1, 1}}, 3, 2},
		{moment{name: "of another cost at first", calls: []float64{1, 0.5}, places: 2, costs: []float64{0.5, 0.5}}, 2, 2},
		{moment{name: "of other costs, and beyond the last call", calls: []float64{1, 0.5}, places: 3, costs: []float64{1, 1, 1}}, 1, 2},
		{moment{name: "void after a Resume", calls: []float64{1, 1, 1}, places: 2, edit: func(s *Queue, b *outbound.Bucket) {
			if err := b.Resume(bg); err != nil {
				t.Error(err)
			}
			hear(s, b)
		}}, 3, 2},
		{moment{name: "not void after a hold", calls: []float64{1, 1, 1}, places: 2, edit: func(s *Queue, b *outbound.Bucket) {
			if err := b.Hold(bg, time.Second); err != nil {
				t.Error(err)
			}
			hear(s, b)
		}}, 1, 0},
	} {
		c.run(t, func(s *Queue, calls []*waiter, _ time.Time) {
			booked := slices.Concat(s.line.tickets, s.line.unused)
			s.placeLocked(s.line.takePlaces())
			c.check(t, &s.line, len(calls), c.unplaced, c.unused)
			if !slices.Equal(slices.Concat(s.line.tickets, s.line.unused), booked) {
				t.Errorf("%s: other places than were booked", c.name)
			}
		})
	}
}

func TestTrips_AreMeasured(t *testing.T) {
	for _, c := range []struct {
		name                     string
		was                      trips
		took, wayBack, tolerance time.Duration
		want                     trips
	}{
		{"the first", trips{}, 8 * ms, 4 * ms, 5 * ms, trips{mean: 8 * ms, deviation: ms * 3 / 4, wayBack: 4 * ms}},
		{"in this process", trips{}, 0, 0, 5 * ms, trips{mean: 1}},
		{"as usual", trips{mean: 8 * ms, deviation: ms}, 8 * ms, 2 * ms, 5 * ms, trips{mean: 8 * ms, deviation: ms * 3 / 4}},
		{"longer", trips{mean: 8 * ms, deviation: ms}, 16 * ms, 0, 5 * ms, trips{mean: 9 * ms, deviation: ms * 11 / 4}},
		{"shorter", trips{mean: 8 * ms, deviation: 4 * ms}, 4 * ms, 0, 5 * ms, trips{mean: 8*ms - ms/2, deviation: 4 * ms}},
		{"far too long", trips{mean: 8 * ms, deviation: ms}, time.Second, 0, 5 * ms, trips{mean: 8*ms + 10*ms/8, deviation: ms + 9*ms/4}},
		{"less than half, as after one that opened a connection", trips{mean: 80 * ms, deviation: ms}, 8 * ms, 0, 5 * ms, trips{mean: 8 * ms, deviation: ms * 3 / 4}},
		{"after an outage that was over at once", trips{mean: ms, deviation: ms}, 80 * ms, 40 * ms, 5 * ms, trips{mean: 41*ms + ms/4, deviation: ms + 9*ms/4, wayBack: 40 * ms}},
		{"the way back is half the tolerance", trips{mean: 8 * ms, wayBack: 4 * ms}, 8 * ms, 4 * ms, 8 * ms, trips{mean: 8 * ms}},
	} {
		c.was.measure(c.took, c.wayBack, c.tolerance)
		if c.was != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, c.was, c.want)
		}
	}
	if got := (&trips{mean: 8 * ms, deviation: 2 * ms}).lowMark(); got != 21*ms {
		t.Errorf("low mark %v", got)
	}
}

func TestPlan_LongestWaitUntilADeadline(t *testing.T) {
	now := time.Now()
	for in, want := range map[time.Duration]time.Duration{-time.Hour: rounding, 0: rounding, ms: ms + rounding, forever: forever} {
		if got := within(now.Add(in), now); got != want {
			t.Errorf("in %v: %v, want %v", in, got, want)
		}
	}
}

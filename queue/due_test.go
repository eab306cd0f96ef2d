package queue

import (
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

func TestPump_NextInIsTheNextTimeToAct(t *testing.T) {
	noSlot := func(s *Queue, _ *outbound.Bucket) {
		s.head.full, s.head.until = new(outbound.ThrottledError), time.Now().Add(slotCheck)
	}
	pause := func(s *Queue, _ *outbound.Bucket) { s.pause = time.Now().Add(40 * ms) }
	trip := func(s *Queue, _ *outbound.Bucket) { s.trips.mean = 20 * ms }
	hold := func(s *Queue, b *outbound.Bucket) {
		if err := b.Hold(bg, 20*time.Second); err != nil {
			t.Error(err)
		}
		hear(s, b)
	}
	for _, c := range []struct {
		moment
		in time.Duration
	}{
		{moment{name: "one has no place", calls: []float64{1}}, 0},
		{moment{name: "one has no place in a pause", calls: []float64{1}, edit: pause}, 40 * ms},
		{moment{name: "all have places", calls: []float64{1, 1}, places: 2}, 100 * ms},
		{moment{name: "the first is due", calls: []float64{1, 1}, places: 2, at: 100 * ms}, 0},
		{moment{name: "the next is to be booked at the low mark", calls: []float64{1, 1}, places: 1, at: 10 * ms}, 85 * ms},
		{moment{name: "of two places the last one counts", calls: []float64{1, 1, 1}, places: 2}, 100 * ms},
		{moment{name: "the low mark comes during a pause", calls: []float64{1, 1}, places: 1, at: 80 * ms, edit: pause}, 20 * ms},
		{moment{name: "a change", calls: []float64{1}, places: 1, edit: func(s *Queue, _ *outbound.Bucket) { s.news = 1 }}, 0},
		{moment{name: "a place goes back", calls: []float64{1}, places: 1, edit: func(s *Queue, _ *outbound.Bucket) {
			s.line.unused = append(s.line.unused, outbound.Ticket{})
		}}, 0},
		{moment{name: "a place more than calls", calls: []float64{1}, places: 2}, 0},
		{moment{name: "there was no news for long", store: true, calls: []float64{1}, places: 1, edit: func(s *Queue, _ *outbound.Bucket) {
			s.trips.ended = time.Now().Add(-newsCheck)
		}}, 0},
		{moment{name: "no slot is free", calls: []float64{1}, edit: noSlot}, slotCheck},
		{moment{name: "no slot is free, and a deadline", calls: []float64{1}, within: []time.Duration{300 * ms}, at: ms, edit: noSlot}, 299 * ms},
		{moment{name: "no slot is free for the second", calls: []float64{1, 1}, places: 1, edit: noSlot}, 100 * ms},
		{moment{name: "the clock is too old a trip before the place", store: true, calls: []float64{1}, places: 1, edit: trip}, 75 * ms},
		{moment{name: "the clock is young enough", store: true, calls: []float64{1}, places: 1, at: 80 * ms, edit: hear}, 20 * ms},
		{moment{name: "the clock is too old for the second place only", store: true, calls: []float64{1, 1}, places: 2, at: 80 * ms, edit: func(s *Queue, b *outbound.Bucket) {
			hear(s, b)
			s.trips.mean = 110 * ms
		}}, 5 * ms},
		{moment{name: "a place far away in a store", store: true, calls: []float64{1}, places: 1, edit: hold}, newsCheck},
		{moment{name: "a place far away in this process", calls: []float64{1}, places: 1, edit: hold}, 20*time.Second + 100*ms},
	} {
		c.run(t, func(s *Queue, _ []*waiter, now time.Time) {
			if in := s.nextIn(now); in != c.in && !(in <= 0 && c.in == 0) {
				t.Errorf("%s: in %v, want %v", c.name, in, c.in)
			}
		})
	}
}

// letGoLocked decides what becomes of the first place.
func TestQueue_PlaceIsUsedGoesBackOrStays(t *testing.T) {
	for _, c := range []struct {
		moment
		fate string
		late time.Duration
	}{
		{moment{name: "it is not due", calls: []float64{1}, places: 1, at: 99 * ms}, "stays", 0},
		{moment{name: "it is due", calls: []float64{1}, places: 1, at: 100 * ms, edit: hear}, "used", 0},
		{moment{name: "it is due, and the bucket was not asked", calls: []float64{1}, places: 1, at: 100 * ms}, "stays", 0},
		{moment{name: "it is late by the tolerance", calls: []float64{1}, places: 1, at: 110 * ms, edit: hear}, "used", 10 * ms},
		{moment{name: "it is later", calls: []float64{1}, places: 1, at: 111 * ms, edit: hear}, "late", 11 * ms},
		{moment{name: "a tolerance was set", calls: []float64{1}, places: 1, at: 111 * ms, edit: func(s *Queue, b *outbound.Bucket) {
			hear(s, b)
			s.config.Tolerance = 11 * ms
		}}, "used", 11 * ms},
		{moment{name: "nobody waits", places: 1, at: 120 * ms, edit: hear}, "unwanted", 0},
		{moment{name: "it was booked for another cost", calls: []float64{0.5}, places: 1, costs: []float64{1}, at: 100 * ms, edit: hear}, "unwanted", 0},
		{moment{name: "a trip moves it", calls: []float64{1}, places: 1, at: 100 * ms, edit: func(s *Queue, b *outbound.Bucket) {
			hear(s, b)
			s.booking.Move = s.line.tickets[0]
		}}, "stays", 0},
		{moment{name: "the store's clock is young enough", store: true, calls: []float64{1}, places: 1, at: 80 * ms, edit: func(s *Queue, b *outbound.Bucket) {
			hear(s, b)
			time.Sleep(21 * ms)
		}}, "used", ms},
		{moment{name: "the store's clock is too old", store: true, calls: []float64{1}, places: 1, at: 100 * ms}, "stays", 0},
	} {
		c.run(t, func(s *Queue, _ []*waiter, now time.Time) {
			s.letGoLocked(now)
			fate := "stays"
			switch {
			case s.stats.Admitted > 0:
				fate = "used"
			case s.stats.Late > 0:
				fate = "late"
			case len(s.line.unused) > 0:
				fate = "unwanted"
			}
			if late := s.line.latest; fate != c.fate || fate == "late" && late != c.late {
				t.Errorf("%s: %v, late by %v, want %v, %v", c.name, fate, late, c.fate, c.late)
			}
		})
	}
}

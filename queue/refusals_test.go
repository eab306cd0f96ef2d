package queue

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// refusal is a call that was refused.
type refusal struct {
	w   *waiter
	err error
}

// refused is a refusal that a test expects.
type refused struct {
	call  int // its index
	after time.Duration
	is    error // besides outbound.ErrThrottled; nil: nothing
}

// expect fails the test unless all are the calls that want names, in this order.
func (m moment) expect(t *testing.T, calls []*waiter, all []refusal, want ...refused) {
	t.Helper()
	for i := range max(len(all), len(want)) {
		if i >= len(all) || i >= len(want) {
			t.Errorf("%s: %d are refused, want %d", m.name, len(all), len(want))
			return
		}
		var full *outbound.ThrottledError
		got, call := all[i], slices.Index(calls, all[i].w)
		switch is := want[i].is; {
		case call != want[i].call:
			t.Errorf("%s: call %d is refused, want %d", m.name, call, want[i].call)
		case errors.Is(is, outbound.ErrTooLarge):
			if !errors.Is(got.err, is) {
				t.Errorf("%s: call %d: %v, want %v", m.name, call, got.err, is)
			}
		case !errors.As(got.err, &full) || full.Err != is || full.RetryAfter != want[i].after || full.Key != "test" && full.Key != "k":
			t.Errorf("%s: call %d: %v (%+v), want it after %v, %v", m.name, call, got.err, full, want[i].after, is)
		}
	}
}

func TestPlan_AdmitRefusesCallsThatNeedNotWait(t *testing.T) {
	five := []float64{1, 1, 1, 1, 1}
	for _, c := range []struct {
		moment // the last of calls is the new one
		after  time.Duration
		is     error
		waits  bool
	}{
		{moment{name: "no deadline", calls: []float64{1, 1}}, 0, nil, true},
		{moment{name: "the forecast is the deadline", calls: []float64{1, 1}, places: 1, within: []time.Duration{0, 200 * ms}}, 0, nil, true},
		{moment{name: "the forecast is later by rounding", calls: []float64{1, 1}, places: 1, within: []time.Duration{0, 200*ms - rounding}}, 0, nil, true},
		{moment{name: "the forecast is later", calls: []float64{1, 1}, places: 1, within: []time.Duration{0, 200*ms - rounding - 1}}, 200 * ms, nil, false},
		{moment{name: "others without a place count", calls: []float64{1, 1, 1}, places: 1, at: 50 * ms, within: []time.Duration{0, 0, 250 * ms}}, 250 * ms, nil, false},
		{moment{name: "later than its ctx", calls: []float64{1, 1}, places: 1, within: []time.Duration{0, 100 * ms}, edit: func(s *Queue, _ *outbound.Bucket) {
			s.line.end.prev.err = context.DeadlineExceeded
		}}, 200 * ms, context.DeadlineExceeded, false},
		{moment{name: "no bucket is as large", calls: []float64{1, 2}}, 0, outbound.ErrTooLarge, false},
		{moment{name: "the line is full", calls: append(five, 1), places: 0}, 600 * ms, ErrFull, false},
		{moment{name: "one is left", calls: five}, 0, nil, true},
		{moment{name: "nothing is known", calls: []float64{1, 2}, within: []time.Duration{0, ms}, edit: func(s *Queue, _ *outbound.Bucket) {
			s.clock = outbound.Clock{}
		}}, 0, nil, true},
		{moment{name: "the line is full and nothing is known", calls: append(five, 1), edit: func(s *Queue, _ *outbound.Bucket) {
			s.clock = outbound.Clock{}
		}}, 0, ErrFull, false},
		{moment{name: "the first, while a place goes back", calls: []float64{1}, within: []time.Duration{ms}, edit: func(s *Queue, _ *outbound.Bucket) {
			s.line.unused = append(s.line.unused, outbound.Ticket{})
		}}, 0, nil, true},
		{moment{name: "the first, while nothing goes back", calls: []float64{1}, within: []time.Duration{ms}}, 100 * ms, nil, false},
	} {
		c.run(t, func(s *Queue, calls []*waiter, now time.Time) {
			last := len(calls) - 1
			s.line.remove(calls[last])
			for s.line.uncounted != &s.line.end {
				s.line.uncounted.sure = true
				s.line.countNext()
			}
			err := s.admitLocked(calls[last], now)
			if c.waits {
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
				return
			}
			c.expect(t, calls, []refusal{{calls[last], err}}, refused{last, c.after, c.is})
		})
	}
}

// allRefused returns the calls that were refused, in order.
func allRefused(calls []*waiter) (all []refusal) {
	for _, w := range calls {
		if w.gone && w.err != nil {
			all = append(all, refusal{w, w.err})
		}
	}
	return all
}

func TestPlan_HopelessCallsAfterAChange(t *testing.T) {
	hold := func(s *Queue, b *outbound.Bucket) {
		if err := b.Hold(bg, time.Second); err != nil {
			t.Error(err)
		}
		hear(s, b)
	}
	lower := func(s *Queue, b *outbound.Bucket) {
		if err := b.SetLimits(bg, outbound.Limit{Capacity: 0.5, LeakRate: 10}); err != nil {
			t.Error(err)
		}
		hear(s, b)
	}
	for _, c := range []struct {
		moment
		want []refused
	}{
		{moment{name: "nothing has changed", calls: []float64{1, 1, 1}, places: 1, within: []time.Duration{100 * ms, 200 * ms, 300 * ms}}, nil},
		{moment{name: "a hold, no deadlines", calls: []float64{1, 1, 1}, places: 1, edit: hold}, nil},
		{moment{name: "a hold, all in time", calls: []float64{1, 1}, places: 1, within: []time.Duration{1100 * ms, 1200 * ms}, edit: hold}, nil},
		{moment{name: "a call with a place is too late, the next has it", calls: []float64{1, 1, 1}, places: 1,
			within: []time.Duration{time.Second, 1100 * ms, 1200 * ms}, edit: hold}, []refused{{0, 1100 * ms, nil}}},
		{moment{name: "so are all behind that need the others' places", calls: []float64{1, 1, 1}, places: 1,
			within: []time.Duration{2 * time.Second, 1199 * ms, 1200 * ms}, edit: hold}, []refused{{1, 1200 * ms, nil}}},
		{moment{name: "by a ctx", calls: []float64{1}, places: 1, within: []time.Duration{time.Second}, edit: func(s *Queue, b *outbound.Bucket) {
			hold(s, b)
			s.line.end.next.err = context.DeadlineExceeded
		}}, []refused{{0, 1100 * ms, context.DeadlineExceeded}}},
		{moment{name: "a store as far away as MaxWait", store: true, calls: []float64{1}, within: []time.Duration{time.Second}, edit: func(s *Queue, b *outbound.Bucket) {
			hold(s, b)
			s.trips = trips{mean: 2 * time.Second, wayBack: time.Second}
		}}, nil},
		{moment{name: "what is too large now", calls: []float64{0.5, 1, 0.5}, edit: lower}, []refused{{1, 0, outbound.ErrTooLarge}}},
	} {
		c.run(t, func(s *Queue, calls []*waiter, now time.Time) {
			s.placeLocked(s.line.takePlaces())
			s.line.uncount()
			s.countLocked(now)
			c.expect(t, calls, allRefused(calls), c.want...)
		})
	}
}

func TestPlan_ExpiredCalls(t *testing.T) {
	noSlot := func(s *Queue, _ *outbound.Bucket) {
		s.head.full = &outbound.ThrottledError{Limit: "slots", InProgress: 3, Oldest: time.Minute}
	}
	at := []time.Duration{100 * ms, 100 * ms, 101 * ms, 50 * ms}
	four := []float64{1, 1, 1, 1}
	for _, c := range []struct {
		moment
		want []refused
	}{
		{moment{name: "they wait for their places", calls: four, at: 100 * ms, within: at}, []refused{{0, 0, nil}, {1, 0, nil}}},
		{moment{name: "they wait for a slot", calls: four, at: 100 * ms, within: at, edit: noSlot}, []refused{{0, 0, nil}, {1, 0, nil}}},
		{moment{name: "the first has a place", calls: four, places: 1, at: 100 * ms, within: at, edit: noSlot}, []refused{{1, 0, nil}}},
		{moment{name: "a store brings no place in time", calls: four, at: 100 * ms, within: at, edit: func(s *Queue, _ *outbound.Bucket) {
			s.head.until = time.Now().Add(-ms)
			s.line.end.next.err = context.DeadlineExceeded
		}}, []refused{{0, 0, context.DeadlineExceeded}, {1, 0, nil}}},
	} {
		c.run(t, func(s *Queue, calls []*waiter, now time.Time) {
			s.pause, s.line.uncounted = now.Add(time.Hour), &s.line.end // it books and judges nothing
			s.stepLocked()
			all := allRefused(calls)
			c.expect(t, calls, all, c.want...)
			for _, r := range all {
				e := r.err.(*outbound.ThrottledError)
				if s.head.full != nil && (e.Limit != "slots" || e.InProgress != 3 || e.Oldest != time.Minute+100*ms) {
					t.Errorf("%s: %+v does not tell of the calls in progress", c.name, e)
				}
			}
		})
	}
}

// A call that comes while no other waits is refused by the bucket, with the reason why it does not
// wait longer.
func TestQueue_RefusalOfTheBucketHasTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1.0 / (48 * 3600)})
		if _, err := b.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		soon, stop := context.WithTimeout(bg, time.Minute)
		defer stop()
		for _, c := range []struct {
			ctx     context.Context
			maxWait time.Duration
			want    error
		}{
			{bg, 0, ErrFar}, {bg, time.Hour, nil}, {soon, time.Hour, context.DeadlineExceeded}, {soon, 0, context.DeadlineExceeded},
		} {
			q := New(b, Config{MaxWait: c.maxWait})
			_, err := q.Acquire(c.ctx, outbound.Cost{1})
			full, ok := errors.AsType[*outbound.ThrottledError](err)
			if !ok || full.Err != c.want || full.RetryAfter < 47*time.Hour || q.Stats() != (Stats{Refused: 1}) {
				t.Errorf("%v (%+v), %+v, want %v", err, full, q.Stats(), c.want)
			}
		}
	})
}

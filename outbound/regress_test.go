package outbound

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestStatesBesideSetLimitsAreOfOneMoment(t *testing.T) {
	a := Limit{Capacity: 1, LeakRate: 1}
	b := Must(NewBucket("k", a))
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 2000 {
			b.SetLimits(ctx, a)
			b.SetLimits(ctx, a, a.Of(0, "b"), a.Of(0, "c"), InFlight(1))
		}
	})
	for range 4000 {
		all, err := b.States(ctx)
		if err != nil || len(all) != 1 && len(all) != 4 {
			t.Fatalf("%d states, %v", len(all), err)
		}
	}
	wg.Wait()
}

func TestABadCostInABookingLosesNoTicketThatGoesBack(t *testing.T) {
	b := Must(NewBucket("k", Limit{Capacity: 5, LeakRate: 0.001}))
	k := BookRequest{Costs: []Cost{{5}}, Wait: time.Hour}
	if err := b.Book(ctx, &k); err != nil {
		t.Fatal(err)
	}
	err := b.Book(ctx, &BookRequest{Back: k.Tickets, Costs: []Cost{{math.NaN()}}})
	if s, _ := b.State(ctx); !errors.Is(err, ErrInvalid) || s.Level != 0 {
		t.Errorf("%v, level %v", err, s.Level)
	}
}

func TestASettleBeyondReasonIsReportedAndDoesNotCount(t *testing.T) {
	b := Must(NewBucket("k", Limit{Capacity: 5, LeakRate: 0.001}))
	var errs []error
	l := Observe(b, "n", func(_ context.Context, e Event) {
		if e.Kind == EventSettled {
			errs = append(errs, e.Err)
		}
	})
	p, err := l.Acquire(ctx, Cost{5})
	if err != nil {
		t.Fatal(err)
	}
	p.Settle(Cost{1e13})
	p.Settle(Cost{1})
	if s, _ := b.State(ctx); len(errs) != 2 || !errors.Is(errs[0], ErrInvalid) || errs[1] != nil || math.Abs(s.Level-1) > 0.01 {
		t.Errorf("%v, level %v", errs, s.Level)
	}
}

// Without an answer nobody knows whether the API would have taken the call.
func TestACallWithoutAnAnswerIsNoSuccess(t *testing.T) {
	for name, limits := range map[string][]Limit{"one": {{Capacity: 10, LeakRate: 1}}, "two": {{Capacity: 10, LeakRate: 1}, InFlight(5)}} {
		for _, failed := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				b := Must(NewBucket("k", limits...))
				l := Observe(b, "n", func(context.Context, Event) {})
				p, err := l.Acquire(ctx, Cost{1})
				if err != nil {
					t.Fatal(err)
				}
				if failed {
					p.Failed()
				} else {
					p.Done()
				}
				if p, err = l.Acquire(ctx, Cost{1}); err != nil {
					t.Fatal(err)
				}
				p.Refused(time.Second)
				p.Done()
				// A refusal after a success slows the clock; before any it says nothing.
				if s, _ := b.State(ctx); (s.Speed == 1) != failed {
					t.Errorf("%s, failed %v: speed %v", name, failed, s.Speed)
				}
			})
		}
	}
}

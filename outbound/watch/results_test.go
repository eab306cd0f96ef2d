package watch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A call that a function of OnCall breaks gives its place back, as it never goes.
func TestOnCall_PanicReturnsTheCall(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("own") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			var b Board
			slots := bucket(t, outbound.InFlight(1), outbound.Limit{Capacity: 1, LeakRate: 0.001})
			l, breaks := b.Add("api", slots), true
			b.OnCall = func(context.Context, Call) {
				if breaks {
					end()
				}
			}
			done := make(chan any)
			go func() {
				defer func() { done <- recover() }()
				_, _ = l.Acquire(bg, outbound.Cost{1})
			}()
			if got := <-done; (got == nil) != (name == "Goexit") {
				t.Errorf("recovered %v", got)
			}
			breaks = false
			if p, err := l.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Error(err)
			} else {
				p.Done()
			}
			if c := only(t, &b).Calls; c.Admitted != 2 || c.Failed != 0 {
				t.Errorf("%+v", c)
			}
		})
	}
}

// A call whose own ctx has ended is cancelled, however its limiter says so. A store's deadline, or its context, is not
// the caller's.
func TestResults_CancelledAndFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the user has left")
		left, leave := context.WithCancelCause(bg)
		leave(cause)
		late, cancel := context.WithTimeout(bg, time.Nanosecond)
		defer cancel()
		time.Sleep(time.Second)
		store := func(err error) error { return &outbound.StoreError{Op: "book", Key: "k", Err: err} }
		for _, c := range []struct {
			ctx  context.Context
			err  error
			want string
		}{
			{left, context.Canceled, "cancelled"},
			{left, cause, "cancelled"},
			{left, store(context.Canceled), "cancelled"},
			{late, fmt.Errorf("own: %w", context.DeadlineExceeded), "cancelled"},
			{late, store(fmt.Errorf("net: %w", context.DeadlineExceeded)), "cancelled"},
			{late, &outbound.CostError{Err: outbound.ErrTooLarge}, "map[cost:1]"},
			{late, &outbound.ThrottledError{Err: context.DeadlineExceeded}, "refused"},
			{bg, store(context.DeadlineExceeded), "map[store:1]"},
			{bg, store(context.Canceled), "map[store:1]"},
			{bg, fmt.Errorf("own: %w", outbound.ErrThrottled), "refused"},
			{nil, errors.New("own"), "map[other:1]"},
		} {
			var b Board
			var call Call
			b.OnCall = func(_ context.Context, c Call) { call = c }
			l := b.Add("api", limiterFunc(func(context.Context, outbound.Cost) (outbound.Permit, error) { return outbound.Permit{}, c.err }))
			if _, err := l.Acquire(c.ctx, outbound.Cost{1}); err != c.err {
				t.Errorf("%v became %v", c.err, err)
			}
			is := only(t, &b).Calls
			got := fmt.Sprint(is.ByError)
			result := "failed"
			switch {
			case is.Cancelled == 1:
				got, result = "cancelled", "cancelled"
			case is.Refused == 1:
				got, result = "refused", "refused"
			}
			if call.Name != "api" || call.Result != result || call.Err != c.err {
				t.Errorf("OnCall got %+v, and counted is %s", call, got)
			}
			if sum := is.Cancelled + is.Refused + is.Failed + is.Admitted; got != c.want || sum != 1 {
				t.Errorf("%v is %s, want %s: %+v", c.err, got, c.want, is)
			}
		}
	})
}

// A limiter may admit a cost that is no number. The sums stay numbers, and so does what is shown.
func TestUnits_InvalidNumbersAreNotSummed(t *testing.T) {
	var b Board
	l := b.Add("api", outbound.Unlimited{})
	for _, n := range []float64{1, math.Inf(1), math.NaN(), -5, math.MaxFloat64, 2} {
		p, err := l.Acquire(bg, outbound.Cost{n, n})
		if err != nil {
			t.Fatal(err)
		}
		told(&p, "both", 5, math.Inf(1), time.Hour)
		told(&p, "other", math.NaN(), 3, time.Hour)
	}
	s := b.Snapshot(bg, Query{})
	if c := s.Limiters[0].Calls; c.Units[0] != 3 || c.Units[1] != 3 || c.Admitted != 6 {
		t.Errorf("%+v", c)
	}
	for _, x := range s.Limiters[0].Budgets {
		if x.Limit*x.Remaining >= 0 { // one is -1
			t.Errorf("%+v", x)
		}
	}
	jsonOf(t, s)
}

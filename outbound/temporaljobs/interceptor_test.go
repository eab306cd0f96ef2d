package temporaljobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

func call(name string, f any) map[string]any { return map[string]any{name: f} }

// The RetryPolicy's own delay is an hour, so whoever comes soon comes by the adapter's.
func TestInterceptor_LaterIsRescheduledWithItsTicket(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		s := &script{answer: func(_ context.Context, n int) error {
			switch n {
			case 1:
				return &jobs.Later{In: 20 * time.Millisecond, Ticket: "a place"}
			case 2:
				return &jobs.Later{Ticket: "a place", Err: store.ErrUnavailable} // at once
			case 3:
				return &jobs.Later{In: 2 * time.Millisecond, Ticket: "another"}
			}
			return nil
		}}
		var c counter
		tickets := &kept{}
		w := &world{limiter: s.paced, tickets: tickets, activities: call("Call", c.call)}
		took, err := run(w, order{Activity: "Call"})
		if err != nil || c.runs != 1 || s.done != 1 {
			t.Errorf("%v; the activity ran %d times and ended %d calls", err, c.runs, s.done)
		}
		if took > 30*time.Minute {
			t.Errorf("it took %v", took)
		}
		one := outbound.Cost{1}
		s.check(t, arrival{"", one, 1}, arrival{"a place", one, 2}, arrival{"a place", one, 3}, arrival{"another", one, 4})
		if len(tickets.tickets) != 1 || tickets.gets != 3 || len(tickets.ttls) != 3 || tickets.ttls[0] != time.Hour+20*time.Millisecond {
			t.Errorf("tickets %v, kept for %v", tickets.tickets, tickets.ttls)
		}
		if bad := w.log.text(); bad != "" {
			t.Errorf("logged:\n%s", bad)
		}
	})
}

func TestInterceptor_LaterKeepsTheLastAttempt(t *testing.T) {
	for _, attempts := range []int32{1, 3} {
		inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
			s := &script{answer: func(_ context.Context, n int) error {
				if n <= 5 {
					return &jobs.Later{In: time.Duration(n) * time.Millisecond, Ticket: "a place"}
				}
				return nil
			}}
			var c counter
			w := &world{limiter: s.paced, tickets: &kept{}, activities: call("Call", c.call)}
			if _, err := run(w, order{Activity: "Call", Attempts: attempts}); err != nil || c.runs != 1 {
				t.Errorf("MaximumAttempts %d: %v, and the activity ran %d times", attempts, err, c.runs)
			}
			want := []arrival{{attempt: 1, cost: outbound.Cost{1}}}
			for n := range int32(5) {
				want = append(want, arrival{"a place", outbound.Cost{1}, min(n+2, attempts)})
			}
			s.check(t, want...)
		})
	}
}

// An activity that came back without its ticket would get a reservation behind all others, again and again.
func TestInterceptor_WaitsWithoutTickets(t *testing.T) {
	for _, await := range []bool{false, true} {
		inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
			s := &script{
				answer: func(_ context.Context, n int) error {
					switch n {
					case 1:
						return &jobs.Later{In: 3 * time.Millisecond, Ticket: "a place"}
					case 2:
						return &jobs.Later{In: time.Millisecond, Ticket: "another"} // the first is void
					}
					return nil
				},
				place: func(outbound.Cost) (jobs.Run, error) {
					return jobs.Run{At: time.Now(), Ticket: "a place"}, nil
				},
			}
			w := &world{limiter: s.paced, activities: call("Call", new(counter).call)}
			if _, err := run(w, order{Activity: "Call", Await: await, Cost: outbound.Cost{1}}); err != nil {
				t.Error(err)
			}
			want := []arrival{{"", outbound.Cost{1}, 1}, {"a place", outbound.Cost{1}, 1}, {"another", outbound.Cost{1}, 1}}
			if await { // the workflow keeps that reservation, and no other
				want = []arrival{{"a place", outbound.Cost{1}, 1}, {"a place", outbound.Cost{1}, 2}, {"another", outbound.Cost{1}, 2}}
			}
			s.check(t, want...)
		})
	}
}

// Waiting for a reservation that comes after the attempt's deadline would help nobody.
func TestInterceptor_LastAttemptWithoutTimeFails(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		s := &script{answer: func(context.Context, int) error { return &jobs.Later{In: time.Hour} }}
		var c counter
		w := &world{limiter: s.paced, activities: call("Call", c.call)}
		_, err := run(w, order{Activity: "Call", Attempts: 1})
		var failure *temporal.ApplicationError
		if !errors.As(err, &failure) || failure.Type() != "Later" || c.runs != 0 || len(s.arrivals) != 1 {
			t.Errorf("%v, %d arrivals, and the activity ran %d times", err, len(s.arrivals), c.runs)
		}
		if !strings.Contains(w.log.text(), "ERROR Activity error.") {
			t.Errorf("nobody is told: %q", w.log.text())
		}
	})
}

func TestInterceptor_CostAboveCapacityIsNotRetried(t *testing.T) {
	for _, never := range []error{&outbound.CostError{Key: "k", Err: outbound.ErrTooLarge}, fmt.Errorf("own: %w", &outbound.CostError{Err: outbound.ErrInvalid})} {
		inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
			s := &script{answer: func(context.Context, int) error { return never }}
			var c counter
			w := &world{limiter: s.paced, activities: call("Call", c.call)}
			_, err := run(w, order{Activity: "Call", Attempts: 2, Interval: time.Millisecond})
			var failure *temporal.ApplicationError
			if !errors.As(err, &failure) || failure.Type() != TypeCost || !failure.NonRetryable() || len(s.arrivals) != 1 || c.runs != 0 {
				t.Errorf("%v, %d arrivals, and the activity ran %d times", err, len(s.arrivals), c.runs)
			}
		})
	}
}

func TestInterceptor_NilLimiterIsAnError(t *testing.T) {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(new(logs))
	env := suite.NewTestActivityEnvironment()
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{NewInterceptor(nil, nil)}})
	var c counter
	env.RegisterActivityWithOptions(c.call, activity.RegisterOptions{Name: "Call"})
	if _, err := env.ExecuteActivity("Call"); err == nil || !strings.Contains(err.Error(), "limiter of NewInterceptor") || c.runs != 0 {
		t.Errorf("%v, and the activity ran %d times", err, c.runs)
	}
}

// An attempt uses its reservation, and each one after it is charged anew.
func TestInterceptor_FailedActivityBooksAgain(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		s := &script{answer: func(_ context.Context, n int) error {
			if n == 1 {
				return &jobs.Later{In: time.Millisecond, Ticket: "a place"}
			}
			return nil
		}}
		fails := 0
		w := &world{limiter: s.paced, tickets: &kept{}, activities: call("Call", func(context.Context) error {
			if fails++; fails == 1 {
				return errOwn
			}
			return nil
		})}
		if _, err := run(w, order{Activity: "Call", Interval: time.Millisecond}); err != nil {
			t.Error(err)
		}
		one := outbound.Cost{1}
		s.check(t, arrival{"", one, 1}, arrival{"a place", one, 2}, arrival{"", one, 3})
	})
}

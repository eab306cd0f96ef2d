package temporaljobs

import (
	"context"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// withScheduler has a Scheduler pace the activities of w, and returns the history of their calls.
func withScheduler(w *world, limit outbound.Limit) *outboundtest.History {
	w.inner = jobs.New(outbound.Must(outbound.NewBucket("api", limit)), jobs.Config{})
	history := new(outboundtest.History)
	w.bubble, w.tickets = true, &jobtest.Tickets{}
	w.call = func(context.Context, int) error {
		history.Add(time.Now(), 1)
		return nil
	}
	return history
}

// An activity costs two attempts, or one if its workflow has booked, and the rate is used.
func TestScheduler_TwoAttemptsAnActivity(t *testing.T) {
	const n, rate = 60, 20
	for name, c := range map[string]struct {
		order
		noTickets bool
		attempts  float64 // for each activity
	}{
		"rescheduled":            {attempts: 2.05},
		"no tickets":             {noTickets: true, attempts: 2.05}, // they wait in the worker
		"booked by the workflow": {order: order{Await: true}, attempts: 1},
		"the only attempt":       {order: order{Attempts: 1}, attempts: 2.05},
	} {
		inBoth(t, name, func(t *testing.T, w *world) {
			limit := outbound.PerSecond(rate)
			history := withScheduler(w, limit)
			if c.noTickets {
				w.tickets = nil
			}
			c.order.Activities = n
			c.order.Start, c.order.Interval = 60*time.Second, time.Millisecond // a busy server may lose a task: then it makes another attempt
			begin := time.Now()
			_, err := w.run(c.order)
			if err != nil || w.runs != n || w.log.text() != "" {
				t.Errorf("%v, %d runs of %d activities; logged:\n%s", err, w.runs, n, w.log.text())
			}
			attempts := float64(w.acquired) / n
			if w.server != "" && attempts <= 3 {
				return // its delays are no fault of the package's
			}
			if attempts > c.attempts || time.Since(begin) > n*time.Second/rate+time.Second {
				t.Errorf("%v attempts an activity, after %v", attempts, time.Since(begin))
			}
			if err := history.Check(limit.Capacity, limit.LeakRate, 1e-6); err != nil {
				t.Error(err)
			}
		})
	}
}

// The API refuses a call. That attempt is lost, and no call leaves before the pause is over.
func TestScheduler_Hold(t *testing.T) {
	const n, hold = 30, 20 * time.Second
	for _, await := range []bool{false, true} {
		inSuite(func(t *testing.T, w *world) {
			limit := outbound.PerSecond(10)
			history := withScheduler(w, limit)
			begin, refusal, call := time.Now(), &jobtest.Refusal{Nth: n / 2, Hold: hold}, w.call
			w.call = func(ctx context.Context, run int) error {
				if err := refusal.Call(ctx); err != nil {
					return err
				}
				return call(ctx, run)
			}
			_, err := w.run(order{Activities: n, Await: await, Interval: time.Second})
			refusal.Check(t, n+1)
			if took := time.Since(begin); err != nil || w.acquired > 3*n || took > hold+n*time.Second/10+15*time.Second {
				t.Errorf("%v after %v, %d attempts", err, took, w.acquired)
			}
			if err := history.Check(limit.Capacity, limit.LeakRate, 1e-6); err != nil {
				t.Error(err)
			}
		})(t)
	}
}

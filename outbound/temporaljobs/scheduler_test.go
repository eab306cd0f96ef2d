package temporaljobs

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// counted is a limiter, and what has come through it.
type counted struct {
	outbound.Limiter
	mu       sync.Mutex
	attempts int
	most     int32 // attempts of one activity
	waiting  int   // attempts that wait in a worker
}

// limits is the limiter of activities of the name "Call" alone.
func (c *counted) limits(i activity.Info) (outbound.Limiter, outbound.Cost) {
	if i.ActivityType.Name != "Call" {
		return nil, outbound.Cost{}
	}
	return c, outbound.Cost{1}
}

func (c *counted) Unwrap() outbound.Limiter { return c.Limiter }

func (c *counted) Acquire(ctx context.Context, cost outbound.Cost) (outbound.Permit, error) {
	c.mu.Lock()
	c.attempts++
	c.most = max(c.most, activity.GetInfo(ctx).Attempt)
	c.waiting++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.waiting--
		c.mu.Unlock()
	}()
	return c.Limiter.Acquire(ctx, cost)
}

// withScheduler has a Scheduler pace the activities of w, and returns the history of their calls.
func withScheduler(w *world, limit outbound.Limit) (*counted, *outboundtest.History) {
	c := &counted{Limiter: jobs.New(outbound.Must(outbound.NewBucket("api", limit)), jobs.Config{})}
	history := new(outboundtest.History)
	w.bubble, w.tickets, w.limiter = true, &jobtest.Tickets{}, c.limits
	w.call = func(context.Context, int) error {
		history.Add(time.Now(), 1)
		return nil
	}
	return c, history
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
			count, history := withScheduler(w, limit)
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
			attempts := float64(count.attempts) / n
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
			count, history := withScheduler(w, limit)
			begin, refusal, call := time.Now(), &jobtest.Refusal{Nth: n / 2, Hold: hold}, w.call
			w.call = func(ctx context.Context, run int) error {
				if err := refusal.Call(ctx); err != nil {
					return err
				}
				return call(ctx, run)
			}
			_, err := w.run(order{Activities: n, Await: await, Interval: time.Second})
			refusal.Check(t, n+1)
			if took := time.Since(begin); err != nil || count.attempts > 3*n || took > hold+n*time.Second/10+15*time.Second {
				t.Errorf("%v after %v, %d attempts", err, took, count.attempts)
			}
			if err := history.Check(limit.Capacity, limit.LeakRate, 1e-6); err != nil {
				t.Error(err)
			}
		})(t)
	}
}

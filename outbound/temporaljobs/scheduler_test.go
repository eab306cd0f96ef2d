package temporaljobs

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// paces is a Scheduler, and what came through it.
type paces struct {
	*jobs.Scheduler
	limit outbound.Limit

	mu       sync.Mutex
	attempts int
	waiting  int // attempts that wait in a worker now
	runs     int
	history  outboundtest.History
}

// newPaces returns a Scheduler for a bucket of its own.
func newPaces(limit outbound.Limit, c jobs.Config) *paces {
	return &paces{Scheduler: jobs.New(outbound.Must(outbound.NewBucket("api", limit)), c), limit: limit}
}

func (p *paces) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p.mu.Lock()
	p.attempts++
	p.waiting++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.waiting--
		p.mu.Unlock()
	}()
	return p.Scheduler.Acquire(ctx, c)
}

// paced is the limiter of activities of the name "Call" alone.
func (p *paces) paced(info activity.Info) (outbound.Limiter, outbound.Cost) {
	if info.ActivityType.Name != "Call" {
		return nil, outbound.Cost{}
	}
	return p, outbound.Cost{1}
}

// call is the activity.
func (p *paces) call(context.Context) error {
	p.history.Add(time.Now(), 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs++
	return nil
}

// check finds out whether n activities have run, with at most so many attempts, by the law.
func (p *paces) check(t *testing.T, n int, attempts float64) {
	t.Helper()
	if p.runs != n || float64(p.attempts) > attempts*float64(n) {
		t.Errorf("%d runs of %d activities, after %d attempts", p.runs, n, p.attempts)
	}
	if err := p.history.Check(p.limit.Capacity, p.limit.LeakRate, 1e-6); err != nil {
		t.Error(err)
	}
}

// An activity costs two attempts, or one if its workflow has booked, and the rate is used.
func TestScheduler_TwoAttemptsAnActivity(t *testing.T) {
	const n, rate = 60, 10
	for name, c := range map[string]struct {
		order
		tickets  Tickets
		attempts float64 // for each activity
	}{
		"put back":               {tickets: &kept{}, attempts: 2.05},
		"no tickets":             {attempts: 2.05}, // they wait in the worker
		"booked by the workflow": {order: order{Await: true, Cost: outbound.Cost{1}}, attempts: 1},
		"the only attempt":       {order: order{Attempts: 1}, attempts: 2.05},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPaces(outbound.PerSecond(rate), jobs.Config{})
				w := &world{bubble: true, limiter: p.paced, tickets: c.tickets, activities: call("Call", p.call)}
				c.order.Activity, c.order.Activities, c.order.SideBySide = "Call", n, true
				begin := time.Now()
				if _, err := w.runInSuite(c.order); err != nil {
					t.Error(err)
				}
				p.check(t, n, c.attempts)
				if took := time.Since(begin); took > n*time.Second/rate+time.Second {
					t.Errorf("it took %v", took)
				}
				if bad := w.log.text(); bad != "" {
					t.Errorf("logged:\n%s", bad)
				}
			})
		})
	}
}

// The API refuses a call. That attempt is lost, and no call goes before the pause is over.
func TestScheduler_Hold(t *testing.T) {
	const n, hold = 30, 20 * time.Second
	for _, await := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPaces(outbound.PerSecond(10), jobs.Config{})
			var mu sync.Mutex
			calls, begin := 0, time.Now()
			var refused time.Time
			w := &world{bubble: true, limiter: p.paced, tickets: &kept{}, activities: call("Call", func(ctx context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				calls++
				if calls == n/2 {
					refused = time.Now()
					outbound.PermitFrom(ctx).Refused(hold)
					return errOwn
				}
				if past := time.Since(refused); past < hold {
					t.Errorf("a call went %v after the refusal", past)
				}
				return p.call(ctx)
			})}
			_, err := w.runInSuite(order{Activity: "Call", Activities: n, SideBySide: true, Await: await, Cost: outbound.Cost{1}, Interval: time.Second})
			p.check(t, n, 3)
			if took := time.Since(begin); err != nil || calls != n+1 || took > hold+n*time.Second/10+15*time.Second {
				t.Errorf("%v after %v, %d calls", err, took, calls)
			}
		})
	}
}

// A Resume makes all tickets void, those in headers, too.
func TestScheduler_ResumeVoidsTickets(t *testing.T) {
	const n = 30
	for _, tickets := range []Tickets{nil, &kept{}} {
		synctest.Test(t, func(t *testing.T) {
			p := newPaces(outbound.PerSecond(10), jobs.Config{})
			w := &world{bubble: true, limiter: p.paced, tickets: tickets, activities: call("Call", p.call)}
			time.AfterFunc(2*time.Second, func() {
				if err := p.Resume(t.Context()); err != nil {
					t.Error(err)
				}
			})
			begin := time.Now()
			_, err := w.runInSuite(order{Activity: "Call", Activities: n, SideBySide: true, Await: true, Cost: outbound.Cost{1}})
			p.check(t, n, 2.05)
			if took := time.Since(begin); err != nil || took > n*time.Second/10+3*time.Second {
				t.Errorf("%v after %v", err, took)
			}
		})
	}
}

func TestScheduler_CostAboveCapacity(t *testing.T) {
	inBoth(t, func(t *testing.T, run func(*world, order) (time.Duration, error)) {
		for _, await := range []bool{false, true} {
			p := newPaces(outbound.PerSecond(10), jobs.Config{})
			w := &world{activities: call("Call", p.call), limiter: func(info activity.Info) (outbound.Limiter, outbound.Cost) {
				l, _ := p.paced(info)
				return l, outbound.Cost{2}
			}}
			_, err := run(w, order{Activity: "Call", Await: await, Cost: outbound.Cost{2}})
			if typeOf(err) != TypeCost || p.runs != 0 {
				t.Errorf("%v, %d runs", err, p.runs)
			}
		}
	})
}

// What no clock decides, on a server: all run once, and nothing is logged.
func TestScheduler_OnAServer(t *testing.T) {
	address := serverAddress(t)
	t.Parallel()
	const n = 80
	for _, o := range []order{{}, {Await: true, Cost: outbound.Cost{1}}, {Attempts: 1}} {
		p := newPaces(outbound.PerSecond(20), jobs.Config{})
		w := &world{limiter: p.paced, tickets: &kept{}, activities: call("Call", p.call)}
		o.Activity, o.Activities, o.SideBySide = "Call", n, true
		o.Start, o.Interval = 20*time.Second, time.Millisecond // a busy server may lose a task: then it makes another attempt
		if _, err := w.runOn(t, address, o); err != nil {
			t.Error(err)
		}
		if p.runs != n || p.attempts > 3*n {
			t.Errorf("%d runs of %d activities, after %d attempts", p.runs, n, p.attempts)
		}
		if bad := w.log.text(); bad != "" {
			t.Errorf("logged:\n%s", bad)
		}
		t.Logf("%+v: %d attempts for %d activities", o, p.attempts, n)
	}
}

package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/queue/jobs"
)

// attempts runs a job as a table of one's own does, until it succeeds or has failed three times. It
// returns how often the job has run and failed.
func attempts(t *testing.T, l outbound.Limiter, job func(context.Context) error) (runs, failed int) {
	for ticket := ""; failed < 3; runs++ {
		if runs == 10 {
			t.Fatalf("%d runs, %d of them failed", runs, failed)
		}
		_, pause, err := jobs.Do(jobs.WithTicket(t.Context(), ticket), l, outbound.Cost{1}, job)
		if later, ok := jobs.AsLater(err); ok {
			ticket = later.Ticket
			time.Sleep(later.In)
		} else if err != nil {
			failed++
			time.Sleep(max(pause, time.Second))
		} else {
			return runs + 1, failed
		}
	}
	return runs, failed
}

// A job whose own time is over when it asks a limiter fails in each run, paced or not, and ends after
// its attempts: see kubernetes#137694, where such an error was taken for that of the limiter.
func TestOwnTime_OverCountsAsAnAttempt(t *testing.T) {
	of := func(key string) *outbound.Bucket {
		return outbound.Must(outbound.NewBucket(key, outbound.PerSecond(10)))
	}
	for name, inside := range map[string]func() outbound.Limiter{
		"a bucket":    func() outbound.Limiter { return of("inside") },
		"a queue":     func() outbound.Limiter { return queue.New(of("inside"), queue.Config{}) },
		"a Scheduler": func() outbound.Limiter { return jobs.New(of("inside"), jobs.Config{}) },
	} {
		for _, work := range []time.Duration{400 * time.Millisecond, 0} { // of 300 ms; 0: the job has cancelled its ctx
			for _, paced := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					l, in := outbound.Limiter(outbound.Unlimited{}), inside()
					if paced {
						l = jobs.New(of("jobs"), jobs.Config{})
					}
					runs, failed := attempts(t, l, func(ctx context.Context) error {
						ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
						time.Sleep(work)
						cancel()
						p, err := in.Acquire(ctx, outbound.Cost{1})
						if p.Done(); err != ctx.Err() {
							t.Errorf("%s: %v", name, err)
						}
						return err
					})
					if runs != 3 || failed != 3 {
						t.Errorf("%s, paced %v: %d runs, %d failed", name, paced, runs, failed)
					}
				})
			}
		}
	}
}

// A job whose deadline has passed before it runs has failed, too.
func TestOwnTime_OverBeforeTheRunIsNoLater(t *testing.T) {
	past, end := context.WithDeadline(t.Context(), time.Now().Add(-1))
	defer end()
	s := jobs.New(outbound.Must(outbound.NewBucket("jobs", outbound.PerSecond(10))), jobs.Config{})
	if ran, _, err := jobs.Do(past, s, outbound.Cost{1}, func(context.Context) error { return nil }); ran || err != context.DeadlineExceeded {
		t.Errorf("ran %v, %v", ran, err)
	}
}

// A job that a limiter keeps from its call is rescheduled, and counts no attempt, unless the job has
// used more of its time than it had left.
func TestOwnTime_IsNotTheWaitForTheLimiter(t *testing.T) {
	for name, c := range map[string]struct {
		work time.Duration // before the call
		wait time.Duration // that the limiter needs when the job first comes
		hold bool          // it is one of the API
		want int           // failed attempts
	}{
		"the first call is refused early":         {wait: 30 * time.Second},
		"the wait exceeds the time by far":        {wait: time.Hour},
		"after less than half of the time":        {work: 4 * time.Second, wait: 30 * time.Second},
		"after more than half of the time":        {work: 6 * time.Second, wait: 30 * time.Second, want: 1},
		"the API's hold, after most of the time":  {work: 9 * time.Second, wait: time.Minute, hold: true, want: 1},
		"the wait fits":                           {work: 9 * time.Second, wait: 9500 * time.Millisecond},
		"the limiter has capacity at the last ms": {work: 9999 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("api", outbound.Window(1, max(c.wait, time.Second))))
			if c.hold {
				b = outbound.Must(outbound.NewBucket("api", outbound.PerSecond(1)))
				if err := b.Hold(t.Context(), c.wait); err != nil {
					t.Fatal(err)
				}
			} else if _, err := b.Fillup(t.Context(), outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
			if c.wait == 0 {
				time.Sleep(time.Minute)
			}
			q := queue.New(b, queue.Config{})
			job := func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				time.Sleep(c.work)
				p, err := q.Acquire(ctx, outbound.Cost{1})
				p.Done()
				return err
			}
			if runs, failed := attempts(t, outbound.Unlimited{}, job); failed != c.want || runs > 2 {
				t.Errorf("%s: %d runs, %d failed", name, runs, failed)
			}
		})
	}
}

// Outside of a job AsLater takes the limiter for the cause. In jobs within jobs the time counts from
// the one that has set the deadline.
func TestOwnTime_OfTheJobThatHasTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := queue.New(outbound.Must(outbound.NewBucket("api", outbound.PerHour(1))), queue.Config{})
		if _, err := full.Acquire(t.Context(), outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		call := func(ctx context.Context) error {
			_, err := full.Acquire(ctx, outbound.Cost{1})
			return err
		}
		in := func(ctx context.Context, after time.Duration, job func(context.Context) error) error {
			return outbound.Do(ctx, outbound.Unlimited{}, outbound.Cost{}, func(ctx context.Context) error {
				time.Sleep(after)
				return job(ctx)
			})
		}
		with := func(timeout time.Duration, job func(context.Context) error) func(context.Context) error {
			return func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				return job(ctx)
			}
		}
		for name, c := range map[string]struct {
			err       error
			left, ran time.Duration
			later     bool
		}{
			"outside":  {with(time.Second, call)(t.Context()), time.Second, 0, true},
			"in a job": {in(t.Context(), time.Minute, with(time.Second, call)), time.Second, time.Minute, false},
			"outer's": {with(10*time.Second, func(ctx context.Context) error {
				return in(ctx, 4*time.Second, func(ctx context.Context) error { return in(ctx, 2*time.Second, call) })
			})(t.Context()), 4 * time.Second, 6 * time.Second, false},
			"the inner's": {in(t.Context(), time.Minute, func(ctx context.Context) error { return in(ctx, time.Second, with(3*time.Second, call)) }), 3 * time.Second, time.Second, true},
		} {
			var refused *outbound.ThrottledError
			if !errors.As(c.err, &refused) || refused.Left() != c.left || refused.Ran() != c.ran {
				t.Errorf("%s: %+v", name, refused)
			}
			if _, ok := jobs.AsLater(fmt.Errorf("call: %w", c.err)); ok != c.later {
				t.Errorf("%s: a Later is %v", name, ok)
			}
		}
	})
}

package outbound

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// limiterFunc is a Limiter of a function.
type limiterFunc func(context.Context, Cost) (Permit, error)

func (f limiterFunc) Acquire(ctx context.Context, c Cost) (Permit, error) { return f(ctx, c) }

// calls notes what happens to a permit.
type calls struct {
	mu   sync.Mutex
	done int
	used []Cost
}

func (c *calls) Settle(used Cost) { c.mu.Lock(); c.used = append(c.used, used); c.mu.Unlock() }
func (c *calls) Answered(Answer)  {}
func (c *calls) Done()            { c.mu.Lock(); c.done++; c.mu.Unlock() }

func (c *calls) Acquire(ctx context.Context, _ Cost) (Permit, error) {
	return NewPermit(c), ctx.Err()
}

// ending runs f, which ends in any way, and waits for it.
func ending(f func()) {
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		defer func() { _ = recover() }()
		f()
	}()
	wg.Wait()
}

// Do runs the job once, returns its error and ends the permit. A panic of the job reaches the caller, and ends the
// permit, as runtime.Goexit does.
func TestDo_RunsTheJobOnceAndEndsThePermit(t *testing.T) {
	var c calls
	for _, want := range []error{nil, errors.New("failed")} {
		ran := 0
		equal(t, Do(ctx, &c, Cost{1}, func(context.Context) error { ran++; return want }), want, "the error of Do")
		equal(t, ran, 1, "runs")
	}
	func() {
		defer func() { equal[any](t, recover(), "job", "the panic") }()
		_ = Do(ctx, &c, Cost{1}, func(context.Context) error { panic("job") })
	}()
	ending(func() { _ = Do(ctx, &c, Cost{1}, func(context.Context) error { runtime.Goexit(); return nil }) })
	equal(t, c.done, 4, "permits that have ended")
}

// A wrapped job runs when its call is admitted.
func TestWrap(t *testing.T) {
	bubble(t, "A refused job does not run, and its error says when to retry", func(t *testing.T) {
		b := Must(NewBucket("jobs", Limit{Capacity: 1, LeakRate: 2}))
		ran := 0
		job := Wrap(b, Cost{1}, func(_ context.Context, n int) error { ran += n; return nil })
		must(t, job(ctx, 5))
		full, ok := errors.AsType[*ThrottledError](job(ctx, 7))
		fatalIf(t, !ok || full.RetryAfter != time.Second/2, "second job: %v", full)
		time.Sleep(full.RetryAfter)
		must(t, job(ctx, 9))
		errorIf(t, ran != 14, "the jobs that ran add up to %d, want 14", ran)
	})
	t.Run("A wrapped job takes the cost that its cost function returns for the payload", func(t *testing.T) {
		b := Must(NewBucket("rows", Limit{Capacity: 10, LeakRate: 1e-6}))
		insert := Wrap(b, func(rows []int) Cost { return Cost{float64(len(rows))} }, func(context.Context, []int) error { return nil })
		must(t, insert(ctx, make([]int, 7)))
		err := insert(ctx, make([]int, 4))
		errorIf(t, !errors.Is(err, ErrThrottled), "7 + 4 rows of 10: %v, want a refusal", err)
		must(t, insert(ctx, make([]int, 3)))
	})
}

// PermitFrom returns the permit of the job, the inner one in a job inside of a job, and outside of one a permit without
// effect. The job's ctx has the values of the caller.
func TestPermitFrom_IsThePermitOfTheJob(t *testing.T) {
	var outer, inner calls
	type key struct{}
	err := Do(context.WithValue(ctx, key{}, "value"), &outer, Cost{1}, func(ctx context.Context) error {
		equal[any](t, ctx.Value(key{}), "value", "a value of the outer ctx")
		_ = Do(ctx, &inner, Cost{1}, func(ctx context.Context) error {
			within, cancel := context.WithCancel(ctx)
			defer cancel()
			PermitFrom(within).Settle(Cost{2})
			return nil
		})
		PermitFrom(ctx).Settle(Cost{1})
		return nil
	})
	errorIf(t, err != nil || !slices.Equal(outer.used, []Cost{{1}}) || !slices.Equal(inner.used, []Cost{{2}}),
		"%v, settled outside %v, inside %v", err, outer.used, inner.used)
	b := Must(NewBucket("settle", Limit{Capacity: 10, LeakRate: 1e-8}))
	must(t, Do(ctx, b, Cost{8}, func(ctx context.Context) error { PermitFrom(ctx).Settle(Cost{3}); return nil }))
	equal(t, math.Round(level(t, b, 0)), 3, "level after settling 8 to 3")
	p := PermitFrom(ctx)
	fatalIf(t, p == nil || *p != (Permit{}) || p == PermitFrom(ctx), "%v is no zero permit of its own", p)
	p.Settle(Cost{1})
	p.Refused(0)
	p.Hold(time.Second)
	p.Done()
}

// A job that cannot run is an error, and charges nothing.
func TestDo_BadArgumentsChargeNothing(t *testing.T) {
	var c calls
	counted := limiterFunc(func(ctx context.Context, n Cost) (Permit, error) {
		t.Error("acquired for a nil job")
		return c.Acquire(ctx, n)
	})
	job := func(context.Context) error { t.Error("ran"); return nil }
	jobOf := func(context.Context, int) error { t.Error("ran"); return nil }
	var none *Bucket
	b := Must(NewBucket("jobs", PerSecond(1)))
	for what, err := range map[string]error{
		"Do, nil Limiter":   Do(ctx, nil, Cost{1}, job),
		"Do, nil Bucket":    Do(ctx, none, Cost{1}, job),
		"Do, nil job":       Do(ctx, counted, Cost{1}, nil),
		"Wrap, nil Limiter": Wrap(nil, Cost{1}, jobOf)(ctx, 1),
		"Wrap, nil cost":    Wrap(counted, (func(int) Cost)(nil), jobOf)(ctx, 1),
		"Wrap, nil job":     Wrap[int](counted, Cost{1}, nil)(ctx, 1),
		"Do, below 0":       Do(ctx, b, Cost{-1}, job),
		"Do, no first unit": Do(ctx, b, Cost{0, 1}, job),
	} {
		errorIf(t, !errors.Is(err, ErrInvalid), "%s: %v, want ErrInvalid", what, err)
	}
	errorIs(t, Do(ctx, b, Cost{2}, job), ErrTooLarge, "Do, above the capacity")
	done, cancel := context.WithCancel(ctx)
	cancel()
	equal(t, Do(done, b, Cost{1}, job), context.Canceled, "Do, after its ctx")
	equal(t, level(t, b, 0), 0, "charged")
}

// The requests of a job may run in parallel: one ends while the next is admitted.
func TestAcquireIn_ParallelRequestsOfAJob(t *testing.T) {
	b := Must(NewBucket("api", Limit{Capacity: 10, LeakRate: 1e-6}))
	pool := &Pool{Members: []Limiter{b}}
	observed := Observe(b, "api", func(context.Context, Event) {})
	for name, l := range map[string]Limiter{"bucket": b, "pool": pool, "observer": observed, "tenant": Within(b, Unlimited{})} {
		before := level(t, b, 0)
		err := Do(ctx, l, Cost{1}, func(ctx context.Context) error {
			var first, next Permit
			if err := first.AcquireIn(ctx, b, Cost{1}); err != nil {
				return err
			}
			var both sync.WaitGroup
			both.Go(func() {
				err := next.AcquireIn(ctx, b, Cost{1})
				errorIf(t, err != nil, "%v %v", name, err)
				next.Done()
				member := pool.Member(PermitFrom(ctx))
				errorIf(t, (member == 0) != (l == pool), "%s: admitted by member %d", name, member)
			})
			first.Settle(Cost{0.5})
			first.Done()
			both.Wait()
			return nil
		})
		n := level(t, b, 0) - before
		errorIf(t, err != nil || n > 1.51, "%s: %v, two requests of 0.5 and 1 took %v", name, err, n)
	}
}

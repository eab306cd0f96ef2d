package outbound

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
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

// Do runs the job once, returns its error and ends the permit.
func TestDo_RunsTheJobOnce(t *testing.T) {
	var c calls
	failed := errors.New("failed")
	for _, want := range []error{nil, failed} {
		ran := 0
		if err := Do(ctx, &c, Cost{1}, func(context.Context) error { ran++; return want }); err != want || ran != 1 {
			t.Errorf("Do: %v after %d runs, want %v after 1", err, ran, want)
		}
	}
	if c.done != 2 {
		t.Errorf("%d permits ended, want 2", c.done)
	}
}

// A refused job does not run, and its error says when to retry.
func TestWrap_RefusedJobDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("jobs", Limit{Capacity: 1, LeakRate: 2}))
		ran := 0
		job := Wrap(b, Cost{1}, func(_ context.Context, n int) error { ran += n; return nil })
		must(t, job(ctx, 5))
		full, ok := errors.AsType[*ThrottledError](job(ctx, 7))
		if !ok || full.RetryAfter != time.Second/2 {
			t.Fatalf("second job: %v", full)
		}
		time.Sleep(full.RetryAfter)
		if must(t, job(ctx, 9)); ran != 14 {
			t.Errorf("the jobs that ran add up to %d, want 14", ran)
		}
	})
}

// A panic of the job reaches the caller, and ends the permit, as runtime.Goexit does.
func TestDo_PanicEndsThePermit(t *testing.T) {
	var c calls
	func() {
		defer func() {
			if v := recover(); v != "job" {
				t.Errorf("recovered %v", v)
			}
		}()
		_ = Do(ctx, &c, Cost{1}, func(context.Context) error { panic("job") })
	}()
	ending(func() { _ = Do(ctx, &c, Cost{1}, func(context.Context) error { runtime.Goexit(); return nil }) })
	if c.done != 2 {
		t.Errorf("%d permits ended, want 2", c.done)
	}
}

// PermitFrom returns the permit of the job, whose ctx has the values of the caller.
func TestPermitFrom_SettlesTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("settle", Limit{Capacity: 10, LeakRate: 1}))
		type key struct{}
		outer := context.WithValue(ctx, key{}, "value")
		err := Do(outer, b, Cost{8}, func(ctx context.Context) error {
			if ctx.Value(key{}) != "value" {
				t.Error("a value of the outer ctx is missing")
			}
			inner, cancel := context.WithCancel(ctx)
			defer cancel()
			PermitFrom(inner).Settle(Cost{3})
			return nil
		})
		if n := level(t, b, 0); err != nil || n != 3 {
			t.Errorf("level %v after settling 8 to 3, %v", n, err)
		}
	})
}

// Outside of a job PermitFrom returns a permit without effect.
func TestPermitFrom_OutsideOfAJob(t *testing.T) {
	p := PermitFrom(ctx)
	if p == nil || *p != (Permit{}) || p == PermitFrom(ctx) {
		t.Fatalf("PermitFrom gave %v, want a zero permit of its own", p)
	}
	p.Settle(Cost{1})
	p.Refused(0)
	p.Hold(time.Second)
	p.Done()
}

// In a job inside of a job, PermitFrom returns the permit of the inner one.
func TestPermitFrom_NestedJobs(t *testing.T) {
	var outer, inner calls
	_ = Do(ctx, &outer, Cost{1}, func(ctx context.Context) error {
		_ = Do(ctx, &inner, Cost{1}, func(ctx context.Context) error {
			PermitFrom(ctx).Settle(Cost{2})
			return nil
		})
		PermitFrom(ctx).Settle(Cost{1})
		return nil
	})
	if len(outer.used) != 1 || outer.used[0] != (Cost{1}) || len(inner.used) != 1 || inner.used[0] != (Cost{2}) {
		t.Errorf("settled outside %v, inside %v", outer.used, inner.used)
	}
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
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	if err := Do(ctx, b, Cost{2}, job); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Do, above the capacity: %v", err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if err := Do(done, b, Cost{1}, job); err != context.Canceled {
		t.Errorf("Do, after its ctx: %v", err)
	}
	if n := level(t, b, 0); n != 0 {
		t.Errorf("charged %v", n)
	}
}

// A wrapped job takes the cost that its cost function returns for the payload.
func TestWrap_CostByPayload(t *testing.T) {
	b := Must(NewBucket("rows", Limit{Capacity: 10, LeakRate: 1e-6}))
	insert := Wrap(b, func(rows []int) Cost { return Cost{float64(len(rows))} }, func(context.Context, []int) error { return nil })
	must(t, insert(ctx, make([]int, 7)))
	if err := insert(ctx, make([]int, 4)); !errors.Is(err, ErrThrottled) {
		t.Errorf("7 + 4 rows of 10: %v, want a refusal", err)
	}
	must(t, insert(ctx, make([]int, 3)))
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
				if err := next.AcquireIn(ctx, b, Cost{1}); err != nil {
					t.Error(name, err)
				}
				next.Done()
				if member := pool.Member(PermitFrom(ctx)); (member == 0) != (l == pool) {
					t.Errorf("%s: admitted by member %d", name, member)
				}
			})
			first.Settle(Cost{0.5})
			first.Done()
			both.Wait()
			return nil
		})
		if n := level(t, b, 0) - before; err != nil || n > 1.51 {
			t.Errorf("%s: %v, two requests of 0.5 and 1 took %v", name, err, n)
		}
	}
}

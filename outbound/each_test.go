package outbound

import (
	"context"
	"errors"
	"iter"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func count(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// Each runs a job for each item, and yields what becomes of it.
func TestEach(t *testing.T) {
	bubble(t, "Each yields every item once, with its job's error, and can be ranged over again", func(t *testing.T) {
		odd := errors.New("odd")
		for _, workers := range []int{7, math.MaxInt} { // however many workers cost nothing
			all := Each(ctx, Unlimited{}, Cost{1}, workers, count(100), func(_ context.Context, i int) error {
				time.Sleep(time.Duration(i*7%13) * time.Second)
				if i%2 == 1 {
					return odd
				}
				return nil
			})
			seen := make([]int, 100)
			for range 2 { // it can be ranged over again
				for i, err := range all {
					seen[i]++
					errorIf(t, (err == odd) != (i%2 == 1), "item %d: %v", i, err)
				}
			}
			errorIf(t, slices.Max(seen) != 2 || slices.Min(seen) != 2,
				"%d workers: yielded %v times, want twice in two loops", workers, seen)
		}
	})
	bubble(t, "At most workers jobs run, and as many items are taken and not yielded", func(t *testing.T) {
		const workers = 5
		var taken, yielded, running, most atomic.Int32
		items := func(yield func(int) bool) {
			for i := range 50 {
				synctest.Wait()
				// The loop has received one that it has not counted yet.
				n := taken.Add(1) - yielded.Load()
				errorIf(t, n > workers+1, "%d items in flight", n)
				if !yield(i) {
					return
				}
			}
		}
		for range Each(ctx, Unlimited{}, Cost{1}, workers, items, func(context.Context, int) error {
			n := running.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(time.Second)
			running.Add(-1)
			return nil
		}) {
			time.Sleep(time.Second / 3) // a slow loop
			yielded.Add(1)
		}
		errorIf(t, most.Load() != workers, "%d jobs at once, want %d", most.Load(), workers)
	})
	bubble(t, "A job that the limiter refuses does not run, and its item comes with the refusal", func(t *testing.T) {
		b := Must(NewBucket("each", Limit{Capacity: 2, LeakRate: 1}))
		ran, refused := 0, 0
		for _, err := range Each(ctx, b, Cost{1}, 1, count(5), func(context.Context, int) error { ran++; return nil }) {
			var full *ThrottledError
			if errors.As(err, &full) && full.RetryAfter == time.Second {
				refused++
			}
		}
		errorIf(t, ran != 2 || refused != 3, "%d ran, %d refused, want 2 and 3", ran, refused)
	})
	bubble(t, "Once ctx ends, no more items are taken, and the jobs' ctx has ended as well", func(t *testing.T) {
		outer, cancel := context.WithCancel(ctx)
		yielded := 0
		var finished atomic.Int32
		for _, err := range Each(outer, Unlimited{}, Cost{1}, 3, count(1000), func(ctx context.Context, i int) error {
			if i == 0 {
				cancel()
				return nil
			}
			time.Sleep(time.Second)
			errorIf(t, ctx.Err() == nil, "the job's ctx has not ended")
			finished.Add(1)
			return nil
		}) {
			yielded++
			errorIf(t, err != nil && err != context.Canceled, "%v", err)
		}
		errorIf(t, finished.Load() > 2 || yielded > 3, "%d jobs finished, %d items yielded", finished.Load(), yielded)
	})
	t.Run("An item that is taken when ctx ends comes with its error, also if the limiter ignores ctx", func(t *testing.T) {
		done, cancel := context.WithCancel(ctx)
		var got []int
		items := func(yield func(int) bool) {
			cancel() // while the item is taken
			yield(7)
		}
		ignoring := limiterFunc(func(context.Context, Cost) (Permit, error) { return Permit{}, nil })
		for i, err := range Each(done, ignoring, Cost{1}, 2, items, func(context.Context, int) error {
			t.Error("ran")
			return nil
		}) {
			got = append(got, i)
			errorIf(t, err != context.Canceled, "item %d: %v", i, err)
		}
		errorIf(t, !slices.Equal(got, []int{7}), "yielded %v, want item 7", got)
	})
	bubble(t, "Results are yielded while the items block", func(t *testing.T) {
		from := make(chan int, 1)
		from <- 0
		n := 0
		for i := range Each(ctx, Unlimited{}, Cost{1}, 4, Receive(ctx, from), func(context.Context, int) error { return nil }) {
			if n++; i == 9 {
				close(from)
			} else {
				from <- i + 1 // the next item follows from this one's result
			}
		}
		errorIf(t, n != 10, "%d items, want 10", n)
	})
	t.Run("An invalid argument is the one result", func(t *testing.T) {
		fine := func(context.Context, int) error { t.Error("ran"); return nil }
		none := func(func(int) bool) { t.Error("took an item") }
		for what, each := range map[string]iter.Seq2[int, error]{
			"nil Limiter": Each(ctx, nil, Cost{1}, 1, none, fine),
			"nil items":   Each(ctx, Unlimited{}, Cost{1}, 1, nil, fine),
			"nil job":     Each[int](ctx, Unlimited{}, Cost{1}, 1, none, nil),
			"nil cost":    Each(ctx, Unlimited{}, (func(int) Cost)(nil), 1, none, fine),
			"no workers":  Each(ctx, Unlimited{}, Cost{1}, 0, none, fine),
			"less":        Each(ctx, Unlimited{}, Cost{1}, math.MinInt, none, fine),
		} {
			n := 0
			for i, err := range each {
				n++
				errorIf(t, i != 0 || !errors.Is(err, ErrInvalid), "%s: %d, %v", what, i, err)
			}
			errorIf(t, n != 1, "%s: %d yields, want 1", what, n)
		}
	})
	t.Run("Each item takes the cost that its cost function returns, and an invalid one is the item's result", func(t *testing.T) {
		b := Must(NewBucket("tokens", Limit{Capacity: 100, LeakRate: 1e-6}))
		tokens := func(n int) Cost { return Cost{float64(n)} }
		results := map[int]error{}
		for n, err := range Each(ctx, b, tokens, 1, slices.Values([]int{60, -1, 30, 20}), func(context.Context, int) error { return nil }) {
			results[n] = err
		}
		errorIf(t, results[60] != nil || results[30] != nil || !errors.Is(results[-1], ErrInvalid) || !errors.Is(results[20], ErrThrottled),
			"results %v, want 60 and 30 run, -1 invalid, 20 refused", results)
		s, err := b.State(ctx)
		errorIf(t, err != nil || math.Abs(s.Level-90) > 1e-3, "level %v, %v; want 90", s.Level, err)
	})
	bubble(t, "Receive ends with ctx, and leaves the rest in the channel", func(t *testing.T) {
		for range 20 { // what is ready is chosen by lot
			from := make(chan int, 10)
			for i := range 10 {
				from <- i
			}
			heeded, cancel := context.WithCancel(ctx)
			defer cancel()
			got := 0
			for range Receive(heeded, from) {
				if got++; got == 4 {
					cancel()
				}
			}
			fatalIf(t, got != 4 || len(from) != 6, "%d received, %d left, want 4 and 6", got, len(from))
		}
		idle, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		for range Receive[int](idle, nil) {
			t.Error("received from a nil channel")
		}
		closed := make(chan int)
		close(closed)
		for range Receive(ctx, closed) {
			t.Error("received from a closed channel")
		}
		from := make(chan int, 1)
		from <- 1
		heeded, cancel := context.WithCancel(ctx)
		defer cancel()
		for range Each(heeded, Unlimited{}, Cost{1}, 4, Receive(heeded, from), func(context.Context, int) error { return nil }) {
			cancel() // a break after it ends Receive too
			break
		}
	})
}

// However the loop is left at the first item, no job runs and no goroutine is left after it.
func TestEach_LeavingTheLoopWaitsForRunningJobs(t *testing.T) {
	for how, leave := range map[string]func(){"break": nil, "panic": func() { panic("body") }, "goexit": runtime.Goexit} {
		synctest.Test(t, func(t *testing.T) {
			var b calls
			var began, ended atomic.Int32
			left := make(chan struct{})
			go func() {
				defer close(left)
				defer func() { _ = recover() }()
				defer func() {
					if n := began.Load(); n != ended.Load() || b.done != int(n) || n > 5 {
						t.Errorf("%s: %d jobs began, %d ended, %d permits ended", how, n, ended.Load(), b.done)
					}
				}()
				jobs := Each(ctx, &b, Cost{1}, 3, count(1000), func(_ context.Context, i int) error {
					began.Add(1)
					time.Sleep(time.Duration(i+1) * time.Second)
					ended.Add(1)
					return nil
				})
				for range jobs {
					if leave == nil {
						break
					}
					leave()
				}
			}()
			<-left // the bubble fails if a goroutine stays
		})
	}
}

// A panic in a job, in the items or in a cost function reaches the goroutine that ranges, once all jobs have ended. A
// Goexit in a job or in the items ends that goroutine.
func TestEach_PanicAndGoexitReachTheLoop(t *testing.T) {
	var ended atomic.Int32
	job := func(_ context.Context, i int) error {
		if i == 1 {
			panic("job")
		}
		time.Sleep(time.Second)
		ended.Add(1)
		return nil
	}
	late := func(_ context.Context, i int) error {
		if i == 1 {
			time.Sleep(time.Second)
			panic("break")
		}
		time.Sleep(time.Millisecond) // until the other runs
		ended.Add(1)
		return nil
	}
	exits := func(context.Context, int) error { runtime.Goexit(); return nil }
	two := func(_ context.Context, i int) error {
		time.Sleep(time.Duration(i) * time.Second)
		panic([]string{"the first of two", "second"}[i])
	}
	b := Must(NewBucket("tokens", PerHour(1)))
	for what, c := range map[string]struct {
		each        iter.Seq2[int, error]
		least, most int32 // jobs that end
	}{
		"job":               {Each(ctx, Unlimited{}, Cost{1}, 4, count(1000), job), 1, 4},
		"items":             {Each(ctx, Unlimited{}, Cost{1}, 4, func(yield func(int) bool) { yield(0); panic("items") }, job), 1, 1},
		"break":             {Each(ctx, Unlimited{}, Cost{1}, 2, count(2), late), 1, 1},
		"cost":              {Each(ctx, b, func(int) Cost { panic("cost") }, 2, count(2), job), 0, 0},
		"the first of two":  {Each(ctx, Unlimited{}, Cost{1}, 2, count(2), two), 0, 0},
		"a job's Goexit":    {Each(ctx, Unlimited{}, Cost{1}, 2, count(10), exits), 0, 0},
		"the items' Goexit": {Each(ctx, Unlimited{}, Cost{1}, 2, func(func(int) bool) { runtime.Goexit() }, job), 0, 0},
	} {
		bubble(t, what, func(t *testing.T) {
			ended.Store(0)
			yielded, over := 0, false
			left := make(chan any, 1)
			go func() {
				defer func() { left <- recover() }()
				for range c.each {
					if yielded++; what == "break" {
						break
					}
				}
				over = true
			}()
			var want any // of a Goexit there is nothing to recover
			if !strings.HasSuffix(what, "Goexit") {
				want = what
			}
			v, n := <-left, ended.Load()
			errorIf(t, v != want || over || n < c.least || n > c.most || yielded > 1,
				"recovered %v, after %d jobs and %d items; the loop went on: %v", v, n, yielded, over)
		})
	}
	equal(t, level(t, b, 0), 0, "the level after a panic in a cost function")
}

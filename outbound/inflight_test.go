package outbound

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// inProgress returns how many calls a bucket with one InFlight believes to run.
func inProgress(t *testing.T, b *Bucket) float64 {
	t.Helper()
	all, err := b.States(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Limit.inFlight {
			return s.Level
		}
	}
	t.Fatal("the bucket has no InFlight")
	return 0
}

func TestAtOnceIsTakenWithTheOtherLimitsOrNotAtAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("both", InFlight(2).Of(0, "parallel"), Limit{Capacity: 3, LeakRate: 1}))
		first, err := b.Acquire(ctx, Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		second, err := b.Acquire(ctx, Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Acquire(ctx, Cost{1}) // a slot is missing
		var full *ThrottledError
		if !errors.As(err, &full) || full.Limit != "parallel" || full.RetryAfter != 0 {
			t.Fatalf("third at once: %v", err)
		}
		all, _ := b.States(ctx)
		if all[1].Level != 2 {
			t.Errorf("the refused call was charged: level %v, want 2", all[1].Level)
		}
		first.Done()
		if third, err := b.Acquire(ctx, Cost{1}); err != nil {
			t.Fatalf("after a Done: %v", err)
		} else {
			third.Done()
		}
		_, err = b.Acquire(ctx, Cost{1}) // a unit is missing, a slot is not
		if !errors.As(err, &full) || full.RetryAfter != time.Second {
			t.Fatalf("fourth: %v, want one second", err)
		}
		if n := inProgress(t, b); n != 1 {
			t.Errorf("the refused call has a slot: %v in progress, want 1", n)
		}
		second.Done()
	})
}

func TestARefusalTellsOfTheCallsInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("api", InFlight(3).Of(0, "sockets")))
		var calls [3]Permit
		begin := time.Now()
		for i, at := range []time.Duration{0, 4 * time.Second, 10 * time.Second} {
			time.Sleep(at - time.Since(begin))
			calls[i], _ = b.Acquire(ctx, Cost{1})
		}
		time.Sleep(5 * time.Second)
		check := func(n int, oldest time.Duration, text string) {
			t.Helper()
			_, err := b.Acquire(ctx, Cost{1})
			var full *ThrottledError
			if !errors.As(err, &full) || full.InProgress != n || full.Oldest != oldest || err.Error() != text {
				t.Errorf("%+v: %v\nwant %d calls, the oldest for %v: %s", full, err, n, oldest, text)
			}
		}
		check(3, 15*time.Second, `outbound: rate limited: "api" is over the limit "sockets", 3 calls in progress, the oldest for 15s`)
		calls[1].Done() // neither the oldest nor the youngest
		calls[1], _ = b.Acquire(ctx, Cost{1})
		check(3, 15*time.Second, `outbound: rate limited: "api" is over the limit "sockets", 3 calls in progress, the oldest for 15s`)
		calls[0].Done()
		calls[0], _ = b.Acquire(ctx, Cost{1})
		check(3, 5*time.Second, `outbound: rate limited: "api" is over the limit "sockets", 3 calls in progress, the oldest for 5s`)
		calls[2].Done()
		calls[0].Done()
		if err := b.SetLimits(ctx, InFlight(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		check(1, time.Second, `outbound: rate limited: "api" is over the limit "1 in flight", 1 call in progress, for 1s`)
		calls[1].Done()
	})
}

func TestACollectedCallIsNotTheOldest(t *testing.T) {
	b := Must(NewBucket("api", InFlight(2)))
	forget(t, b)
	since := time.Now()
	kept, err := b.Acquire(ctx, Cost{1})
	if err != nil {
		t.Fatal(err)
	}
	var second Permit
	eventually(t, "a slot", func() bool {
		second, err = b.Acquire(ctx, Cost{1})
		return err == nil
	})
	_, err = b.Acquire(ctx, Cost{1})
	var full *ThrottledError
	if !errors.As(err, &full) || full.InProgress != 2 || full.Oldest > time.Since(since) {
		t.Errorf("%v, want %v at most", err, time.Since(since))
	}
	kept.Done()
	second.Done()
}

func TestDoneTwiceGivesOneSlotBack(t *testing.T) {
	b := Must(NewBucket("twice", InFlight(3)))
	p, err := b.Acquire(ctx, Cost{})
	if err != nil {
		t.Fatal(err)
	}
	q, err := b.Acquire(ctx, Cost{1})
	if err != nil {
		t.Fatal(err)
	}
	again := p
	outer := NewPermit(&again)
	p.Done()
	p.Done()
	again.Done()
	outer.Done()
	if n := inProgress(t, b); n != 1 {
		t.Errorf("%v in progress after one of two has ended four times, want 1", n)
	}
	q.Done()
}

// eventually collects garbage until cond holds, for what follows collection.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for range 200 {
		runtime.GC()
		if cond() {
			return
		}
		runtime.Gosched()
		<-time.After(time.Millisecond)
	}
	t.Errorf("not after 200 collections: %s", what)
}

//go:noinline
func forget(t *testing.T, b *Bucket) {
	p, err := b.Acquire(ctx, Cost{1})
	if err != nil {
		t.Error(err)
	}
	_ = p.call
}

func TestForgottenPermitGivesItsSlotBackOnceCollected(t *testing.T) {
	b := Must(NewBucket("forgotten", InFlight(1)))
	forget(t, b)
	eventually(t, "a slot", func() bool {
		p, err := b.Acquire(ctx, Cost{1})
		if err != nil {
			return false
		}
		if _, err := b.Acquire(ctx, Cost{1}); err == nil {
			t.Error("two at once")
		}
		p.Done()
		return true
	})
}

func TestBucketWithAForgottenPermitBecomesIdle(t *testing.T) {
	b := Must(NewBucket("idle", InFlight(1)))
	forget(t, b)
	eventually(t, "idle", b.Idle)
}

func TestEndedPermitIsNotGivenBackOnceMoreWhenCollected(t *testing.T) {
	b := Must(NewBucket("ended", InFlight(2)))
	kept, err := b.Acquire(ctx, Cost{1})
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		p, err := b.Acquire(ctx, Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		p.Done()
	}
	for range 5 {
		runtime.GC()
	}
	if n := inProgress(t, b); n != 1 {
		t.Errorf("%v in progress, want 1", n)
	}
	kept.Done()
}

func TestSlotComesBackHoweverAJobEnds(t *testing.T) {
	b := Must(NewBucket("jobs", InFlight(1)))
	job := map[string]func(context.Context) error{
		"return": func(context.Context) error { return nil },
		"error":  func(context.Context) error { return errors.New("no") },
		"panic":  func(context.Context) error { panic("job") },
		"goexit": func(context.Context) error { runtime.Goexit(); return nil },
	}
	for how, job := range job {
		ran := 0
		counted := func(ctx context.Context) error {
			ran++
			if n := inProgress(t, b); n != 1 {
				t.Errorf("%s: %v in progress inside the job, want 1", how, n)
			}
			return job(ctx)
		}
		ending(func() { _ = Do(ctx, b, Cost{1}, counted) })
		ending(func() {
			_ = Wrap(b, Cost{1}, func(ctx context.Context, _ int) error { return counted(ctx) })(ctx, 1)
		})
		ending(func() {
			one := func(yield func(int) bool) { yield(1) }
			for range Each(ctx, b, Cost{1}, 1, one, func(ctx context.Context, _ int) error { return counted(ctx) }) {
			}
		})
		if n := inProgress(t, b); n != 0 || ran != 3 {
			t.Errorf("%s: %v in progress after %d jobs, want 0 after 3", how, n, ran)
		}
	}
}

func TestSetLimitsChangesCallsAtOnceWhileCallsRun(t *testing.T) {
	b := Must(NewBucket("set", InFlight(1), Limit{Capacity: 1e6, LeakRate: 1e6}))
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for range 2000 {
				if p, err := b.Acquire(ctx, Cost{1}); err == nil {
					runtime.Gosched()
					p.Done()
				} else if !errors.Is(err, ErrThrottled) {
					t.Error(err)
					return
				}
			}
		})
	}
	running.Go(func() {
		for range 500 {
			limits := []Limit{{Capacity: 1e6, LeakRate: 1e6}}
			if n := rand.IntN(4); n > 0 {
				limits = append(limits, InFlight(n))
			}
			if err := b.SetLimits(ctx, limits...); err != nil {
				t.Error(err)
			}
			if _, err := b.AbleToAccept(ctx, Cost{1}); err != nil {
				t.Error(err)
			}
		}
	})
	running.Wait()
	if err := b.SetLimits(ctx, InFlight(2), Limit{Capacity: 1e6, LeakRate: 1e6}); err != nil {
		t.Fatal(err)
	}
	if n := inProgress(t, b); n != 0 {
		t.Errorf("%v in progress when all have ended", n)
	}
}

func TestLoweredCallsAtOnceLetRunningCallsEnd(t *testing.T) {
	b := Must(NewBucket("lower", InFlight(3)))
	var permits [3]Permit
	for i := range permits {
		p, err := b.Acquire(ctx, Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		permits[i] = p
	}
	if err := b.SetLimits(ctx, InFlight(1)); err != nil {
		t.Fatal(err)
	}
	for i := range permits {
		if _, err := b.Acquire(ctx, Cost{1}); !errors.Is(err, ErrThrottled) {
			t.Errorf("with %d of 1 in progress: %v", 3-i, err)
		}
		permits[i].Done()
	}
	if p, err := b.Acquire(ctx, Cost{1}); err != nil {
		t.Errorf("with none in progress: %v", err)
	} else {
		p.Done()
	}
}

func TestABucketIsNotIdleWhileCallsAreInProgress(t *testing.T) {
	for name, limits := range map[string][]Limit{"alone": {InFlight(2)}, "beside a rate": {InFlight(2), Limit{Capacity: 10, LeakRate: 10}}} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("k", limits...))
			p := admit(t, b, 1)
			time.Sleep(time.Hour) // nothing is left of it but the call
			if b.Idle() {
				t.Errorf("%s: idle with a call in progress", name)
			}
			p.Done()
			if !b.Idle() {
				t.Errorf("%s: not idle after the call", name)
			}
		})
	}
}

func TestABucketIsNotIdleAfterSetLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 10}))
		if !b.Idle() {
			t.Error("a new bucket is not idle")
		}
		if err := b.SetLimits(ctx, Limit{Capacity: 20, LeakRate: 10}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		if b.Idle() {
			t.Error("idle: the limits that were set would be forgotten")
		}
	})
}

// The end of a call makes no room for a cost that can never go.
func TestACostThatIsTooLargeIsNotRefusedForWantOfAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Limit{Capacity: 10, LeakRate: 1}
		shared := Must(NewSharedBucket(store.NewMemory(), "k", l, InFlight(1)))
		for name, b := range map[string]*Bucket{"in memory": Must(NewBucket("k", l, InFlight(1))), "shared": shared} {
			p := admit(t, b, 1)
			var large *CostError
			if _, err := b.Acquire(ctx, Cost{50}); !errors.As(err, &large) || large.Err != ErrTooLarge || large.Limit != l {
				t.Errorf("%s: %v", name, err)
			}
			k := BookRequest{Costs: []Cost{{50}}, Wait: time.Minute}
			if err := b.Book(ctx, &k); !errors.Is(err, ErrTooLarge) {
				t.Errorf("%s, booked: %v", name, err)
			}
			var full *ThrottledError
			if _, err := b.Acquire(ctx, Cost{10}); !errors.As(err, &full) || full.InProgress != 1 {
				t.Errorf("%s, one that fits: %v", name, err)
			}
			p.Done()
		}
		p := admit(t, shared, 1)
		if _, err := shared.Acquire(ctx, Cost{1: 1}); !errors.Is(err, ErrInvalid) {
			t.Errorf("one that only InFlight would count: %v", err)
		}
		p.Done()
	})
}

// A bucket whose only limit is an InFlight has sound data.
func TestInFlight_AloneIsSound(t *testing.T) {
	b := Must(NewBucket("k", InFlight(5)))
	if e, err := b.Explain(ctx, Cost{1}); err != nil || e.Corrupt || e.Because != "" {
		t.Errorf("%v, %v", e, err)
	}
}

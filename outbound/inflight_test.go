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
	for _, s := range states(t, b) {
		if s.Limit.inFlight {
			return s.Level
		}
	}
	t.Fatal("the bucket has no InFlight")
	return 0
}

// A call takes a slot and its units, or neither.
func TestInFlight_SlotAndUnitsAreTakenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("both", InFlight(2).Of(0, "parallel"), Limit{Capacity: 3, LeakRate: 1}))
		first, second := admit(t, b, 1), admit(t, b, 1)
		if full := refused(t, b, Cost{1}); full.Limit != "parallel" || full.RetryAfter != 0 { // a slot is missing
			t.Errorf("a third call in flight: %v", full)
		}
		if n := level(t, b, 1); n != 2 {
			t.Errorf("the refused call was charged: level %v, want 2", n)
		}
		first.Done()
		third := admit(t, b, 1)
		third.Done()
		if full := refused(t, b, Cost{1}); full.RetryAfter != time.Second { // a unit is missing, a slot is not
			t.Errorf("fourth: %v, want one second", full)
		}
		if n := inProgress(t, b); n != 1 {
			t.Errorf("the refused call has a slot: %v in progress, want 1", n)
		}
		second.Done()
	})
}

// A refusal reports how many calls are in progress, and for how long the oldest has been.
func TestInFlight_RefusalReportsCallsInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("api", InFlight(3).Of(0, "sockets")))
		var calls [3]Permit
		begin := time.Now()
		for i, since := range []time.Duration{0, 4 * time.Second, 10 * time.Second} {
			at(begin, since)
			calls[i] = admit(t, b, 1)
		}
		time.Sleep(5 * time.Second)
		check := func(n int, oldest time.Duration, text string) {
			t.Helper()
			if full := refused(t, b, Cost{1}); full.InProgress != n || full.Oldest != oldest || full.Error() != "outbound: rate limited: "+text {
				t.Errorf("%+v: %v\nwant %d calls, the oldest for %v: %s", *full, full, n, oldest, text)
			}
		}
		check(3, 15*time.Second, `"api" is over the limit "sockets", 3 calls in progress, the oldest for 15s`)
		calls[1].Done() // neither the oldest nor the youngest
		calls[1] = admit(t, b, 1)
		check(3, 15*time.Second, `"api" is over the limit "sockets", 3 calls in progress, the oldest for 15s`)
		calls[0].Done()
		calls[0] = admit(t, b, 1)
		check(3, 5*time.Second, `"api" is over the limit "sockets", 3 calls in progress, the oldest for 5s`)
		calls[2].Done()
		calls[0].Done()
		must(t, b.SetLimits(ctx, InFlight(1)))
		time.Sleep(time.Second)
		check(1, time.Second, `"api" is over the limit "1 in flight", 1 call in progress, for 1s`)
		calls[1].Done()
	})
}

// A permit that is collected without Done frees its slot, and its call is not the oldest.
func TestInFlight_CollectedPermitFreesItsSlot(t *testing.T) {
	b := Must(NewBucket("api", InFlight(2)))
	forget(t, b)
	since := time.Now()
	kept := admit(t, b, 1)
	var second Permit
	eventually(t, "a slot", func() (ok bool) {
		var err error
		second, err = b.Acquire(ctx, Cost{1})
		return err == nil
	})
	if full := refused(t, b, Cost{1}); full.InProgress != 2 || full.Oldest > time.Since(since) {
		t.Errorf("%v, want %v at most", full, time.Since(since))
	}
	kept.Done()
	second.Done()
	forget(t, b)
	eventually(t, "idle", b.Idle)
}

// A slot is freed once, however often Done is called on a permit, its copies and its wrappers.
func TestInFlight_DoneTwiceFreesOneSlot(t *testing.T) {
	b := Must(NewBucket("twice", InFlight(3)))
	p, q := admit(t, b, 0), admit(t, b, 1)
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
	p := admit(t, b, 1)
	_ = p.call
}

// The collection of a permit that has ended frees no other slot.
func TestInFlight_EndedPermitIsCollectedWithoutEffect(t *testing.T) {
	b := Must(NewBucket("ended", InFlight(2)))
	kept := admit(t, b, 1)
	for range 50 {
		p := admit(t, b, 1)
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

// A job frees its slot however it ends.
func TestInFlight_JobFreesItsSlotHoweverItEnds(t *testing.T) {
	b := Must(NewBucket("jobs", InFlight(1)))
	for how, job := range map[string]func(context.Context) error{
		"return": func(context.Context) error { return nil },
		"error":  func(context.Context) error { return errors.New("no") },
		"panic":  func(context.Context) error { panic("job") },
		"goexit": func(context.Context) error { runtime.Goexit(); return nil },
	} {
		ran := 0
		counted := func(ctx context.Context, _ int) error {
			ran++
			if n := inProgress(t, b); n != 1 {
				t.Errorf("%s: %v in progress inside the job, want 1", how, n)
			}
			return job(ctx)
		}
		ending(func() { _ = Do(ctx, b, Cost{1}, func(ctx context.Context) error { return counted(ctx, 1) }) })
		ending(func() { _ = Wrap(b, Cost{1}, counted)(ctx, 1) })
		ending(func() {
			for range Each(ctx, b, Cost{1}, 1, count(1), counted) {
			}
		})
		if n := inProgress(t, b); n != 0 || ran != 3 {
			t.Errorf("%s: %v in progress after %d jobs, want 0 after 3", how, n, ran)
		}
	}
}

// Changes of the limits while calls run lose no slot.
func TestInFlight_SetLimitsWhileCallsRun(t *testing.T) {
	wide := Limit{Capacity: 1e6, LeakRate: 1e6}
	b := Must(NewBucket("set", InFlight(1), wide))
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
			limits := []Limit{wide}
			if n := rand.IntN(4); n > 0 {
				limits = append(limits, InFlight(n))
			}
			_, unable := b.AbleToAccept(ctx, Cost{1})
			if err := errors.Join(unable, b.SetLimits(ctx, limits...)); err != nil {
				t.Error(err)
			}
		}
	})
	running.Wait()
	must(t, b.SetLimits(ctx, InFlight(2), wide))
	if n := inProgress(t, b); n != 0 {
		t.Errorf("%v in progress when all have ended", n)
	}
}

// Calls in flight go on when their number is lowered below theirs.
func TestInFlight_LoweredNumberLetsCallsEnd(t *testing.T) {
	b := Must(NewBucket("lower", InFlight(3)))
	permits := []Permit{admit(t, b, 1), admit(t, b, 1), admit(t, b, 1)}
	must(t, b.SetLimits(ctx, InFlight(1)))
	for i := range permits {
		if full := refused(t, b, Cost{1}); full.InProgress != 3-i {
			t.Errorf("with %d of 1 in progress: %v", 3-i, full)
		}
		permits[i].Done()
	}
	p := admit(t, b, 1)
	p.Done()
}

// An InFlight that is set next to the bucket's limit counts, and counts no more without it.
func TestInFlight_IsSetNextToTheSameLimit(t *testing.T) {
	leaky := Limit{Capacity: 100, LeakRate: 1}
	b := Must(NewBucket("key", leaky))
	must(t, b.SetLimits(ctx, leaky, InFlight(2)))
	admit(t, b, 1)
	admit(t, b, 1)
	refused(t, b, Cost{1})
	must(t, b.SetLimits(ctx, leaky))
	admit(t, b, 1)
}

// A bucket is not idle while calls are in progress, nor when it would lose limits that were set.
func TestBucket_IdleIsFalseWithCallsOrSetLimits(t *testing.T) {
	rate := Limit{Capacity: 10, LeakRate: 10}
	for name, c := range map[string]struct{ limits, same, set []Limit }{
		"one limit":          {[]Limit{rate}, []Limit{rate}, []Limit{{Capacity: 20, LeakRate: 10}}},
		"in flight alone":    {[]Limit{InFlight(5)}, []Limit{InFlight(5)}, []Limit{InFlight(2)}},
		"in flight and rate": {[]Limit{InFlight(5), rate}, []Limit{rate, InFlight(5)}, []Limit{rate, InFlight(2)}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("k", c.limits...))
			idle := func(when string, want bool) {
				t.Helper()
				if b.Idle() != want {
					t.Errorf("%s, %s: idle %v", name, when, !want)
				}
			}
			idle("new", true)
			p := admit(t, b, 1)
			time.Sleep(time.Hour) // nothing is left of it but the call
			idle("with a call", len(c.limits) == 1 && !c.limits[0].inFlight)
			p.Done()
			must(t, b.SetLimits(ctx, c.same...))
			idle("with its own limits set", true)
			must(t, b.SetLimits(ctx, c.set...))
			time.Sleep(24 * time.Hour)
			idle("with others set", false)
		})
	}
}

// A cost that no end of a call makes room for is too large, and not refused for want of a slot.
func TestInFlight_TooLargeCostIsNotRefusedForASlot(t *testing.T) {
	l := Limit{Capacity: 10, LeakRate: 1}
	bothWays(t, func(t *testing.T, b *Bucket) {
		p := admit(t, b, 1)
		_, err := b.Acquire(ctx, Cost{50})
		if large, ok := errors.AsType[*CostError](err); !ok || large.Err != ErrTooLarge || large.Limit != l {
			t.Error(err)
		}
		if err := b.Book(ctx, &BookRequest{Costs: []Cost{{50}}, Wait: time.Minute}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("booked: %v", err)
		}
		if full := refused(t, b, Cost{10}); full.InProgress != 1 {
			t.Errorf("one that fits: %v", full)
		}
		if _, err := b.Acquire(ctx, Cost{1: 1}); !errors.Is(err, ErrInvalid) {
			t.Errorf("one that only InFlight would count: %v", err)
		}
		p.Done()
	}, l, InFlight(1))
}

// A bucket whose only limit is an InFlight has sound data.
func TestInFlight_AloneIsSound(t *testing.T) {
	b := Must(NewSharedBucket(store.NewMemory(), "k", InFlight(5)))
	for _, b := range []*Bucket{b, Must(NewBucket("k", InFlight(5)))} {
		if e, err := b.Explain(ctx, Cost{1}); err != nil || e.Corrupt || e.Because != "" {
			t.Errorf("%v, %v", e, err)
		}
	}
}

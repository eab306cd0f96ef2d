package outbound

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// inProgress returns how many calls a bucket with one InFlight believes to run.
func inProgress(t *testing.T, b *Bucket) float64 {
	t.Helper()
	for _, s := range states(t, b) {
		if s.Limit.form.InFlight {
			return s.Level
		}
	}
	t.Fatal("the bucket has no InFlight")
	return 0
}

// A call has a slot from its admission to its end, and no longer.
func TestInFlight_OfOneProcess(t *testing.T) {
	bubble(t, "A call takes a slot and its units, or neither", func(t *testing.T) {
		b := Must(NewBucket("both", InFlight(2).Of(0, "parallel"), Limit{Capacity: 3, LeakRate: 1}))
		first, second := admit(t, b, 1), admit(t, b, 1)
		if full := refused(t, b, Cost{1}); full.Limit != "parallel" || full.RetryAfter != 0 { // a slot is missing
			t.Errorf("a third call in flight: %v", full)
		}
		equal(t, level(t, b, 1), 2, "the refused call was charged: level")
		first.Done()
		third := admit(t, b, 1)
		third.Done()
		if full := refused(t, b, Cost{1}); full.RetryAfter != time.Second { // a unit is missing, a slot is not
			t.Errorf("fourth: %v, want one second", full)
		}
		equal(t, inProgress(t, b), 1, "the refused call has a slot: in progress")
		second.Done()
	})
	bubble(t, "A refusal reports how many calls are in progress, and for how long the oldest has been", func(t *testing.T) {
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
	t.Run("A permit that is collected without Done frees its slot, and its call is not the oldest", func(t *testing.T) {
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
		full := refused(t, b, Cost{1})
		errorIf(t, full.InProgress != 2 || full.Oldest > time.Since(since), "%v, want %v at most", full, time.Since(since))
		kept.Done()
		second.Done()
		forget(t, b)
		eventually(t, "idle", b.Idle)
	})
	// The collection of a permit that has ended frees no other slot.
	t.Run("A slot is freed once, however often Done is called on a permit, its copies and its wrappers", func(t *testing.T) {
		b := Must(NewBucket("ended", InFlight(3)))
		p, kept := admit(t, b, 0), admit(t, b, 1)
		again := p
		outer := NewPermit(&again)
		p.Done()
		p.Done()
		again.Done()
		outer.Done()
		equal(t, inProgress(t, b), 1, "in progress after one of two has ended four times")
		for range 50 {
			p := admit(t, b, 1)
			p.Done()
		}
		for range 5 {
			runtime.GC()
		}
		equal(t, inProgress(t, b), 1, "in progress after the collection of others")
		kept.Done()
	})
	t.Run("A job frees its slot however it ends", func(t *testing.T) {
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
				equal(t, inProgress(t, b), 1, "%s: in progress inside the job", how)
				return job(ctx)
			}
			ending(func() { _ = Do(ctx, b, Cost{1}, func(ctx context.Context) error { return counted(ctx, 1) }) })
			ending(func() { _ = Wrap(b, Cost{1}, counted)(ctx, 1) })
			ending(func() {
				for range Each(ctx, b, Cost{1}, 1, count(1), counted) {
				}
			})
			n := inProgress(t, b)
			errorIf(t, n != 0 || ran != 3, "%s: %v in progress after %d jobs, want 0 after 3", how, n, ran)
		}
	})
	// An InFlight that is set next to the bucket's limit counts, and counts no more without it.
	t.Run("Calls in flight go on when their number is lowered below theirs", func(t *testing.T) {
		b, leaky := Must(NewBucket("lower", InFlight(3))), Limit{Capacity: 100, LeakRate: 1}
		permits := []Permit{admit(t, b, 1), admit(t, b, 1), admit(t, b, 1)}
		must(t, b.SetLimits(ctx, InFlight(1)))
		for i := range permits {
			full := refused(t, b, Cost{1})
			errorIf(t, full.InProgress != 3-i, "with %d of 1 in progress: %v", 3-i, full)
			permits[i].Done()
		}
		admit(t, b, 1)
		b = Must(NewBucket("key", leaky))
		must(t, b.SetLimits(ctx, leaky, InFlight(2)))
		admit(t, b, 1)
		admit(t, b, 1)
		refused(t, b, Cost{1})
		must(t, b.SetLimits(ctx, leaky))
		admit(t, b, 1)
	})
	t.Run("A bucket whose only limit is an InFlight has sound data", func(t *testing.T) {
		b := Must(NewSharedBucket(store.NewMemory(), "k", InFlight(5)))
		for _, b := range []*Bucket{b, Must(NewBucket("k", InFlight(5)))} {
			e, err := b.Explain(ctx, Cost{1})
			errorIf(t, err != nil || e.Corrupt || e.Because != "", "%v, %v", e, err)
		}
	})
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
			errorIs(t, errors.Join(unable, b.SetLimits(ctx, limits...)), nil, "the error")
		}
	})
	running.Wait()
	must(t, b.SetLimits(ctx, InFlight(2), wide))
	equal(t, inProgress(t, b), 0, "in progress when all have ended")
}

// A bucket is not idle while calls are in progress, nor when it would lose limits that were set: a Keyed would forget
// them.
func TestBucket_IdleIsFalseWithCallsOrSetLimits(t *testing.T) {
	rate := Limit{Capacity: 10, LeakRate: 10}
	for name, c := range map[string]struct{ limits, same, set []Limit }{
		"one limit":          {[]Limit{rate}, []Limit{rate}, []Limit{{Capacity: 20, LeakRate: 10}}},
		"in flight alone":    {[]Limit{InFlight(5)}, []Limit{InFlight(5)}, []Limit{InFlight(2)}},
		"in flight and rate": {[]Limit{InFlight(5), rate}, []Limit{rate, InFlight(5)}, []Limit{rate, InFlight(2)}},
		"in flight is set":   {[]Limit{rate}, []Limit{rate}, []Limit{rate, InFlight(2)}},
		"in flight goes":     {[]Limit{rate, InFlight(2)}, []Limit{rate, InFlight(2)}, []Limit{rate}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("k", c.limits...))
			idle := func(when string, want bool) {
				t.Helper()
				errorIf(t, b.Idle() != want, "%s, %s: idle %v", name, when, !want)
			}
			idle("new", true)
			p := admit(t, b, 1)
			time.Sleep(time.Hour) // nothing is left of it but the call
			idle("with a call", len(c.limits) == 1 && !c.limits[0].form.InFlight)
			p.Done()
			must(t, b.SetLimits(ctx, c.same...))
			idle("with its own limits set", true)
			must(t, b.SetLimits(ctx, c.set...))
			time.Sleep(24 * time.Hour)
			idle("with others set", false)
			must(t, b.SetLimits(ctx, c.limits...))
			time.Sleep(time.Hour)
			idle("with its own limits again", true)
		})
	}
}

// A cost that no end of a call makes room for is too large, and not refused for want of a slot.
func TestInFlight_TooLargeCostIsNotRefusedForASlot(t *testing.T) {
	l := Limit{Capacity: 10, LeakRate: 1}
	bothWays(t, func(t *testing.T, b *Bucket) {
		p := admit(t, b, 1)
		_, err := b.Acquire(ctx, Cost{50})
		large, ok := errors.AsType[*CostError](err)
		errorIf(t, !ok || large.Err != ErrTooLarge || large.Limit != l, "%v", err)
		errorIs(t, b.Book(ctx, &BookRequest{Costs: []Cost{{50}}, Wait: time.Minute}), ErrTooLarge, "booked")
		full := refused(t, b, Cost{10})
		errorIf(t, full.InProgress != 1, "one that fits: %v", full)
		errorIs(t, errOf(b.Acquire(ctx, Cost{1: 1})), ErrInvalid, "one that only InFlight would count")
		p.Done()
	}, l, InFlight(1))
}

// An adaptive limit learns how many calls an API takes at a time.
func TestInFlight_Adaptive(t *testing.T) {
	// It is never below 1.
	bubble(t, "All refusals of calls that were admitted before a cut halve the limit once, and their successes do not raise it", func(t *testing.T) {
		b := Must(NewBucket("api", InFlight(64).Adaptive()))
		take := func(n int) (all []Permit) {
			for range n {
				all = append(all, admit(t, b, 1))
			}
			time.Sleep(time.Millisecond)
			return all
		}
		check := func(when string, want float64) {
			t.Helper()
			equal(t, states(t, b)[0].Limit.Capacity, want, "in flight after %s", when)
		}
		for i, p := range take(64) {
			if time.Sleep(time.Millisecond); i%2 == 0 {
				p.Refused(time.Second)
			}
			p.Done()
			check("a refusal or a success", 32)
		}
		for _, want := range []float64{16, 8, 4, 2, 1, 1, 1} {
			time.Sleep(2 * time.Hour) // longer than any hold
			p := take(1)[0]
			p.Refused(time.Second)
			p.Done()
			check("another refusal", want)
		}
		time.Sleep(2 * time.Hour)
		for i, want := range []float64{2, 2, 3} { // as many successes as there are slots
			calls := take([]int{1, 2, 2}[i])
			calls[0].Done()
			check("a success", want)
			for _, p := range calls[1:] {
				p.Failed()
			}
		}
		for range 3 {
			take(1)[0].Done()
		}
		check("successes with slots to spare", 3)
		e, err := b.Explain(ctx, Cost{1})
		errorIf(t, err != nil || !strings.Contains(e.String(), `limit "64 in flight, adaptive": 0 of 3 calls in progress`),
			"%v, %v", e, err)
	})
	t.Run("Setting the same limit again keeps what it has learned, and another begins with its own number", func(t *testing.T) {
		limit := InFlight(64).Adaptive()
		b := Must(NewBucket("api", PerSecond(1000), limit))
		p := admit(t, b, 1)
		p.Refused(time.Millisecond)
		p.Done()
		for _, c := range []struct {
			set  Limit
			want float64
		}{{limit, 32}, {b.Limits()[1], 32}, {InFlight(50).Adaptive(), 50}, {InFlight(64), 64}} {
			must(t, b.SetLimits(ctx, PerSecond(2000), c.set))
			s := states(t, b)[1]
			errorIf(t, s.Limit.Capacity != c.want || b.Limits()[1] != c.set, "%v: %+v", c.set, s)
		}
	})
	t.Run("An adaptive limit is for a bucket in one process", func(t *testing.T) {
		_, err := NewSharedBucket(store.NewMemory(), "k", InFlight(64).Adaptive())
		errorIf(t, !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "Adaptive is for a bucket in this process"),
			"shared: %v", err)
		b := Must(NewSharedBucket(store.NewMemory(), "k", InFlight(64)))
		errorIs(t, b.SetLimits(ctx, InFlight(64).Adaptive()), ErrInvalid, "set in a shared bucket")
	})
}

// A request to a store takes a slot for each call that it books, and keeps none.
func TestInFlight_RequestsKeepNoSlot(t *testing.T) {
	bubble(t, "Calls that a store fails keep no slots", func(t *testing.T) {
		s := new(FakeStore)
		b := Must(NewSharedBucket(s, "k", Limit{Capacity: 10, LeakRate: 1}, InFlight(1)))
		s.Fail(errors.New("the reply is lost"), true)
		for range 3 {
			_, err := b.Acquire(ctx, Cost{1})
			_, failed := errors.AsType[*StoreError](err)
			errorIf(t, !failed, "%v", err)
		}
		synctest.Wait()
		s.Fail(nil, false)
		p := admit(t, b, 1)
		p.Done()
		admit(t, b, 1)
	})
	bubble(t, "A call that was refused because a request had reserved the slot is notified when the request does not use it", func(t *testing.T) {
		b := Must(NewSharedBucket(&FakeStore{Way: 10 * time.Millisecond}, "k", Limit{Capacity: 10, LeakRate: 1}, InFlight(1)))
		p := admit(t, b, 10)
		p.Done()
		notified := make(chan struct{}, 9)
		defer b.Waiting(func() { notified <- struct{}{} })()
		var request sync.WaitGroup
		request.Go(func() { refused(t, b, Cost{5}) })
		time.Sleep(5 * time.Millisecond)
		refused(t, b, Cost{1}) // while the slot is reserved
		request.Wait()
		errorIf(t, len(notified) == 0, "no call was notified of the free slot")
	})
	bubble(t, "A call whose replies come too late has a slot until it gives up. Waiting calls are notified of the end", func(t *testing.T) {
		b := Must(NewSharedBucket(heldUp(), "k", Limit{Capacity: 10, LeakRate: 1}, InFlight(1)))
		var notified atomic.Int64
		defer b.Waiting(func() { notified.Add(1) })()
		var requests sync.WaitGroup
		requests.Go(func() {
			_, err := b.Acquire(ctx, Cost{1})
			_, failed := errors.AsType[*StoreError](err)
			errorIf(t, !failed, "every reply was late: %v", err)
		})
		time.Sleep(350 * time.Millisecond)
		notified.Store(0) // until now of the slot that it has been granted
		requests.Wait()
		time.Sleep(time.Second) // its reservation is returned without it
		synctest.Wait()
		if able, err := b.AbleToAccept(ctx, Cost{1}); !able || err != nil || notified.Load() == 0 {
			t.Errorf("able %v, %v, notified %d times", able, err, notified.Load())
		}
	})
	bubble(t, "A call whose reply comes too late, and which is refused when it asks again, notifies waiting calls of its units", func(t *testing.T) {
		b := Must(NewSharedBucket(heldUp(), "k", Limit{Capacity: 1, LeakRate: 1}))
		notified := 0
		defer b.Waiting(func() { notified++ })()
		var requests sync.WaitGroup
		requests.Go(func() { refused(t, b, Cost{1}) }) // behind one that is booked
		time.Sleep(50 * time.Millisecond)
		must(t, b.Book(ctx, &BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}))
		requests.Wait()
		errorIf(t, notified == 0, "no call was notified of the units")
	})
	// Further calls of the request are not booked: they would be in flight without slots.
	bubble(t, "A ticket that is booked again takes its slot along, and no second one during its request", func(t *testing.T) {
		b := Must(NewSharedBucket(&FakeStore{Way: 10 * time.Millisecond}, "k", Limit{Capacity: 1, LeakRate: 1}, InFlight(2)))
		p := admit(t, b, 1)
		k := book(t, b, BookRequest{Costs: []Cost{{1}}, Wait: time.Minute})
		p.Settle(Cost{})
		p.Done()
		first := k.Tickets[0]
		k.Move, k.Costs, k.Horizon = first, []Cost{{1}, {1}, {1}}, time.Minute
		var request sync.WaitGroup
		request.Go(func() {
			err := b.Book(ctx, &k)
			errorIf(t, err != nil || len(k.Tickets) != 1 || k.Tickets[0] == first, "moved: %v, %v", k.Tickets, err)
		})
		time.Sleep(5 * time.Millisecond)
		full := refused(t, b, Cost{1})
		errorIf(t, full.InProgress > 0 || full.RetryAfter == 0, "with one of two in progress, and no unit: %v", full)
		request.Wait()
		equal(t, inProgress(t, b), 1, "in progress")
		moved := k.Tickets[0].Permit()
		moved.Done()
		equal(t, inProgress(t, b), 0, "in progress after the end")
	})
	bubble(t, "A ticket is booked again also while there are fewer slots than calls in progress", func(t *testing.T) {
		l := Limit{Capacity: 1, LeakRate: 1}
		b := Must(NewBucket("k", l, InFlight(2)))
		p := admit(t, b, 1)
		k := book(t, b, BookRequest{Costs: []Cost{{1}}, Wait: time.Minute})
		must(t, b.SetLimits(ctx, l, InFlight(1)))
		k.Move = k.Tickets[0]
		must(t, b.Book(ctx, &k))
		errorIf(t, len(k.Tickets) != 1, "moved: %v", k.Tickets)
		equal(t, levels(t, b), [2]float64{2, 2}, "levels")
		p.Done()
	})
	t.Run("The calls that come after an invalid cost in a booking take no slots", func(t *testing.T) {
		var s FakeStore
		var b *Bucket
		free := false
		b = Must(NewSharedBucket(StoreFunc(func(_ context.Context, key string, op *store.Op) (store.Reply, error) {
			if len(op.Costs) > 0 {
				used, _ := b.core.Slots().Crowd()
				free = used == 1
			}
			return s.Apply(key, op)
		}), "key", Limit{Capacity: 10, LeakRate: 1}, InFlight(2)))
		k := &BookRequest{Costs: []Cost{{1}, {math.NaN()}, {1}}, Wait: time.Hour, Horizon: time.Hour}
		must(t, b.Book(ctx, k))
		errorIf(t, len(k.Tickets) != 1 || !free, "%d tickets; another call could start: %v", len(k.Tickets), free)
	})
	bubble(t, "Tickets that come back together with a call above a capacity free their slots and their units", func(t *testing.T) {
		b := Must(NewSharedBucket(new(FakeStore), "k", Limit{Capacity: 10, LeakRate: 1}, InFlight(2)))
		k := book(t, b, BookRequest{Costs: []Cost{{5}, {5}}, Wait: time.Hour, Horizon: time.Hour})
		k.Unused, k.Costs = k.Tickets, []Cost{{11}}
		k.Tickets = nil
		errorIs(t, b.Book(ctx, &k), ErrTooLarge, "the error")
		synctest.Wait()
		equal(t, levels(t, b), [2]float64{0, 0}, "levels")
	})
	bubble(t, "The calls of other processes count by the limit of the reply that says so, and not by the one that follows", func(t *testing.T) {
		s, l := new(FakeStore), Limit{Capacity: 10, LeakRate: 1}
		old := Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			op.Age += time.Hour
			return s.Update(ctx, key, op)
		}), "k", l, InFlight(2)))
		p := admit(t, old, 1)
		time.Sleep(time.Minute)
		equal(t, inProgress(t, Must(NewSharedBucket(s, "k", l, InFlight(5)))), 1, "calls in progress")
		p.Done()
	})
}

// heldUp returns a store whose replies are held up on their way.
func heldUp() StoreFunc {
	var s FakeStore
	return func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
		r, err := s.Apply(key, op)
		r.When = time.Now()
		time.Sleep(300 * time.Millisecond)
		return r, err
	}
}

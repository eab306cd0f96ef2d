package outbound

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/core"
	"github.com/dripfeed/dripfeed/outbound/store"
)

var ctx = context.Background()

// at lets the bubble's time pass until d after begin.
func at(begin time.Time, d time.Duration) { time.Sleep(time.Until(begin.Add(d))) }

// The published example of a meter: capacity 3, leak 1.5 per second.
func TestFillup_FillsUpToTheCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("meter", Limit{Capacity: 3, LeakRate: 1.5}))
		begin := time.Now()
		for _, c := range []struct {
			at, fill, level float64
			full            bool
		}{{1, 1, 1, false}, {1.7, 2, 2, false}, {2, 1, 2.55, false}, {2.3, 2, 3, true}, {6, 3, 3, true}} {
			at(begin, time.Duration(c.at*float64(time.Second)))
			s, err := b.Fillup(ctx, Cost{c.fill})
			errorIf(t, err != nil || math.Abs(s.Level-c.level) > 1e-9 || s.Full != c.full,
				"at %v s, filled by %v: level %v, full %v, %v; want %v, %v", c.at, c.fill, s.Level, s.Full, err, c.level, c.full)
		}
	})
}

// Ten tenths fill a capacity of one, although their sum is less in binary.
func TestFillup_IsFullDespiteRounding(t *testing.T) {
	for name, limits := range map[string][]Limit{"word": {{Capacity: 1, LeakRate: 1}}, "local state": {{Capacity: 1, LeakRate: 1}, InFlight(5)}} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("meter", limits...))
			for i := range 10 {
				if s, err := b.Fillup(ctx, Cost{0.1}); err != nil || s.Full != (i == 9) {
					t.Errorf("%s, fill %d: level %v, full %v, %v", name, i, s.Level, s.Full, err)
				}
			}
		})
	}
}

// A lone caller that retries before RetryAfter is refused, and one that retries then is admitted.
func TestBucket_RetryAfterIsExact(t *testing.T) {
	for _, limits := range [][]Limit{
		{PerSecond(10)}, {Limit{Capacity: 2, LeakRate: 1}}, {Limit{Capacity: 3, LeakRate: 7}}, {Limit{Capacity: 1, LeakRate: 1e7 / 3}},
		{PerSecond(10), PerMinute(100).Burst(10).Of(0, "minute")},
		{Window(7, time.Second)}, {FixedWindow(7, time.Second)}, {Hourly(3)}, {PerSecond(10), Window(20, time.Minute), FixedWindow(30, 100*time.Second)},
		{Daily(9, pacific), Hourly(4), Window(3, time.Minute), Monthly(30, time.UTC), Limit{Capacity: 2, LeakRate: 0.1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("exact", limits...))
			fixed := slices.ContainsFunc(limits, func(l Limit) bool { return l.form.Kind == store.Fixed && len(limits) > 1 }) // its window may end sooner than is sure
			for range 50 {
				_, err := b.Acquire(ctx, Cost{1})
				var full *ThrottledError
				if !errors.As(err, &full) {
					continue
				}
				if full.RetryAfter > 2 && !fixed {
					time.Sleep(full.RetryAfter - 2)
					_, err := b.Acquire(ctx, Cost{1})
					fatalIf(t, !errors.Is(err, ErrThrottled), "%v: early: %v", limits, err)
					time.Sleep(2 * time.Nanosecond)
				} else {
					time.Sleep(full.RetryAfter)
				}
				_, err = b.Acquire(ctx, Cost{1})
				fatalIf(t, err != nil, "%v: after RetryAfter %v: %v", limits, full.RetryAfter, err)
			}
		})
	}
}

// The error of a cost that is too large says how to change the limit or the call.
func TestCostError_NamesTheCure(t *testing.T) {
	for _, c := range []struct {
		cost   float64
		cure   string
		limits []Limit
	}{
		{900, "use Window or Burst(900)", []Limit{PerMinute(30_000)}},
		{901, "use Window or Burst(901)", []Limit{PerMinute(30_000).Burst(900), PerHour(1e6).Burst(1e5).Of(0, "hour")}},
		{61, "split the call", []Limit{PerMinute(60)}}, // Burst(61) is invalid there
		{10, "split the call", []Limit{Window(9, time.Hour), Daily(100, time.UTC)}},
		{902, "split the call", []Limit{{Capacity: 900, LeakRate: 1}}},
		{1000, "900 burst, 1/s: split the call", []Limit{{Capacity: 900, LeakRate: 1}, {Capacity: 999, LeakRate: 1, Name: "second"}}},
	} {
		_, err := Must(NewBucket("large", c.limits...)).Acquire(ctx, Cost{c.cost})
		errorIf(t, !errors.Is(err, ErrTooLarge) || !strings.HasSuffix(err.Error(), c.cure),
			"%v: %v, want %q", c.limits, err, c.cure)
	}
}

// The text of a refusal during a hold has the cause of the hold, and none if no reason was given.
func TestThrottledError_NamesTheCauseOfAHold(t *testing.T) {
	for _, c := range []struct {
		hold func(*Bucket, *Permit)
		want string
	}{
		{func(b *Bucket, _ *Permit) { b.Hold(ctx, time.Minute) }, ""},
		{func(_ *Bucket, p *Permit) { p.Refused(time.Minute) }, " after the API asked for a pause (rate)"},
		{func(_ *Bucket, p *Permit) {
			p.Answered(Answer{Kind: AnswerRemaining, Remaining: Cost{0}, Wait: time.Minute})
		}, " until the API's quota resets"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("weather", PerSecond(10)))
			permit := admit(t, b, 1)
			c.hold(b, &permit)
			_, err := b.Acquire(ctx, Cost{Free})
			want := `outbound: rate limited: "weather" is on hold` + c.want + ", retry in 1m0s"
			errorIf(t, err == nil || err.Error() != want, "%v, want %s", err, want)
		})
	}
	both := &ThrottledError{Key: "weather", Held: true, Limit: "10 per 1s"}
	equal(t, both.Error(), `outbound: rate limited: "weather" is on hold and over the limit "10 per 1s"`, "of a hold and a limit")
}

// The methods of a nil Bucket and of the zero value return ErrInvalid.
func TestBucket_ZeroValueIsAnError(t *testing.T) {
	for _, b := range []*Bucket{nil, new(Bucket)} {
		for name, do := range map[string]func() error{
			"Acquire":      func() error { _, err := b.Acquire(ctx, Cost{1}); return err },
			"nothing":      func() error { _, err := b.Acquire(ctx, Cost{}); return err },
			"Fillup":       func() error { _, err := b.Fillup(ctx, Cost{1}); return err },
			"AbleToAccept": func() error { _, err := b.AbleToAccept(ctx, Cost{1}); return err },
			"State":        func() error { _, err := b.State(ctx); return err },
			"Explain":      func() error { _, err := b.Explain(ctx, Cost{1}); return err },
			"Reserve":      func() error { _, err := b.Reserve(ctx, Cost{1}, 0); return err },
			"States":       func() error { _, err := b.States(ctx); return err },
			"Book":         func() error { return b.Book(ctx, &BookRequest{Costs: []Cost{{1}}}) },
			"Hold":         func() error { return b.Hold(ctx, time.Second) },
			"Resume":       func() error { return b.Resume(ctx) },
			"SetLimits":    func() error { return b.SetLimits(ctx, PerSecond(1)) },
			"Do":           func() error { return Do(ctx, b, Cost{1}, func(context.Context) error { return nil }) },
		} {
			errorIs(t, do(), ErrInvalid, "%s of %p", name, b)
		}
		errorIf(t, b.Key() != "" || b.Shared() || !b.Idle(), "%q, shared %v, idle %v", b.Key(), b.Shared(), b.Idle())
		b.Waiting(func() {})()
		b.Observe(func(Event) {})()
	}
}

// The text of an early refusal, or of a wait until the deadline, says how near that was when the call
// came, and how long its job had run.
func TestThrottledError_NamesTheDeadline(t *testing.T) {
	const s = time.Second
	for want, c := range map[string]struct{ in, left, ran, waited time.Duration }{
		`, retry in 1s: the call cannot meet the deadline`:                                {in: s},
		`, retry in 1s: the call cannot meet the deadline in 11ms`:                        {in: s, left: 10001 * time.Microsecond},
		`: the call cannot meet the deadline in 10s`:                                      {left: 10 * s},
		`: the call waited for 5s and can no longer meet the deadline`:                    {left: 10 * s, waited: 5 * s},
		`, retry in 1s: the call cannot meet the deadline in 2s after the job ran for 3s`: {in: s, left: 2 * s, ran: 3 * s},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := &ThrottledError{Key: "weather", Limit: "10 per 1s", RetryAfter: c.in, Err: context.DeadlineExceeded}
			if c.left > 0 {
				ctx, cancel := context.WithTimeout(t.Context(), c.ran+c.left)
				defer cancel()
				_ = Do(ctx, Unlimited{}, Cost{1}, func(ctx context.Context) error {
					time.Sleep(c.ran)
					came := time.Now()
					time.Sleep(c.waited)
					e.Late(ctx, came)
					return nil
				})
			}
			errorIf(t, e.Left() != c.left || e.Ran() != c.ran || e.Waited() != c.waited || !errors.Is(e, context.DeadlineExceeded) || !e.Timeout(),
				"left %v, ran %v, waited %v: %+v", e.Left(), e.Ran(), e.Waited(), e)
			if want := `outbound: rate limited: "weather" is over the limit "10 per 1s"` + want + ": context deadline exceeded"; e.Error() != want {
				t.Errorf("%v, want %s", e, want)
			}
		})
	}
}

// lateStore returns a store whose replies are true after 10 ms, and arrive after takes.
func lateStore(memory *FakeStore, takes time.Duration) StoreFunc {
	const way = 10 * time.Millisecond
	memory.Way = way
	return func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
		r, err := memory.Update(ctx, key, op)
		if err != nil {
			return r, err
		}
		r.When, r.Received = time.Now(), time.Now().Add(way)
		if err = sleep(ctx, takes-way); err != nil && len(r.Charges) > 0 { // a store returns charges that its caller does not learn of
			_, _ = memory.Apply(key, &store.Op{Limits: op.Limits, Action: store.Book, Unused: r.Charges})
		}
		return r, err
	}
}

// An Acquire with late replies ends with its ctx, or with its second reply or the first after a second, whichever is later,
// and leaves nothing charged.
func TestAcquire_EndsInTimeWithLateReplies(t *testing.T) {
	for name, c := range map[string]struct {
		takes, ctx time.Duration // 0: the ctx does not end
		most       time.Duration
		want       error
		cancels    bool
	}{
		"no deadline":            {takes: 900 * time.Millisecond, most: 2700 * time.Millisecond},
		"two in a second":        {takes: 500 * time.Millisecond, most: 1500 * time.Millisecond},
		"three in a second":      {takes: 333 * time.Millisecond, most: time.Second},
		"no time for another":    {takes: 990 * time.Millisecond, most: 2970 * time.Millisecond},
		"less time for another":  {takes: 999 * time.Millisecond, most: 2997 * time.Millisecond},
		"a store that is slower": {takes: 3 * time.Second, most: 9 * time.Second},
		"asked for often":        {takes: 150 * time.Millisecond, most: 1050 * time.Millisecond},
		"its ctx ends while it asks again": {
			takes: 300 * time.Millisecond, ctx: 700 * time.Millisecond, most: 700 * time.Millisecond, want: context.DeadlineExceeded},
		"its ctx ends while the charge returns": {
			takes: 900 * time.Millisecond, ctx: 950 * time.Millisecond, most: 950 * time.Millisecond, want: context.DeadlineExceeded},
		"its ctx ends before a second request arrives": {
			takes: 200 * time.Millisecond, ctx: 205 * time.Millisecond, most: 205 * time.Millisecond, want: context.DeadlineExceeded},
		"its ctx is cancelled": {
			takes: 300 * time.Millisecond, ctx: 700 * time.Millisecond, most: 700 * time.Millisecond, want: context.Canceled, cancels: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := new(FakeStore)
			b := Must(NewSharedBucket(lateStore(s, c.takes), "k", Limit{Capacity: 10, LeakRate: 0.001}, InFlight(3)))
			caller, cancel := context.WithCancel(ctx)
			defer cancel()
			switch {
			case c.cancels:
				time.AfterFunc(c.ctx, cancel)
			case c.ctx > 0:
				caller, cancel = context.WithTimeout(ctx, c.ctx)
				defer cancel()
			}
			began := time.Now()
			_, err := b.Acquire(caller, Cost{10})
			took := time.Since(began)
			var broken *StoreError
			errorIf(t, c.want != nil && !errors.Is(err, c.want) || c.want == nil && (!errors.As(err, &broken) || !errors.Is(err, core.ErrLate)),
				"%s: %v", name, err)
			most := c.most
			if c.ctx == 0 {
				most += 3*c.takes + 10*time.Millisecond // each attempt asks for a slot first
			}
			errorIf(t, took > most, "%s: it took %v, want at most %v", name, took, most)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			states := states(t, b)
			for _, is := range states {
				errorIf(t, is.Level > 0.01,
					"%s: %v of %v are left after %d trips", name, is.Level, is.Limit, s.Requests.Load())
			}
		})
	}
}

// A call whose ctx has ended before it comes, or ends while the store has not replied, gets the ctx's
// own error, and counts as failed: there may be capacity.
func TestBucket_AcquireAfterADeadline(t *testing.T) {
	for name, of := range map[string]func() (*Bucket, error){
		"one limit":  func() (*Bucket, error) { return NewBucket("k", PerSecond(1)) },
		"two limits": func() (*Bucket, error) { return NewBucket("k", PerSecond(1), PerHour(100)) },
		"shared":     func() (*Bucket, error) { return NewSharedBucket(store.NewMemory(), "k", PerSecond(1)) },
		"slow":       func() (*Bucket, error) { return NewSharedBucket(&FakeStore{Way: time.Minute}, "k", PerSecond(1)) },
		"slow slots": func() (*Bucket, error) { return NewSharedBucket(&FakeStore{Way: time.Minute}, "k", InFlight(1)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(of())
			late, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			gone, end := context.WithCancel(t.Context())
			time.AfterFunc(2*time.Second, end)
			if !strings.HasPrefix(name, "slow") { // otherwise they end during the request
				time.Sleep(3 * time.Second)
			}
			for ctx, want := range map[context.Context]error{late: context.DeadlineExceeded, gone: context.Canceled} {
				kind := ""
				l := Observe(b, "", func(_ context.Context, e Event) { kind = e.Kind })
				_, err := l.Acquire(ctx, Cost{1})
				errorIf(t, err != want || kind != EventFailed, "%s: %v, %s; want %v", name, err, kind, want)
			}
			time.Sleep(time.Hour) // requests go on
		})
	}
}

// A call through a store takes the bucket one object, which its permit keeps, however many limits there are.
func TestAcquire_InAStoreAllocatesOneObject(t *testing.T) {
	wide := Limit{Capacity: 1e9, LeakRate: 1e9}
	b := Must(NewSharedBucket(store.NewMemory(), "k", wide, wide.Of(0, "second"), wide.Of(0, "third")))
	n := testing.AllocsPerRun(1000, func() {
		p, _ := b.Acquire(ctx, Cost{1})
		p.Done()
	})
	errorIf(t, n > 1 && !raced, "%v objects", n)
}

// State returns the same as States, whatever has happened to the bucket, and allocates nothing for a
// bucket with one leaky limit that nothing holds.
func TestBucket_StateIsTheFirstOfStates(t *testing.T) {
	for _, l := range []Limit{PerSecond(3), PerMinute(30).Burst(7).Of(2, "rows"), {Capacity: 0.5, LeakRate: 0.1}, {Capacity: 1e9, LeakRate: 1e6}} {
		synctest.Test(t, func(t *testing.T) {
			r, b := rand.New(rand.NewPCG(7, uint64(l.Capacity))), Must(NewBucket("key", l))
			for range 300 {
				var c Cost
				c[l.Unit] = l.Capacity * r.Float64()
				c[0] = max(c[0], 0.1)
				p, err := b.Acquire(t.Context(), c)
				switch r.IntN(30) {
				case 0:
					p.Refused(time.Duration(r.IntN(1e9)))
				case 1:
					p.Settle(Cost{})
				case 2:
					_ = b.Resume(t.Context())
				case 3:
					_ = b.Pause(t.Context(), 1+time.Duration(r.IntN(1e9)))
				}
				if err == nil {
					p.Done()
				}
				time.Sleep(time.Duration(r.IntN(1e9)) * time.Duration(r.IntN(3)))
				one, err := b.State(t.Context())
				all, err2 := b.States(t.Context())
				fatalIf(t, err != nil || err2 != nil || one != all[0], "%v %v\n%+v\n%+v", err, err2, one, all)
			}
		})
	}
	b := Must(NewBucket("key", PerSecond(10)))
	mustAcquire(t, b).Done()
	n := testing.AllocsPerRun(100, func() { _, _ = b.State(ctx) })
	errorIf(t, n > 0, "%v allocations", n)
}

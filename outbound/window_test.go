package outbound

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// went acquires until n calls have left, asks again at each RetryAfter, and returns when each of them left.
func went(t *testing.T, b *Bucket, n int) (at []time.Time) {
	t.Helper()
	for again := 0; len(at) < n; {
		_, err := b.Acquire(ctx, Cost{1})
		if err == nil {
			at, again = append(at, time.Now()), 0
			continue
		}
		full, ok := errors.AsType[*ThrottledError](err)
		if again++; !ok || full.RetryAfter <= 0 || again > 1 {
			t.Fatalf("call %d, refused %d times: %v", len(at), again, err)
		}
		time.Sleep(full.RetryAfter)
	}
	return at
}

// All calls of a window may leave together, and the next one a window later.
func TestWindow_AllLeaveImmediately(t *testing.T) {
	const n, window = 20, time.Second
	for _, l := range []Limit{Window(n, window), FixedWindow(n, window)} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("k", l))
			for range 3 {
				at := went(t, b, n)
				if d := at[n-1].Sub(at[0]); d != 0 {
					t.Errorf("%v: after a pause %d take %v", l, n, d)
				}
				next := went(t, b, 1)
				if d := next[0].Sub(at[0]); d != window+jitter {
					t.Errorf("%v: the one after goes %v later", l, d)
				}
				time.Sleep(window + jitter)
			}
		})
	}
}

// No window has more than n calls, also if calls are settled to less, and through holds.
func TestWindow_KeepsItsNumber(t *testing.T) {
	const n, window = 7, time.Second
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			b := Must(NewBucket("k", Window(n, window), Window(3*n, 10*window)))
			var at []time.Time
			for len(at) < 60*n {
				p, err := b.Acquire(ctx, Cost{1})
				switch {
				case err != nil:
					time.Sleep(refused(t, b, Cost{1}).RetryAfter)
				case r.IntN(4) == 0: // it has not left after all
					p.Settle(Cost{})
				default:
					at = append(at, time.Now())
				}
				if r.IntN(3) == 0 {
					time.Sleep(time.Duration(r.Float64() * float64(window) / 3))
				}
				if r.IntN(100) == 0 {
					must(t, b.Hold(ctx, time.Duration(1+r.IntN(int(2*window)))))
				}
			}
			for n, window := range map[int]time.Duration{n: window, 3 * n: 10 * window} {
				for i := range at[n:] {
					if d := at[i+n].Sub(at[i]); d < window+jitter {
						t.Fatalf("calls %d to %d within %v", i, i+n, d)
					}
				}
			}
		})
	}
}

// Units that a call returns are free immediately.
func TestWindow_ReturnedUnitsAreFreeImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("k", Window(100, time.Minute)))
		p := admit(t, b, 100)
		time.Sleep(time.Second)
		p.Settle(Cost{30})
		if s := states(t, b)[0]; s.Level != 30 || s.Remaining != 70 || s.NextIn != 0 || s.EmptyIn != 59*time.Second+jitter {
			t.Errorf("%+v", s)
		}
		admit(t, b, 70)
		refused(t, b, Cost{1})
	})
}

// Calls leave as fast as one limit allows, until the window of another one is full.
func TestWindow_FastLimitNextToAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("github", PerSecond(10), Window(5_000, time.Hour)))
		at := went(t, b, 300)
		if s := at[299].Sub(at[0]).Seconds(); s < 29.7 || s > 30.3 {
			t.Errorf("300 calls take %.2f s", s)
		}
		at = append(at, went(t, b, 4_800)...)
		if d := at[5_000].Sub(at[0]); d < time.Hour || d > time.Hour+time.Minute {
			t.Errorf("call 5001 goes after %v", d)
		}
	})
}

// A window reports its level, and when units are free.
func TestWindow_State(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("k", Window(10, time.Minute)))
		admit(t, b, 4)
		time.Sleep(30 * time.Second)
		admit(t, b, 5)
		check := func(when string, level, remaining float64, next, empty time.Duration) {
			t.Helper()
			s := states(t, b)[0]
			if s.Level != level || s.Remaining != remaining || s.NextIn != next || s.EmptyIn != empty || s.Full {
				t.Errorf("%s: %+v", when, s)
			}
		}
		check("with room for one", 9, 1, 0, time.Minute+jitter)
		admit(t, b, 1)
		check("full", 10, 0, 30*time.Second+jitter, time.Minute+jitter)
		must(t, b.Hold(ctx, 40*time.Second))
		if s := states(t, b)[0]; s.NextIn < 40*time.Second || s.HeldFor != 40*time.Second {
			t.Errorf("held: %+v", s)
		}
		time.Sleep(2 * time.Minute)
		check("empty", 0, 10, 0, 0)
		if !b.Idle() {
			t.Error("an empty window is not idle")
		}
	})
}

// Fillup counts beyond n, and reports when the window is full.
func TestWindow_Fillup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("errors", Window(10, time.Minute)))
		for i := range 12 {
			s, err := b.Fillup(ctx, Cost{1})
			if err != nil || s.Level != math.Min(float64(i+1), 10) || s.Full != (i >= 9) {
				t.Errorf("fill %d: %+v, %v", i, s, err)
			}
			time.Sleep(time.Second)
		}
		if s := states(t, b)[0]; s.Full || s.EmptyIn != 57*time.Second+jitter {
			t.Errorf("%+v", s)
		}
	})
}

// The error of an invalid limit says what is wrong, and what would work.
func TestWindow_InvalidErrorSaysWhatWorks(t *testing.T) {
	hand := time.FixedZone("Europe/Berlin", 3600)
	for _, c := range []struct {
		limit Limit
		want  string
	}{
		{Window(0, time.Hour), "Window needs a number above 0 and at most 1e12, not 0"},
		{Window(-1, time.Hour), "above 0"}, {Window(nan, time.Hour), "not NaN"}, {Window(inf, time.Hour), "not +Inf"}, {Window(1.1e12, time.Hour), "at most 1e12"},
		{Window(1, 0), "Window needs a window of 1 ms to 100 years, not 0s"}, {Window(1, -time.Second), "not -1s"}, {Window(1, 999*time.Microsecond), "1 ms"},
		{Window(1, maxWindow+1), "100 years"}, {Window(1e12, time.Millisecond), "1e12 per second"}, {Window(5e-324, time.Hour), "next to nothing"},
		{FixedWindow(nan, time.Hour), "FixedWindow needs"}, {FixedWindow(1, time.Microsecond), "FixedWindow needs a window"},
		{Hourly(0), "Hourly needs"}, {Daily(nan, time.UTC), "Daily needs"}, {Monthly(-3, time.UTC), "Monthly needs"},
		{Daily(1, nil), "Daily: its location is nil: time.UTC is one"}, {Daily(1, time.Local), "name the zone, as time.LoadLocation"},
		{Daily(1, time.FixedZone("office", 3600)), `the time zone "office" cannot be loaded`}, {Monthly(1, hand), "is not the one that time.LoadLocation returns"},
		{Daily(1, time.FixedZone("", 3600)), "is no name of a time zone"}, {Daily(1, time.FixedZone(strings.Repeat("x", 999), 0)), "is no name"},
		{Daily(1, time.FixedZone("Europe//Berlin", 0)), "is no name"}, {Daily(1, time.FixedZone("../etc/passwd", 0)), "cannot be loaded"},
		{Window(5_000, time.Hour).Burst(10), "Burst is for limits that space calls evenly: all of 5000 in any 1h may leave in one burst without it"},
		{Daily(10, time.UTC).Burst(2), "all of 10 per day UTC may leave in one burst"}, {Window(0, time.Hour).Burst(2), "Window needs a number"},
		{Daily(1, time.UTC).From(2), "From is for Weekly and Monthly"}, {PerSecond(1).From(1), "From is for"}, {Weekly(1, time.UTC).From(8), "from 1 to 7, not 8"},
		{Monthly(1, time.UTC).From(0), "from 1 to 31, not 0"}, {Monthly(1, time.Local).From(3), "name the zone"}, {Weekly(-1, time.UTC).From(9), "Weekly needs"},
		{Window(1, time.Hour).Of(4, ""), "unit 4"}, {Hourly(1).Of(0, "\xff"), "UTF-8"},
	} {
		_, err := NewBucket("k", c.limit)
		var bad *LimitError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 300 {
			t.Errorf("%v: %v, want %q", c.limit, err, c.want)
		}
		if _, err := c.limit.MarshalText(); !errors.As(err, &bad) && c.limit.flaw != "" {
			t.Errorf("%v is written: %v", c.limit, err)
		}
	}
	for _, change := range []func(*Limit){func(l *Limit) { l.Capacity++ }, func(l *Limit) { l.LeakRate *= 1.01 }} {
		for _, l := range []Limit{PerSecond(10), PerMinute(9).Burst(3), Window(10, time.Second), FixedWindow(10, time.Second), Daily(10, pacific)} {
			change(&l)
			if _, err := NewBucket("k", l); l.kind.Calendar() && l.LeakRate == 0 {
				continue
			} else if err == nil || !strings.Contains(err.Error(), "make the limit again") {
				t.Errorf("%+v: %v", l, err)
			}
		}
	}
}

// A hold until an API's reset does not make a window longer for calls that come then. Calls that were
// booked before leave later by the hold, as every reservation does.
func TestWindow_HoldUntilReset(t *testing.T) {
	for _, booked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := store.NewMemory()
			limits := []Limit{PerSecond(10), Window(100, time.Hour).Of(1, "tokens")}
			b, other := Must(NewSharedBucket(store, "k", limits...)), Must(NewSharedBucket(store, "k", limits...))
			begin := time.Now()
			_, err := b.Acquire(ctx, Cost{1, 100})
			must(t, err)
			time.Sleep(5 * time.Minute)
			k := BookRequest{Costs: []Cost{{1, 1}}, Wait: 2 * time.Hour}
			if booked {
				must(t, b.Book(ctx, &k))
			}
			must(t, b.Hold(ctx, 55*time.Minute))
			time.Sleep(55*time.Minute + time.Second)
			if booked {
				now := BookRequest{Clock: k.Clock}
				must(t, b.Book(ctx, &now))
				at := now.Clock.Due(k.Tickets[0]).Sub(begin)
				if at < time.Hour || at > 2*time.Hour-5*time.Minute+time.Second {
					t.Errorf("a call that was booked leaves after %v", at)
				}
				time.Sleep(time.Until(begin.Add(at + time.Second)))
			}
			if _, err := other.Acquire(ctx, Cost{1, 90}); err != nil {
				t.Errorf("booked %v: 90 of 100 after the reset: %v", booked, err)
			}
		})
	}
}

// A call that is refused by a fixed window comes back at its end, and finds all of it.
func TestFixedWindow_AllRetryAtItsEnd(t *testing.T) {
	bothWays(t, func(t *testing.T, b *Bucket) {
		admit(t, b, 1)
		time.Sleep(20 * time.Second)
		admit(t, b, 2)
		time.Sleep(20 * time.Second)
		admit(t, b, 7)
		const left = 20*time.Second + jitter
		if s := states(t, b)[0]; s.NextIn != left || s.EmptyIn != left || s.Level != 10 {
			t.Errorf("%+v", s)
		}
		for _, n := range []float64{1, 5, 10} {
			if full := refused(t, b, Cost{n}); full.RetryAfter != left {
				t.Errorf("%v of 10: %v", n, full)
			}
		}
		for _, wait := range []time.Duration{left, time.Hour} { // nothing is reserved beyond the end
			err := b.Book(ctx, &BookRequest{Costs: []Cost{{3}}, Wait: wait})
			if full, ok := errors.AsType[*ThrottledError](err); !ok || full.RetryAfter != left {
				t.Errorf("a reservation within %v: %v", wait, err)
			}
		}
	}, FixedWindow(10, time.Minute))
}

// A call that cannot be booked, because the call before it leaves after a fixed window ends, is
// refused: it does not ask again and again.
func TestFixedWindow_BookedCallLeavesBeyondItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s FakeStore
		b := Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			if s.Requests.Load() > 20 {
				return store.Reply{}, errors.New("it asks again and again")
			}
			return s.Update(ctx, key, op)
		}), "k", Window(1, 140*time.Millisecond), FixedWindow(10, time.Second).Of(1, "tokens")))
		admit(t, b, Free, 1)
		time.Sleep(900 * time.Millisecond)
		admit(t, b, 1)
		if _, err := b.Reserve(ctx, Cost{1}, time.Second); err != nil {
			t.Fatal(err)
		}
		if full := refused(t, b, Cost{Free, 1}); full.RetryAfter != 150*time.Millisecond {
			t.Error(full)
		}
	})
}

// A call under two limits allocates as much whatever kinds they are, also when a window's log is full.
func TestWindow_AllocatesNoMoreThanALeakyLimit(t *testing.T) {
	if raced {
		t.Skip("with the race detector, a pool forgets some")
	}
	second := Limit{Capacity: 1e9, LeakRate: 1e9, Name: "second"}
	allocs := func(limits ...Limit) float64 {
		b := Must(NewBucket("k", limits...))
		for begin := time.Now(); time.Since(begin) < 100*time.Millisecond; { // until the log of 64 parts of 1 ms has grown
			mustAcquire(t, b).Done()
		}
		return testing.AllocsPerRun(8*lately, func() { mustAcquire(t, b).Done() })
	}
	leaky := allocs(Limit{Capacity: 1e9, LeakRate: 1e9}, second)
	for name, limits := range map[string][]Limit{
		"window":   {Window(1e9, 64*time.Millisecond), second},
		"windows":  {Window(1e9, 64*time.Millisecond), FixedWindow(1e9, time.Second).Of(0, "second")},
		"calendar": {Daily(1e12, time.UTC), second},
	} {
		if n := allocs(limits...); n > leaky {
			t.Errorf("%s: %v allocations, of two leaky limits %v", name, n, leaky)
		}
	}
}

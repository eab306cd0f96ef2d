package outbound

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/core"
	"github.com/dripfeed/dripfeed/outbound/internal/spec"
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
		again++
		fatalIf(t, !ok || full.RetryAfter <= 0 || again > 1, "call %d, refused %d times: %v", len(at), again, err)
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
				equal(t, at[n-1].Sub(at[0]), 0, "%v: the time of all %d after a pause", l, n)
				next := went(t, b, 1)
				equal(t, next[0].Sub(at[0]), window+jitter, "%v: the one after goes later", l)
				time.Sleep(window + jitter)
			}
		})
	}
}

// A window admits its number, and reports what it has.
func TestWindow_CountsAndReports(t *testing.T) {
	bubble(t, "A window reports its level, and when units are free. Those that a call returns are free immediately", func(t *testing.T) {
		b := Must(NewBucket("k", Window(10, time.Minute)))
		admit(t, b, 4)
		time.Sleep(30 * time.Second)
		admit(t, b, 5)
		check := func(when string, level, remaining float64, next, empty time.Duration) {
			t.Helper()
			s := states(t, b)[0]
			errorIf(t, s.Level != level || s.Remaining != remaining || s.NextIn != next || s.EmptyIn != empty || s.Full,
				"%s: %+v", when, s)
		}
		check("with room for one", 9, 1, 0, time.Minute+jitter)
		admit(t, b, 1)
		check("full", 10, 0, 30*time.Second+jitter, time.Minute+jitter)
		must(t, b.Hold(ctx, 40*time.Second))
		s := states(t, b)[0]
		errorIf(t, s.NextIn < 40*time.Second || s.HeldFor != 40*time.Second, "held: %+v", s)
		time.Sleep(2 * time.Minute)
		check("empty", 0, 10, 0, 0)
		errorIf(t, !b.Idle(), "an empty window is not idle")
		p := admit(t, b, 10)
		time.Sleep(time.Second)
		p.Settle(Cost{3}) // what it returns is free immediately
		check("settled", 3, 7, 0, 59*time.Second+jitter)
		admit(t, b, 7)
		refused(t, b, Cost{1})
	})
	bubble(t, "Fillup counts beyond n, and reports when the window is full", func(t *testing.T) {
		b := Must(NewBucket("errors", Window(10, time.Minute)))
		for i := range 12 {
			s, err := b.Fillup(ctx, Cost{1})
			errorIf(t, err != nil || s.Level != math.Min(float64(i+1), 10) || s.Full != (i >= 9),
				"fill %d: %+v, %v", i, s, err)
			time.Sleep(time.Second)
		}
		s := states(t, b)[0]
		errorIf(t, s.Full || s.EmptyIn != 57*time.Second+jitter, "%+v", s)
	})
	bubble(t, "A call that cannot be booked, because the call before it leaves after a fixed window ends, is refused: it does not ask again and again", func(t *testing.T) {
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
		must(t, errOf(b.Reserve(ctx, Cost{1}, time.Second)))
		full := refused(t, b, Cost{Free, 1})
		errorIf(t, full.RetryAfter != 150*time.Millisecond, "%v", full)
	})
	bubble(t, "The State of a permit from a store has an upper bound of the time until a window is empty", func(t *testing.T) {
		s := mustAcquire(t, Must(NewSharedBucket(store.NewMemory(), "k", Window(10, time.Minute)))).State()
		errorIf(t, s.Level != 1 || s.NextIn != 0 || s.EmptyIn < time.Minute || s.EmptyIn > time.Minute+jitter, "%+v", s)
	})
	bubble(t, "A call that could leave only long after its reply is refused. RetryAfter counts from when the refusal is here", func(t *testing.T) {
		const trip = 20 * time.Millisecond
		b := Must(NewSharedBucket(lateStore(new(FakeStore), trip), "k", Window(1, time.Second)))
		admit(t, b, 1)
		free := time.Now().Add(time.Second + jitter)
		for _, early := range []time.Duration{time.Until(free), 3 * trip} {
			time.Sleep(time.Until(free.Add(-early)))
			full := refused(t, b, Cost{1})
			equal(t, full.RetryAfter, time.Until(free), "%v before a unit is free: RetryAfter", early)
		}
		time.Sleep(time.Until(free))
		admit(t, b, 1)
		equal(t, time.Since(free), trip, "after RetryAfter the call leaves after")
	})
	inBoth(t, "A call that is refused by a fixed window comes back at its end, and finds all of it", func(t *testing.T, b *Bucket) {
		admit(t, b, 1)
		time.Sleep(20 * time.Second)
		admit(t, b, 2)
		time.Sleep(20 * time.Second)
		admit(t, b, 7)
		const left = 20*time.Second + jitter
		s := states(t, b)[0]
		errorIf(t, s.NextIn != left || s.EmptyIn != left || s.Level != 10, "%+v", s)
		for _, n := range []float64{1, 5, 10} {
			full := refused(t, b, Cost{n})
			errorIf(t, full.RetryAfter != left, "%v of 10: %v", n, full)
		}
		for _, wait := range []time.Duration{left, time.Hour} { // nothing is reserved beyond the end
			err := b.Book(ctx, &BookRequest{Costs: []Cost{{3}}, Wait: wait})
			full, ok := errors.AsType[*ThrottledError](err)
			errorIf(t, !ok || full.RetryAfter != left, "a reservation within %v: %v", wait, err)
		}
	}, FixedWindow(10, time.Minute))
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
		{Window(1, spec.MaxWindow+1), "100 years"}, {Window(1e12, time.Millisecond), "1e12 per second"}, {Window(5e-324, time.Hour), "next to nothing"},
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
		errorIf(t, !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 300,
			"%v: %v, want %q", c.limit, err, c.want)
		_, err = c.limit.MarshalText()
		errorIf(t, !errors.As(err, &bad), "%v is written: %v", c.limit, err)
	}
	for _, change := range []func(*Limit){func(l *Limit) { l.Capacity++ }, func(l *Limit) { l.LeakRate *= 1.01 }} {
		for _, l := range []Limit{PerSecond(10), PerMinute(9).Burst(3), Window(10, time.Second), FixedWindow(10, time.Second), Daily(10, pacific)} {
			change(&l)
			if _, err := NewBucket("k", l); l.form.Kind.Calendar() && l.LeakRate == 0 {
				continue
			} else if err == nil || !strings.Contains(err.Error(), "make the limit again") {
				t.Errorf("%+v: %v", l, err)
			}
		}
	}
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
		return testing.AllocsPerRun(8*core.Lately, func() { mustAcquire(t, b).Done() })
	}
	leaky := allocs(Limit{Capacity: 1e9, LeakRate: 1e9}, second)
	for name, limits := range map[string][]Limit{
		"window":   {Window(1e9, 64*time.Millisecond), second},
		"windows":  {Window(1e9, 64*time.Millisecond), FixedWindow(1e9, time.Second).Of(0, "second")},
		"calendar": {Daily(1e12, time.UTC), second},
	} {
		n := allocs(limits...)
		errorIf(t, n > leaky, "%s: %v allocations, of two leaky limits %v", name, n, leaky)
	}
}

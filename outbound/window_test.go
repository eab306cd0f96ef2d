package outbound

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// went acquires until n calls have gone, comes back whenever it is told to, and returns when
// each of them went.
func went(t *testing.T, b *Bucket, n int) (at []time.Time) {
	t.Helper()
	for again := 0; len(at) < n; {
		_, err := b.Acquire(ctx, Cost{1})
		var full *ThrottledError
		switch {
		case err == nil:
			at, again = append(at, time.Now()), 0
		case errors.As(err, &full) && full.RetryAfter > 0:
			if again++; again > 1 {
				t.Fatalf("call %d is refused again when it comes back: %v", len(at), err)
			}
			time.Sleep(full.RetryAfter)
		default:
			t.Fatal(err)
		}
	}
	return at
}

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

// Callers come and go, ask for more or less than they use, and no window sees more than n.
func TestWindow_KeepsItsNumber(t *testing.T) {
	const n, window = 7, time.Second
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			b := Must(NewBucket("k", Window(n, window), Window(3*n, 10*window)))
			var at []time.Time
			for len(at) < 60*n {
				p, err := b.Acquire(ctx, Cost{1})
				var full *ThrottledError
				switch {
				case err != nil && errors.As(err, &full):
					time.Sleep(full.RetryAfter)
				case err != nil:
					t.Fatal(err)
				case r.IntN(4) == 0: // it has not gone after all
					p.Settle(Cost{})
				default:
					at = append(at, time.Now())
				}
				if r.IntN(3) == 0 {
					time.Sleep(time.Duration(r.Float64() * float64(window) / 3))
				}
				if r.IntN(100) == 0 {
					if err := b.Hold(ctx, time.Duration(1+r.IntN(int(2*window)))); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i := range at[n:] {
				if d := at[i+n].Sub(at[i]); d < window+jitter {
					t.Fatalf("calls %d to %d within %v", i, i+n, d)
				}
			}
			for i := range at[3*n:] {
				if d := at[i+3*n].Sub(at[i]); d < 10*window+jitter {
					t.Fatalf("calls %d to %d within %v", i, i+3*n, d)
				}
			}
		})
	}
}

func TestWindow_ReturnedUnitsAreFreeImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("k", Window(100, time.Minute)))
		p, err := b.Acquire(ctx, Cost{100})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		p.Settle(Cost{30})
		if s := states(t, b)[0]; s.Level != 30 || s.Remaining != 70 || s.NextIn != 0 || s.EmptyIn != 59*time.Second+jitter {
			t.Errorf("%+v", s)
		}
		admit(t, b, 70)
		if _, err := b.Acquire(ctx, Cost{1}); !errors.Is(err, ErrThrottled) {
			t.Error("one more than there is room for:", err)
		}
	})
}

// What issue trackers of other libraries ask for: as fast as one limit allows, until another
// one's window is full.
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
		if err := b.Hold(ctx, 40*time.Second); err != nil {
			t.Fatal(err)
		}
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

// A limit that is no leaky one is invalid where it is made, and says what would work.
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
		{Window(5_000, time.Hour).Burst(10), "Burst is for limits that space calls evenly: all of 5000 per 1h may leave in one burst without it"},
		{Daily(10, time.UTC).Burst(2), "all of 10 per day UTC may leave in one burst"}, {Window(0, time.Hour).Burst(2), "Window needs a number"},
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

func TestWindow_StringAndLabel(t *testing.T) {
	for _, c := range []struct {
		limit          Limit
		says, describe string
	}{
		{Window(5_000, time.Hour), "5000 per 1h", "5000 in any 1h"},
		{Window(100, 10*time.Second).Of(1, "tokens"), "100 per 10s", "tokens (unit 1): 100 in any 10s"},
		{FixedWindow(0.5, 90*time.Second), "0.5 per 1m30s", "0.5 in 1m30s from the first"},
		{Hourly(1_000_000), "1000000 per hour UTC", "1000000 per hour UTC"},
		{Daily(10_000, time.UTC), "10000 per day UTC", "10000 per day UTC"},
		{Monthly(30, pacific).Of(0, "euros"), "30 per month America/Los_Angeles", "euros: 30 per month America/Los_Angeles"},
	} {
		unnamed := c.limit.Of(c.limit.Unit, "")
		if says, is := unnamed.label(), c.limit.String(); says != c.says || is != c.describe {
			t.Errorf("%q, %q; want %q, %q", says, is, c.says, c.describe)
		}
	}
	b := Must(NewBucket("k", PerSecond(10), Window(5_000, time.Hour), Daily(50_000, pacific), Daily(60_000, time.UTC), InFlight(3)))
	for i, s := range states(t, b)[:4] {
		if want := []string{"10 per 1s", "5000 per 1h", "50000 per day America/Los_Angeles", "60000 per day UTC"}[i]; s.Label() != want {
			t.Errorf("%q, want %q", s.Label(), want)
		}
	}
	_, err := Must(NewBucket("k", Window(10, time.Minute))).Acquire(ctx, Cost{11})
	if want := "split the call"; !errors.Is(err, ErrTooLarge) || !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// An API that asks to wait until its reset does not make a window longer for calls that come then.
// Calls that are booked already leave later by the hold, as every reservation does.
func TestWindow_HoldUntilReset(t *testing.T) {
	for _, booked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := store.NewMemory()
			limits := []Limit{PerSecond(10), Window(100, time.Hour).Of(1, "tokens")}
			b, other := Must(NewSharedBucket(store, "k", limits...)), Must(NewSharedBucket(store, "k", limits...))
			begin := time.Now()
			if _, err := b.Acquire(ctx, Cost{1, 100}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Minute)
			k := BookRequest{Costs: []Cost{{1, 1}}, Wait: 2 * time.Hour}
			if booked {
				if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != 1 {
					t.Fatal(err)
				}
			}
			if err := b.Hold(ctx, 55*time.Minute); err != nil {
				t.Fatal(err)
			}
			time.Sleep(55*time.Minute + time.Second)
			if booked {
				now := BookRequest{Clock: k.Clock}
				if err := b.Book(ctx, &now); err != nil {
					t.Fatal(err)
				}
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

// Who comes back at RetryAfter finds all of a fixed window, and is told of that before.
func TestFixedWindow_AllRetryAtItsEnd(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("k", FixedWindow(10, time.Minute)))
			if shared {
				b = Must(NewSharedBucket(store.NewMemory(), "k", FixedWindow(10, time.Minute)))
			}
			admit(t, b, 1)
			time.Sleep(20 * time.Second)
			admit(t, b, 2)
			time.Sleep(20 * time.Second)
			admit(t, b, 7)
			const left = 20*time.Second + jitter
			if s := states(t, b)[0]; s.NextIn != left || s.EmptyIn != left || s.Level != 10 {
				t.Errorf("shared %v: %+v", shared, s)
			}
			for _, n := range []float64{1, 5, 10} {
				var full *ThrottledError
				if _, err := b.Acquire(ctx, Cost{n}); !errors.As(err, &full) || full.RetryAfter != left {
					t.Errorf("shared %v: %v of 10: %v", shared, n, err)
				}
			}
			// Nothing is reserved beyond the end.
			for _, wait := range []time.Duration{left, time.Hour} {
				k := BookRequest{Costs: []Cost{{3}}, Wait: wait}
				var full *ThrottledError
				if err := b.Book(ctx, &k); !errors.As(err, &full) || full.RetryAfter != left {
					t.Errorf("shared %v: a reservation within %v: %v", shared, wait, err)
				}
			}
		})
	}
}

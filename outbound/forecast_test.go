package outbound

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// forecast returns in how much time a call of n units goes at the earliest, after so many ahead
// and the tickets that are due later.
func forecast(t *testing.T, b *Bucket, ahead, n float64, tickets ...Ticket) time.Duration {
	t.Helper()
	var k Booking
	if err := b.Book(ctx, &k); err != nil {
		t.Fatal(err)
	}
	tickets = slices.DeleteFunc(tickets, func(w Ticket) bool { return !k.Clock.Holds(w) || !k.Clock.Due(w).After(time.Now()) })
	f := k.Clock.Forecast(tickets)
	for range int(ahead) {
		f.Next(&Cost{1}, time.Time{})
	}
	at, err := f.When(&Cost{n})
	if err != nil {
		t.Fatal(err)
	}
	return time.Until(at)
}

// What is above the brim of a window comes back with the rest, be it that calls have cost more
// than they acquired or that the limit was lowered.
func TestAWindowAboveItsBrimIsForecastAsAFullOne(t *testing.T) {
	for _, kind := range []func(float64, time.Duration) Limit{Window, FixedWindow} {
		for _, lowered := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				n := 10.
				if lowered {
					n = 100
				}
				b := Must(NewBucket("k", kind(n, time.Minute)))
				p, err := b.Acquire(ctx, Cost{n})
				if err != nil {
					t.Fatal(err)
				}
				if lowered {
					err = b.SetLimits(ctx, kind(10, time.Minute))
				} else {
					p.Settle(Cost{100})
				}
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				const back = 59*time.Second + jitter
				for ahead, want := range map[float64]time.Duration{0: back, 9: back, 10: back + time.Minute + jitter, 20: back + 2*(time.Minute+jitter)} {
					if got := forecast(t, b, ahead, 1); got != want {
						t.Errorf("lowered %v, %v ahead: in %v, want %v", lowered, ahead, got, want)
					}
				}
			})
		}
	}
}

// No call goes before it was forecast, whatever has happened before.
func TestAForecastIsALowerBound(t *testing.T) {
	exact := 0
	for seed := range uint64(150) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 191))
			limits := func() []Limit {
				all := [...]Limit{Window(float64(2+r.IntN(9)), time.Second), Window(float64(5+r.IntN(20)), 10*time.Second),
					FixedWindow(float64(3+r.IntN(9)), 2*time.Second), {Capacity: 4, LeakRate: float64(1 + r.IntN(5))}}
				return []Limit{all[seed%4].Of(0, "one"), all[r.IntN(4)].Of(0, "other")}
			}
			b := Must(NewBucket("k", limits()...))
			var tickets []Ticket
			for range 40 {
				p, err := b.Acquire(ctx, Cost{1})
				switch r.IntN(20) {
				case 0, 1:
					if err == nil {
						p.Settle(Cost{3 * r.Float64()})
					}
				case 2:
					err = b.SetLimits(ctx, limits()...)
				case 3:
					err = b.Hold(ctx, time.Duration(1+r.IntN(int(2*time.Second))))
				case 4:
					k := Booking{Costs: []Cost{{1}, {2}}, Wait: 5 * time.Second, Horizon: time.Second}
					err = b.Book(ctx, &k)
					tickets = append(tickets, k.Tickets...)
				case 5, 6:
					time.Sleep(time.Duration(r.ExpFloat64() * float64(time.Second)))
				}
				if err != nil && !errors.Is(err, ErrThrottled) {
					t.Fatal(err)
				}
			}
			ahead := float64(r.IntN(30))
			least, begin := forecast(t, b, ahead, 1, tickets...), time.Now()
			var at time.Duration
			for range int(ahead) + 1 { // as a queue asks
				time.Sleep(at - time.Since(begin) - asks)
				k := Booking{Costs: []Cost{{1}}, Wait: maxWait, Returns: true}
				err := b.Book(ctx, &k)
				for full := (*ThrottledError)(nil); errors.As(err, &full); err = b.Book(ctx, &k) {
					time.Sleep(full.RetryAfter)
				}
				if err != nil {
					t.Fatal(err)
				}
				at = k.Clock.Due(k.Tickets[0]).Sub(begin)
			}
			if at < least-time.Microsecond { // sums of durations round
				t.Errorf("seed %d, %v: forecast in %v, goes in %v", seed, states(t, b), least, at)
			}
			if at <= least+time.Microsecond {
				exact++
			}
		})
	}
	if exact < 50 {
		t.Errorf("only %d of 150 went as was forecast", exact)
	}
}

// Of a shared window the caller's own places are known, however many they are.
func TestAForecastOfASharedWindowKnowsTheCallersPlaces(t *testing.T) {
	for _, n := range []int{5, 300} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewSharedBucket(leak.NewMemory(), "k", Window(float64(n), time.Minute)))
			admit(t, b, float64(n))
			k := Booking{Costs: slices.Repeat([]Cost{{1}}, n), Wait: maxWait, Horizon: maxWait}
			if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != n {
				t.Fatal(len(k.Tickets), err)
			}
			if got, want := forecast(t, b, 0, 1, k.Tickets...), 2*(time.Minute+jitter); got != want {
				t.Errorf("with %d places: in %v, want %v", n, got, want)
			}
		})
	}
}

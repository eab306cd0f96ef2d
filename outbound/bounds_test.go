package outbound

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// earliest returns in how much time a call of n units goes at the earliest, after so many ahead.
func earliest(t *testing.T, b *Bucket, ahead, n float64) (time.Duration, *Clock) {
	t.Helper()
	var k BookRequest
	if err := b.Book(ctx, &k); err != nil {
		t.Fatal(err)
	}
	at, _, err := k.Clock.Earliest(&Cost{n}, &Cost{ahead})
	if err != nil {
		t.Fatal(err)
	}
	return time.Until(at), &k.Clock
}

// What is above the brim of a window comes back with the rest, be it that calls have cost more
// than they acquired or that the limit was lowered.
func TestClock_EarliestOfAWindowAboveItsCapacity(t *testing.T) {
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
					if got, _ := earliest(t, b, ahead, 1); got != want {
						t.Errorf("lowered %v, %v ahead: in %v, want %v", lowered, ahead, got, want)
					}
				}
			})
		}
	}
}

// No call goes before its earliest time, whatever has happened before, and one that surely goes by a time goes by then.
func TestClock_EarliestAndSurelyAreBounds(t *testing.T) {
	exact, sure := 0, 0
	for seed := range uint64(600) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 191))
			n := 1 + r.IntN(2)
			limits := func() []Limit {
				all := [...]Limit{Window(float64(2+r.IntN(9)), time.Second), Window(float64(5+r.IntN(20)), 10*time.Second),
					FixedWindow(float64(3+r.IntN(9)), 2*time.Second), {Capacity: 4, LeakRate: float64(1 + r.IntN(5))},
					{Capacity: float64(2 + r.IntN(30)), LeakRate: 2}, Hourly(float64(20 + r.IntN(60)))}
				return []Limit{all[seed%6].Of(0, "one"), all[r.IntN(6)].Of(0, "other")}[:n]
			}
			time.Sleep(time.Duration(r.Int64N(int64(time.Hour))))
			b := Must(NewBucket("k", limits()...))
			if r.IntN(2) == 0 {
				b = Must(NewSharedBucket(store.NewMemory(), "k", limits()...))
			}
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
					err = b.Book(ctx, &BookRequest{Costs: []Cost{{1}, {2}}, Wait: 5 * time.Second, Horizon: time.Second})
				case 5, 6:
					time.Sleep(time.Duration(r.ExpFloat64() * float64(time.Second)))
				}
				if err != nil && !errors.Is(err, ErrThrottled) {
					t.Fatal(err)
				}
			}
			costs := make([]Cost, 1+r.IntN(30))
			alike, sum := r.IntN(2) == 0, Cost{}
			for i := range costs {
				if costs[i] = (Cost{1}); !alike {
					costs[i][0] = 1 + r.Float64()
				}
				if i > 0 {
					sum[0] += costs[i-1][0]
				}
			}
			last := costs[len(costs)-1]
			_, clock := earliest(t, b, 0, 1)
			least, _, err := clock.Earliest(&last, &sum)
			if err != nil {
				t.Fatal(err)
			}
			at := time.Now()
			for _, c := range costs { // as a queue asks
				time.Sleep(time.Until(at) - 5*time.Millisecond)
				k := BookRequest{Costs: []Cost{c}, Wait: maxWait}
				err := b.Book(ctx, &k)
				for full := (*ThrottledError)(nil); errors.As(err, &full); err = b.Book(ctx, &k) {
					time.Sleep(full.RetryAfter)
				}
				if err != nil {
					t.Fatal(err)
				}
				at = k.Clock.Due(k.Tickets[0])
			}
			if at.Before(least.Add(-time.Microsecond)) { // sums of durations round
				t.Errorf("seed %d, %v: earliest at %v, goes at %v", seed, states(t, b), least, at)
			}
			if by := at.Add(-10 * time.Microsecond); clock.Surely(&last, &sum, len(costs)-1, alike, by) {
				t.Errorf("seed %d, %v, %d calls, alike %v: surely goes by %v, goes at %v", seed, states(t, b), len(costs), alike, by, at)
			}
			if !at.After(least.Add(time.Microsecond)) {
				exact++
			}
			if clock.Surely(&last, &sum, len(costs)-1, alike, at.Add(at.Sub(clock.at)/4+time.Second)) {
				sure++
			}
		})
	}
	t.Logf("%d exact, %d sure", exact, sure)
	if exact < 300 || sure < 150 {
		t.Errorf("only %d of 600 went at the earliest time, and only %d were sure", exact, sure)
	}
}

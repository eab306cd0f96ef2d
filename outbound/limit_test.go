package outbound

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestBurst_OfOneChangesNothing(t *testing.T) {
	for _, n := range []float64{1e-3, 0.1, 0.5, 1, 1.7, 10, 1e6} {
		for name, l := range map[string]Limit{"once": PerSecond(n).Burst(1), "twice": PerSecond(n).Burst(1).Burst(1)} {
			if l != PerSecond(n) {
				t.Errorf("PerSecond(%v), burst of 1, %s: %+v", n, name, l)
			}
			if _, err := NewBucket("k", l); err != nil {
				t.Errorf("PerSecond(%v), burst of 1, %s: %v", n, name, err)
			}
		}
	}
}

func TestBurst_IsAtMostTheLimitsNumber(t *testing.T) {
	for _, n := range []float64{0.5, 1, 2, 2.5, 10, 1000} {
		for _, b := range []float64{math.Nextafter(n, 2*n), n + 0.5, n + 1, 2 * n} {
			if _, err := NewBucket("k", PerMinute(n).Burst(b)); (err == nil) != (b == 1) {
				t.Errorf("PerMinute(%v).Burst(%v): %v", n, b, err)
			}
		}
		if _, err := NewBucket("k", PerMinute(n).Burst(max(1, n))); err != nil {
			t.Errorf("PerMinute(%v).Burst of as many: %v", n, err)
		}
	}
}

// A caller takes all that there is room for, and after each pause the burst again.
func TestBurst_KeepsTheWindow(t *testing.T) {
	const window = time.Second
	for _, n := range []int{2, 3, 7, 20} {
		for b := 1; b <= n; b++ {
			t.Run(fmt.Sprint(n, " in bursts of ", b), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bucket := Must(NewBucket("k", Per(float64(n), window).Burst(float64(b))))
					var went []time.Time
					for len(went) < 8*n {
						_, err := bucket.Acquire(ctx, Cost{1})
						var full *ThrottledError
						switch {
						case err == nil:
							went = append(went, time.Now())
						case errors.As(err, &full):
							time.Sleep(full.RetryAfter)
						default:
							t.Fatal(err)
						}
						if len(went)%(3*n) == 0 {
							time.Sleep(2 * window)
						}
					}
					for i := range went[n:] {
						// The network may take all the jitter off.
						if d := went[i+n].Sub(went[i]) - jitter; d < window {
							t.Fatalf("calls %d to %d are seen within %v", i, i+n, d)
						}
					}
					// And no less than the limit allows: the burst, and then the rate.
					if b > 1 && went[b-1] != went[0] {
						t.Errorf("the burst takes %v", went[b-1].Sub(went[0]))
					}
					if d, most := went[n].Sub(went[0]), window+jitter+time.Microsecond; d > most {
						t.Errorf("the first %d take %v", n+1, d)
					}
				})
			})
		}
	}
}

func TestNewBucket_OneInFlightOnly(t *testing.T) {
	_, err := NewBucket("k", InFlight(1).Of(0, "a"), PerSecond(1), InFlight(2).Of(1, "b"))
	var bad *LimitError
	if !errors.As(err, &bad) || bad.Key != "k" {
		t.Errorf("two of different names: %v", err)
	}
	b := Must(NewBucket("k", InFlight(1)))
	if err := b.SetLimits(ctx, InFlight(1).Of(0, "a"), InFlight(2).Of(1, "b")); !errors.As(err, &bad) {
		t.Errorf("set: %v", err)
	}
}

func TestLimit_DrainsInNoLessThanANanosecond(t *testing.T) {
	for _, c := range []struct {
		limit Limit
		ok    bool
	}{
		{Limit{Capacity: 1, LeakRate: 1e9}, true}, {Limit{Capacity: 1, LeakRate: 1.01e9}, false}, {Limit{Capacity: 1, LeakRate: 1e12}, false},
		{Limit{Capacity: 1001, LeakRate: 1e12}, true}, {Limit{Capacity: 990, LeakRate: 1e12}, false}, {Limit{Capacity: 1e-9, LeakRate: 1.1}, false},
	} {
		if _, err := NewBucket("k", c.limit); (err == nil) != c.ok {
			t.Errorf("%v: %v, want valid %v", c.limit, err, c.ok)
		}
	}
}

// A rate of which a unit takes no whole ns is not rounded to one of which it does,
// but by as little as a hundred-thousandth.
func TestLimit_RateIsExact(t *testing.T) {
	for _, rate := range []float64{1e-3, 0.7, 3, 61, 1e4 / 3, 1e6 / 7, 3e6, 7e6, 1e8, 3e8, 2e9 / 3, 7e8, 1e9, 3e9, 1e11} {
		synctest.Test(t, func(t *testing.T) {
			// More than a window holds, so that nothing is lost while time passes.
			b := Must(NewBucket("k", Limit{Capacity: 3 * rate, LeakRate: rate}))
			admit(t, b, 3*rate)
			time.Sleep(time.Second)
			if _, err := b.Acquire(ctx, Cost{rate * (1 + 1e-8)}); !errors.Is(err, ErrThrottled) {
				t.Errorf("%v per second: more after a second: %v", rate, err)
			}
			if _, err := b.Acquire(ctx, Cost{rate * (1 - 1.1e-5)}); err != nil {
				t.Errorf("%v per second: as many after a second: %v", rate, err)
			}
		})
	}
}

func TestLimit_WithoutNameHasALabel(t *testing.T) {
	limits := []Limit{PerSecond(10), PerHour(5_000), Per(1_000_000, 90*time.Minute).Burst(2), Per(0.5, 1500*time.Millisecond), {Capacity: 40, LeakRate: 2},
		PerMinute(30_000).Of(1, ""), PerMinute(7).Of(0, "mine"), InFlight(3)}
	b, err := NewBucket("k", limits...)
	if err != nil {
		t.Fatal(err)
	}
	states, err := b.States(ctx)
	for i, want := range []string{"10 per 1s", "5000 per 1h", "1000000 per 1h30m", "0.5 per 1.5s", "40 burst, 2/s", "30000 per 1m", "mine", "3 in flight"} {
		if err != nil || states[i].Label() != want || states[i].Limit.Name != limits[i].Name {
			t.Errorf("%v is named %q and labelled %q (%v), want %q", limits[i], states[i].Limit.Name, states[i].Label(), err, want)
		}
	}
	var full *ThrottledError
	if _, err := b.Acquire(ctx, Cost{1}); err != nil {
		t.Error(err)
	}
	if _, err := b.Acquire(ctx, Cost{1}); !errors.As(err, &full) || full.Limit != "mine" {
		t.Errorf("%v, want a refusal by the slowest", err)
	}
	// Limits that the same code makes once more are the same limits.
	if err := b.SetLimits(ctx, limits...); err != nil {
		t.Error(err)
	}
	if again, err := b.States(ctx); err != nil || again[1].Level < 0.9 {
		t.Errorf("%+v, %v", again, err)
	}
	for _, twice := range [][]Limit{{PerSecond(10), PerSecond(10)}, {PerSecond(10), PerSecond(10).Burst(2)}, {PerSecond(1), PerSecond(1).Of(0, "1 per 1s"), PerHour(1)}} {
		var bad *LimitError
		if _, err := NewBucket("k", twice...); !errors.As(err, &bad) || !strings.Contains(err.Error(), `"`+twice[0].label()+`"`) {
			t.Errorf("%v: %v", twice, err)
		}
	}
}

func TestBurst_ErrorOffersALimit(t *testing.T) {
	for l, want := range map[Limit]string{
		PerSecond(10).Burst(20): "write Limit{Capacity: 20, LeakRate: 10}",
		PerMinute(30).Burst(60): "write Limit{Capacity: 60, LeakRate: 0.5}",
	} {
		if _, err := NewBucket("k", l); !errors.Is(err, ErrInvalid) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, b := range []float64{0.5, 1e13, inf, nan} {
		if _, err := NewBucket("k", PerSecond(10).Burst(b)); !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "Limit{") {
			t.Errorf("%v: %v", b, err)
		}
	}
}

func TestLimit_Each(t *testing.T) {
	for _, l := range []struct {
		Limit
		n      float64
		window time.Duration
	}{
		{PerSecond(10), 10, time.Second},
		{Per(900, time.Minute).Burst(5), 900, time.Minute},
		{Window(100, 10*time.Second), 100, 10 * time.Second},
		{FixedWindow(7, time.Hour), 7, time.Hour},
		{Limit{Capacity: 40, LeakRate: 2}, 0, 0},
		{Daily(100, time.UTC), 0, 0},
		{InFlight(5), 0, 0},
	} {
		if n, w := l.Each(); n != l.n || w != l.window {
			t.Errorf("%v: %v each %v", l.Limit, n, w)
		}
	}
}

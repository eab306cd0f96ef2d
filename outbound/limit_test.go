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

// A burst is a number from 1, which changes nothing, to the limit's number. The error of a larger one offers a limit.
func TestBurst_IsFromOneToTheLimitsNumber(t *testing.T) {
	for _, n := range []float64{1e-3, 0.5, 1, 1.7, 2, 10, 1000, 1e6} {
		for name, l := range map[string]Limit{"1": PerMinute(n).Burst(1), "1, twice": PerMinute(n).Burst(1).Burst(1)} {
			if _, err := NewBucket("k", l); err != nil || l != PerMinute(n) {
				t.Errorf("PerMinute(%v), burst of %s: %+v, %v", n, name, l, err)
			}
		}
		if _, err := NewBucket("k", PerMinute(n).Burst(max(1, n))); err != nil {
			t.Errorf("PerMinute(%v).Burst of as many: %v", n, err)
		}
		for _, b := range []float64{math.Nextafter(n, 2*n), n + 0.5, n + 1, 2 * n} {
			if _, err := NewBucket("k", PerMinute(n).Burst(b)); (err == nil) != (b == 1) {
				t.Errorf("PerMinute(%v).Burst(%v): %v", n, b, err)
			}
		}
	}
	for _, c := range []struct {
		burst float64
		offer string
	}{{20, "write Limit{Capacity: 20, LeakRate: 10}"}, {60, "write Limit{Capacity: 60, LeakRate: 10}"}, {0.5, ""}, {1e13, ""}, {inf, ""}, {nan, ""}} {
		_, err := NewBucket("k", PerSecond(10).Burst(c.burst))
		if !errors.Is(err, ErrInvalid) || !strings.HasSuffix(err.Error(), c.offer) || c.offer == "" && strings.Contains(err.Error(), "Limit{") {
			t.Errorf("%v, want %q", err, c.offer)
		}
	}
}

// A caller takes all that fits, and after each pause the burst again: no window has more than n.
func TestBurst_KeepsTheWindow(t *testing.T) {
	const window = time.Second
	for _, n := range []int{2, 3, 7, 20} {
		for b := 1; b <= n; b++ {
			t.Run(fmt.Sprint(n, " in bursts of ", b), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					bucket := Must(NewBucket("k", Per(float64(n), window).Burst(float64(b))))
					var went []time.Time
					for len(went) < 8*n {
						if _, err := bucket.Acquire(ctx, Cost{1}); err == nil {
							went = append(went, time.Now())
						} else {
							time.Sleep(refused(t, bucket, Cost{1}).RetryAfter)
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

// A limit takes at least a nanosecond to drain.
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

// A rate is rounded by at most a hundred-thousandth, also if a unit leaks in no whole number of nanoseconds.
func TestLimit_RateIsExact(t *testing.T) {
	for _, rate := range []float64{1e-3, 0.7, 3, 61, 1e4 / 3, 1e6 / 7, 3e6, 7e6, 1e8, 3e8, 2e9 / 3, 7e8, 1e9, 3e9, 1e11} {
		synctest.Test(t, func(t *testing.T) {
			// More than a window holds, so that nothing is lost while time passes.
			b := Must(NewBucket("k", Limit{Capacity: 3 * rate, LeakRate: rate}))
			admit(t, b, 3*rate)
			time.Sleep(time.Second)
			refused(t, b, Cost{rate * (1 + 1e-8)})
			admit(t, b, rate*(1-1.1e-5))
		})
	}
}

// Each returns the number and the window that a limit was made with.
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

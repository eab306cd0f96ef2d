package xrate_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/xrate"
)

var (
	ctx = context.Background()
	one = outbound.Cost{1}

	_ outbound.Limiter = (*xrate.Limiter)(nil)
)

func acquire(l *xrate.Limiter, n float64) error {
	_, err := l.Acquire(ctx, outbound.Cost{n})
	return err
}

// wait returns what a refusal says about coming back, and fails on any other error.
func wait(t *testing.T, err error) time.Duration {
	t.Helper()
	var full *outbound.ThrottledError
	require.ErrorAs(t, err, &full)
	require.ErrorIs(t, err, outbound.ErrThrottled)
	return full.RetryAfter
}

func TestLimiter_BurstThenEvenly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &xrate.Limiter{Rate: rate.NewLimiter(10, 3), Key: "weather"}
		for range 3 {
			require.NoError(t, acquire(l, 1))
		}
		for range 5 {
			err := acquire(l, 1)
			require.Equal(t, 100*time.Millisecond, wait(t, err))
			require.EqualError(t, err, `outbound: rate limited: "weather", retry in 100ms`)
			time.Sleep(100 * time.Millisecond)
			require.NoError(t, acquire(l, 1))
		}
	})
}

// Whoever comes back as told is admitted, and whoever comes two nanoseconds
// before that is not: also at rates and bursts at which floats lose digits.
func TestLimiter_RetryAfterIsExact(t *testing.T) {
	for _, shape := range []struct {
		rate  rate.Limit
		burst int
	}{
		{10, 1}, {3, 3}, {7, 20}, {1e7 / 3, 1}, {rate.Every(time.Hour), 5}, {1.0 / (30 * 24 * 3600), 100}, {0.1, 1e7}, {1e-7 / 3, 7},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &xrate.Limiter{Rate: rate.NewLimiter(shape.rate, shape.burst)}
			require.NoError(t, acquire(l, float64(shape.burst)))
			time.Sleep(1234567 * time.Nanosecond)
			for i := range 20 {
				n := float64(1 + i*i*shape.burst/400)
				err := acquire(l, n)
				if err == nil {
					continue
				}
				d := wait(t, err)
				// Where a float no longer tells nanoseconds of so many seconds apart, neither can x/time.
				if d > 2 && d < 1000*time.Hour {
					time.Sleep(d - 2)
					require.ErrorIs(t, acquire(l, n), outbound.ErrThrottled, "rate %v, burst %v: early", shape.rate, shape.burst)
					time.Sleep(2 * time.Nanosecond)
				} else {
					time.Sleep(d)
				}
				require.NoError(t, acquire(l, n), "rate %v, burst %v: after %v", shape.rate, shape.burst, d)
			}
		})
	}
}

// Refusing by a reservation and its cancellation would delay the next call.
func TestLimiter_RefusalsAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &xrate.Limiter{Rate: rate.NewLimiter(10, 5)}
		require.NoError(t, acquire(l, 5))
		time.Sleep(30 * time.Millisecond)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				n := 1 + i%5
				_, err := l.Acquire(ctx, outbound.Cost{float64(n)})
				var full *outbound.ThrottledError
				if !errors.As(err, &full) || full.RetryAfter != time.Duration(n*100-30)*time.Millisecond {
					t.Errorf("cost %d: %v", n, err)
				}
			})
		}
		wg.Wait()
		time.Sleep(70*time.Millisecond - 2)
		require.ErrorIs(t, acquire(l, 1), outbound.ErrThrottled, "early")
		time.Sleep(2 * time.Nanosecond)
		require.NoError(t, acquire(l, 1))
		require.Equal(t, 100*time.Millisecond, wait(t, acquire(l, 1)))
	})
}

func TestLimiter_ConcurrentCallersShareTheBurst(t *testing.T) {
	l := &xrate.Limiter{Rate: rate.NewLimiter(1e-9, 100)} // nothing refills while the test runs
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				switch _, err := l.Acquire(ctx, one); {
				case err == nil:
					admitted.Add(1)
				case !errors.Is(err, outbound.ErrThrottled):
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 100, admitted.Load())
}

// Those who wait in the rate.Limiter itself are ahead, and a refusal says so.
func TestLimiter_OtherReservationsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rate.NewLimiter(10, 2)
		l := &xrate.Limiter{Rate: r}
		require.NoError(t, acquire(l, 2))
		require.True(t, r.ReserveN(time.Now(), 2).OK())
		require.Equal(t, 300*time.Millisecond, wait(t, acquire(l, 1)))
		time.Sleep(300 * time.Millisecond)
		require.NoError(t, acquire(l, 1))
	})
}

func TestLimiter_RoundsFractionsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &xrate.Limiter{Rate: rate.NewLimiter(1, 4)}
		require.NoError(t, acquire(l, 1.5))
		require.NoError(t, acquire(l, math.SmallestNonzeroFloat64))
		require.Equal(t, time.Second, wait(t, acquire(l, 1.0000001)))
		require.NoError(t, acquire(l, 1))
		require.ErrorIs(t, acquire(l, 4.5), outbound.ErrTooLarge)
	})
}

func TestLimiter_UnitIsTheNumberThatCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &xrate.Limiter{Rate: rate.NewLimiter(1, 100), Unit: 2}
		_, err := l.Acquire(ctx, outbound.Cost{1e9, 7, 100})
		require.NoError(t, err)
		_, err = l.Acquire(ctx, outbound.Cost{0, 0, 3})
		require.Equal(t, 3*time.Second, wait(t, err))
		_, err = l.Acquire(ctx, outbound.Cost{1, 1, 0, 1})
		require.ErrorIs(t, err, outbound.ErrInvalid)
	})
}

func TestLimiter_InvalidUnitIsAnError(t *testing.T) {
	for _, unit := range []int{-1, len(outbound.Cost{}), math.MaxInt, math.MinInt} {
		err := acquire(&xrate.Limiter{Rate: rate.NewLimiter(1, 1), Unit: unit}, 1)
		require.ErrorIs(t, err, outbound.ErrInvalid)
		var bad *outbound.LimitError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, unit, bad.Limit.Unit)
	}
}

func TestLimiter_InvalidCostsChargeNothing(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, r := range []rate.Limit{10, 0, rate.Inf} {
		l := &xrate.Limiter{Rate: rate.NewLimiter(r, 3), Key: "k"}
		for _, c := range []outbound.Cost{{}, {nan}, {inf}, {-inf}, {-1}, {0, 1}, {1, nan}, {1, 0, -1}, {1, 0, 0, inf}} {
			_, err := l.Acquire(ctx, c)
			require.ErrorIs(t, err, outbound.ErrInvalid, "%v", c)
			var bad *outbound.CostError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, "k", bad.Key)
		}
		require.EqualValues(t, 3, l.Rate.Tokens())
	}
}

func TestLimiter_CostAboveTheBurstIsTooLarge(t *testing.T) {
	for _, c := range []struct {
		rate  rate.Limit
		burst int
		cost  float64
	}{
		{10, 3, 4}, {10, 3, 1e300}, {10, 0, 1}, {10, -1, 1}, {0, 0, 1}, {0, 3, 4}, {math.MaxFloat64 / 2, 3, math.MaxFloat64}, {10, math.MaxInt, 1e300},
	} {
		l := &xrate.Limiter{Rate: rate.NewLimiter(c.rate, c.burst), Key: "k"}
		err := acquire(l, c.cost)
		if c.burst == math.MaxInt { // as many as there can be
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, outbound.ErrTooLarge, "%+v", c)
		var bad *outbound.CostError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, outbound.CostError{
			Key: "k", Cost: outbound.Cost{c.cost}, Err: outbound.ErrTooLarge,
			Limit: outbound.Limit{Capacity: float64(c.burst), LeakRate: float64(c.rate)},
		}, *bad)
		require.EqualValues(t, c.burst, l.Rate.Tokens())
	}
}

func TestLimiter_InfiniteRateAdmitsAll(t *testing.T) {
	l := &xrate.Limiter{Rate: rate.NewLimiter(rate.Inf, 0)}
	for _, n := range []float64{1, 0.5, 1e9, math.MaxInt64, 1e300, math.MaxFloat64} {
		require.NoError(t, acquire(l, n))
	}
	require.True(t, l.Idle())
}

// A rate of 0 lets the burst out and nothing after it: to come back is no use,
// so the error must not be one that says when.
func TestLimiter_RateOfZeroNeverRefills(t *testing.T) {
	for _, r := range []rate.Limit{0, -1, rate.Limit(math.Inf(-1))} {
		synctest.Test(t, func(t *testing.T) {
			l := &xrate.Limiter{Rate: rate.NewLimiter(r, 3), Key: "k"}
			require.NoError(t, acquire(l, 1))
			for range 2 {
				err := acquire(l, 3)
				require.ErrorIs(t, err, outbound.ErrInvalid)
				require.NotErrorIs(t, err, outbound.ErrThrottled)
				require.ErrorContains(t, err, "of 2 tokens 3 are asked for")
				time.Sleep(1000 * time.Hour)
			}
			require.NoError(t, acquire(l, 2))
			require.ErrorIs(t, acquire(l, 1), outbound.ErrInvalid)
			l.Rate.SetLimit(1)
			require.Equal(t, time.Second, wait(t, acquire(l, 1)))
		})
	}
}

// With such a rate x/time admits everything, and goes on so after SetLimit.
func TestLimiter_NaNRateIsInvalid(t *testing.T) {
	for _, r := range []float64{math.NaN(), math.Inf(1)} {
		synctest.Test(t, func(t *testing.T) {
			l := &xrate.Limiter{Rate: rate.NewLimiter(rate.Limit(r), 3)}
			for range 5 {
				require.ErrorIs(t, acquire(l, 1), outbound.ErrInvalid)
				time.Sleep(time.Second)
			}
			l.Rate.Allow()
			l.Rate.Allow() // both at one instant: this spoils the tokens
			l.Rate.SetLimit(1)
			for range 5 {
				require.ErrorIs(t, acquire(l, 1), outbound.ErrInvalid)
				time.Sleep(time.Second)
			}
		})
	}
}

func TestLimiter_LongestWaitsDoNotOverflow(t *testing.T) {
	for _, r := range []rate.Limit{1e-10, 1e-300, math.SmallestNonzeroFloat64} {
		l := &xrate.Limiter{Rate: rate.NewLimiter(r, math.MaxInt)}
		require.NoError(t, acquire(l, math.MaxInt))
		require.Equal(t, time.Duration(math.MaxInt64), wait(t, acquire(l, 1e18)))
	}
}

func TestLimiter_NilIsAnError(t *testing.T) {
	for _, l := range []*xrate.Limiter{nil, {}, {Key: "k", Unit: 99}} {
		require.ErrorIs(t, acquire(l, 1), outbound.ErrInvalid)
		require.True(t, l.Idle())
	}
}

func TestLimiter_EndedCtxChargesNothing(t *testing.T) {
	l := &xrate.Limiter{Rate: rate.NewLimiter(1, 3)}
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err := l.Acquire(done, one)
	require.Equal(t, context.Canceled, err)
	late, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
	defer cancel()
	_, err = l.Acquire(late, one)
	require.Equal(t, context.DeadlineExceeded, err)
	require.EqualValues(t, 3, l.Rate.Tokens())
}

func TestPermit_ReturnsAndHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &xrate.Limiter{Rate: rate.NewLimiter(10, 2)}
		p, err := l.Acquire(ctx, one)
		require.NoError(t, err)
		p.Settle(outbound.Cost{})
		p.Settle(outbound.Cost{100})
		p.Refused(time.Hour)
		p.Hold(time.Hour)
		p.Done()
		p.Done()
		require.EqualValues(t, 1, l.Rate.Tokens())
		require.NoError(t, acquire(l, 1))
	})
}

func TestLimiter_Idle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &xrate.Limiter{Rate: rate.NewLimiter(10, 2)}
		require.True(t, l.Idle())
		require.NoError(t, acquire(l, 2))
		require.False(t, l.Idle())
		time.Sleep(199 * time.Millisecond)
		require.False(t, l.Idle())
		time.Sleep(time.Millisecond)
		require.True(t, l.Idle())
		require.True(t, l.Rate.Reserve().OK())
		require.False(t, l.Idle())
	})
	spent := &xrate.Limiter{Rate: rate.NewLimiter(0, 1)}
	require.NoError(t, acquire(spent, 1))
	require.False(t, spent.Idle(), "a new one would have a token")
}

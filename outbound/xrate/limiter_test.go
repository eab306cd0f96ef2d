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

	_ outbound.Limiter = (*xrate.Limiter)(nil)
)

func newLimiter(r rate.Limit, burst int) *xrate.Limiter {
	return &xrate.Limiter{Rate: rate.NewLimiter(r, burst), Key: "k"}
}

func acquire(l *xrate.Limiter, n float64) error {
	_, err := l.Acquire(ctx, outbound.Cost{n})
	return err
}

// wait returns the retry time of a refusal, and fails on any other error.
func wait(t *testing.T, err error) time.Duration {
	t.Helper()
	var full *outbound.ThrottledError
	require.ErrorAs(t, err, &full)
	require.Equal(t, "k", full.Key)
	return full.RetryAfter
}

// A call that comes at its retry time is admitted, and one that comes two nanoseconds before is not:
// also at rates and bursts at which floats lose digits.
func TestLimiter_RetryAfterIsExact(t *testing.T) {
	for _, shape := range []struct {
		rate  rate.Limit
		burst int
	}{
		{10, 1}, {3, 3}, {7, 20}, {1e7 / 3, 1}, {rate.Every(time.Hour), 5}, {1.0 / (30 * 24 * 3600), 100}, {0.1, 1e7}, {1e-7 / 3, 7},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(shape.rate, shape.burst)
			require.NoError(t, acquire(l, float64(shape.burst)))
			time.Sleep(1234567 * time.Nanosecond)
			for i := range 20 {
				n := float64(1 + i*i*shape.burst/400)
				err := acquire(l, n)
				if err == nil {
					continue
				}
				d, last := wait(t, err), time.Duration(2)
				if d <= last || d >= 1000*time.Hour { // with so many seconds a float does not distinguish nanoseconds
					last = d
				}
				time.Sleep(d - last)
				require.ErrorIs(t, acquire(l, n), outbound.ErrThrottled, "rate %v, burst %v: early", shape.rate, shape.burst)
				time.Sleep(last)
				require.NoError(t, acquire(l, n), "rate %v, burst %v: after %v", shape.rate, shape.burst, d)
			}
		})
	}
}

// Refusals at the same time charge nothing. A reservation that is cancelled would delay the next
// call.
func TestLimiter_RefusalsAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(10, 5)
		require.NoError(t, acquire(l, 5))
		time.Sleep(30 * time.Millisecond)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				n := 1 + i%5
				err := acquire(l, float64(n))
				if full, ok := errors.AsType[*outbound.ThrottledError](err); !ok || full.RetryAfter != time.Duration(n*100-30)*time.Millisecond {
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

// Callers at the same time are admitted for the burst, and no more.
func TestLimiter_ConcurrentCallersShareTheBurst(t *testing.T) {
	l := newLimiter(1e-9, 100) // nothing refills while the test runs
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				if acquire(l, 1) == nil {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 100, admitted.Load())
}

// Fractions are rounded up, and a Unit is the number that counts.
func TestLimiter_CountsWholeNumbersOfItsUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(1, 4)
		require.NoError(t, acquire(l, 1.5))
		require.NoError(t, acquire(l, math.SmallestNonzeroFloat64))
		require.Equal(t, time.Second, wait(t, acquire(l, 1.0000001)))
		require.NoError(t, acquire(l, 1))
		require.ErrorIs(t, acquire(l, 4.5), outbound.ErrTooLarge)

		l = newLimiter(1, 100)
		l.Unit = 2
		_, err := l.Acquire(ctx, outbound.Cost{1e9, 7, 100})
		require.NoError(t, err)
		_, err = l.Acquire(ctx, outbound.Cost{outbound.Free, 0, 3})
		require.Equal(t, 3*time.Second, wait(t, err))
		_, err = l.Acquire(ctx, outbound.Cost{1, 1, 0, 1})
		require.ErrorIs(t, err, outbound.ErrInvalid)
	})
}

// Each error is of its documented type, and nothing is charged.
func TestLimiter_ErrorsChargeNothing(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	done, cancel := context.WithCancel(ctx)
	cancel()
	for _, r := range []rate.Limit{10, 0, rate.Inf} {
		l := newLimiter(r, 3)
		for _, c := range []outbound.Cost{{}, {nan}, {inf}, {-inf}, {-1}, {0, 1}, {1, nan}, {1, 0, -1}, {1, 0, 0, inf}} {
			_, err := l.Acquire(ctx, c)
			var bad *outbound.CostError
			require.ErrorAs(t, err, &bad, "%v", c)
			require.ErrorIs(t, err, outbound.ErrInvalid)
			require.Equal(t, "k", bad.Key)
		}
		_, err := l.Acquire(done, outbound.Cost{1})
		require.Equal(t, context.Canceled, err)
		for _, l.Unit = range []int{-1, len(outbound.Cost{}), math.MaxInt, math.MinInt} {
			var bad *outbound.LimitError
			require.ErrorAs(t, acquire(l, 1), &bad)
			require.Equal(t, l.Unit, bad.Limit.Unit)
		}
		require.EqualValues(t, 3, l.Rate.Tokens())
	}
	for _, l := range []*xrate.Limiter{nil, {}, {Key: "k", Unit: 99}} {
		require.ErrorIs(t, acquire(l, 1), outbound.ErrInvalid)
		require.True(t, l.Idle())
	}
}

// A cost above the burst is too large, unless the burst is as large as can be. rate.Inf ignores the burst.
func TestLimiter_CostAboveTheBurstIsTooLarge(t *testing.T) {
	require.NoError(t, acquire(newLimiter(10, math.MaxInt), 1e300))
	infinite := newLimiter(rate.Inf, 0)
	for _, n := range []float64{1, 0.5, 1e9, math.MaxInt64, 1e300, math.MaxFloat64} {
		require.NoError(t, acquire(infinite, n))
	}
	require.True(t, infinite.Idle())
	for _, c := range []struct {
		rate  rate.Limit
		burst int
		cost  float64
	}{
		{10, 3, 4}, {10, 3, 1e300}, {10, 0, 1}, {10, -1, 1}, {0, 0, 1}, {0, 3, 4}, {math.MaxFloat64 / 2, 3, math.MaxFloat64},
	} {
		l := newLimiter(c.rate, c.burst)
		var bad *outbound.CostError
		require.ErrorAs(t, acquire(l, c.cost), &bad, "%+v", c)
		require.Equal(t, outbound.CostError{
			Key: "k", Cost: outbound.Cost{c.cost}, Err: outbound.ErrTooLarge,
			Limit: outbound.Limit{Capacity: float64(c.burst), LeakRate: float64(c.rate)},
		}, *bad)
		require.EqualValues(t, c.burst, l.Rate.Tokens())
	}
}

// A rate of 0 admits the burst and nothing after it. The error has no retry time, until a rate is
// set.
func TestLimiter_RateOfZeroNeverRefills(t *testing.T) {
	for _, r := range []rate.Limit{0, -1, rate.Limit(math.Inf(-1))} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(r, 3)
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

// With such a rate x/time admits every call, and continues to do so after SetLimit.
func TestLimiter_NaNRateIsInvalid(t *testing.T) {
	for _, r := range []float64{math.NaN(), math.Inf(1)} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(rate.Limit(r), 3)
			require.ErrorIs(t, acquire(l, 1), outbound.ErrInvalid)
			time.Sleep(time.Second)
			l.Rate.Allow()
			l.Rate.Allow() // both at one instant: this spoils the tokens
			l.Rate.SetLimit(1)
			for range 5 {
				require.ErrorIs(t, acquire(l, 1), outbound.ErrInvalid)
				time.Sleep(time.Second)
			}
			require.True(t, l.Idle(), "tokens that are NaN are no loss")
		})
	}
}

// The longest waits are 292 years.
func TestLimiter_LongestWaitsDoNotOverflow(t *testing.T) {
	for _, r := range []rate.Limit{1e-10, 1e-300, math.SmallestNonzeroFloat64} {
		l := newLimiter(r, math.MaxInt)
		require.NoError(t, acquire(l, math.MaxInt))
		require.Equal(t, time.Duration(math.MaxInt64), wait(t, acquire(l, 1e18)))
	}
}

// A permit has no effect.
func TestPermit_ReturnsAndHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(10, 2)
		p, err := l.Acquire(ctx, outbound.Cost{1})
		require.NoError(t, err)
		p.Settle(outbound.Cost{100})
		p.Refused(time.Hour)
		p.Hold(time.Hour)
		p.Done()
		require.EqualValues(t, 1, l.Rate.Tokens())
		require.NoError(t, acquire(l, 1))
	})
}

// A limiter is idle when all of its tokens are there. Reservations of the rate.Limiter itself count.
func TestLimiter_Idle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(10, 2)
		require.True(t, l.Idle())
		require.NoError(t, acquire(l, 2))
		time.Sleep(199 * time.Millisecond)
		require.False(t, l.Idle())
		time.Sleep(time.Millisecond)
		require.True(t, l.Idle())
		require.True(t, l.Rate.ReserveN(time.Now(), 2).OK())
		require.False(t, l.Idle())
		require.True(t, l.Rate.Reserve().OK())
		require.Equal(t, 200*time.Millisecond, wait(t, acquire(l, 1)))
	})
}

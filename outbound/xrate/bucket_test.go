package xrate_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/xrate"
)

// trio is one limit, decided by x/time and by a bucket in both of its ways: a
// second limit, which is never in the way, takes it off its fast path.
func trio(r float64, burst int) [3]outbound.Limiter {
	limit := outbound.Limit{Capacity: float64(burst), LeakRate: r}
	never := outbound.Limit{Capacity: 1e12, LeakRate: 1e12, Name: "never"}
	return [3]outbound.Limiter{
		&xrate.Limiter{Rate: rate.NewLimiter(rate.Limit(r), burst)},
		outbound.Must(outbound.NewBucket("fast", limit)),
		outbound.Must(outbound.NewBucket("slow", limit, never)),
	}
}

// verdict is what a limiter says about a call.
type verdict struct {
	admitted, tooLarge bool
	wait               time.Duration
}

func ask(t *testing.T, l outbound.Limiter, n int) verdict {
	t.Helper()
	p, err := l.Acquire(ctx, outbound.Cost{float64(n)})
	if err == nil {
		p.Done()
		return verdict{admitted: true}
	}
	if errors.Is(err, outbound.ErrTooLarge) {
		return verdict{tooLarge: true}
	}
	return verdict{wait: wait(t, err)}
}

// schedule asks all three the same questions at the same times, at about as
// many units as the limit lets through, and returns how many were admitted.
// What is called the same may differ by slack: 5 ns for digits, and drift times
// the time since the beginning.
func schedule(t *testing.T, random *rand.Rand, r float64, drift float64) (admitted, refused int) {
	burst := 1 + random.IntN(20)
	all := trio(r, burst)
	begin := time.Now()
	for step := range 150 {
		n := 1 + random.IntN(burst)
		if random.IntN(20) == 0 {
			n = burst + random.IntN(3)
		}
		mean := float64(burst+1) / 2 / r * 1000
		time.Sleep(time.Duration(random.ExpFloat64()*mean) * time.Millisecond)
		slack := 5 + time.Duration(drift*float64(time.Since(begin)))

		var said [3]verdict
		late := false
		for i, l := range all {
			said[i] = ask(t, l, n)
			if said[i].wait > 0 && said[i].wait <= slack {
				late = true
			}
		}
		if late && drift > 0 { // on the edge: those that said no say yes after the slack
			time.Sleep(slack)
			for i, l := range all {
				if !said[i].admitted {
					said[i] = ask(t, l, n)
				}
			}
		}
		for i := 1; i < len(all); i++ {
			require.Equal(t, said[0].admitted, said[i].admitted, "rate %v, burst %d, step %d, cost %d: %+v", r, burst, step, n, said)
			require.Equal(t, said[0].tooLarge, said[i].tooLarge, "rate %v, burst %d, step %d, cost %d: %+v", r, burst, step, n, said)
			require.InDelta(t, said[0].wait, said[i].wait, float64(slack), "rate %v, burst %d, step %d, cost %d: %+v", r, burst, step, n, said)
		}
		if said[0].admitted {
			admitted++
		} else {
			refused++
		}
	}
	return admitted, refused
}

// A unit leaks in a whole number of nanoseconds at these rates, so a bucket
// rounds nothing.
func TestBucket_DecidesAsARateLimiter(t *testing.T) {
	rates := []float64{0.1, 0.5, 1, 2, 4, 5, 8, 10, 16, 20, 25, 40, 50, 100, 500, 1000, 10000}
	compare(t, rates, 0)
}

// At these rates a bucket rounds its leak rate down, by 1e-5 at most.
func TestBucket_DecidesAsARateLimiterAtOddRates(t *testing.T) {
	rates := []float64{0.3, 1.0 / 3600, 3, 7, 9.9, 33, 99.009, 333, 1234.5, 77777}
	compare(t, rates, 1e-5)
}

func compare(t *testing.T, rates []float64, drift float64) {
	admitted, refused := 0, 0
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			yes, no := schedule(t, random, rates[random.IntN(len(rates))], drift)
			admitted += yes
			refused += no
		})
	}
	require.Greater(t, admitted, 2000, "the schedules are too dense to tell anything")
	require.Greater(t, refused, 2000, "the schedules are too thin to tell anything")
}

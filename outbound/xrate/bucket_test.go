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
)

// verdict is what a limiter decides about a call.
type verdict struct {
	admitted, tooLarge bool
	wait               time.Duration
}

func ask(t *testing.T, l outbound.Limiter, n int) verdict {
	t.Helper()
	_, err := l.Acquire(ctx, outbound.Cost{float64(n)})
	if err == nil || errors.Is(err, outbound.ErrTooLarge) {
		return verdict{admitted: err == nil, tooLarge: err != nil}
	}
	return verdict{wait: wait(t, err)}
}

// schedule asks x/time and two buckets the same questions at the same times, at about as many units
// as the limit admits, and returns how many calls were admitted. The second bucket has a limit more,
// which is never reached, so that it has another path. Waits may differ by slack: 5 ns for digits,
// and drift times the time since the beginning.
func schedule(t *testing.T, random *rand.Rand, r float64, drift float64) (admitted int) {
	burst := 1 + random.IntN(20)
	limit := outbound.Limit{Capacity: float64(burst), LeakRate: r}
	never := outbound.Limit{Capacity: 1e12, LeakRate: 1e12, Name: "never"}
	all := [...]outbound.Limiter{
		newLimiter(rate.Limit(r), burst),
		outbound.Must(outbound.NewBucket("k", limit)),
		outbound.Must(outbound.NewBucket("k", limit, never)),
	}
	begin := time.Now()
	for step := range steps {
		n := 1 + random.IntN(burst)
		if random.IntN(20) == 0 {
			n = burst + random.IntN(3)
		}
		mean := float64(burst+1) / 2 / r * 1000
		time.Sleep(time.Duration(random.ExpFloat64()*mean) * time.Millisecond)
		slack := 5 + time.Duration(drift*float64(time.Since(begin)))
		var said [len(all)]verdict
		late := false
		for i, l := range all {
			said[i] = ask(t, l, n)
			late = late || drift > 0 && said[i].wait > 0 && said[i].wait <= slack
		}
		if late { // on the edge: those that refuse admit the call after the slack
			time.Sleep(slack)
			for i, l := range all {
				if !said[i].admitted {
					said[i] = ask(t, l, n)
				}
			}
		}
		for _, is := range said[1:] {
			same := is.admitted == said[0].admitted && is.tooLarge == said[0].tooLarge && (is.wait-said[0].wait).Abs() <= slack
			require.True(t, same, "rate %v, burst %d, step %d, cost %d: %+v", r, burst, step, n, said)
		}
		if said[0].admitted {
			admitted++
		}
	}
	return admitted
}

const schedules, steps = 100, 150

// A bucket decides as x/time does. At the first rates a unit leaks in a whole number of nanoseconds,
// so a bucket rounds nothing. At the others it rounds its leak rate down, by 1e-5 at most.
func TestBucket_DecidesAsARateLimiter(t *testing.T) {
	for drift, rates := range map[float64][]float64{
		0:    {0.1, 0.5, 1, 2, 4, 5, 8, 10, 16, 20, 25, 40, 50, 100, 500, 1000, 10_000},
		1e-5: {0.3, 1.0 / 3600, 3, 7, 9.9, 33, 99.009, 333, 1234.5, 77_777},
	} {
		admitted := 0
		for seed := range uint64(schedules) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				admitted += schedule(t, random, rates[random.IntN(len(rates))], drift)
			})
		}
		require.Greater(t, admitted, 2000, "the schedules are too dense to show anything")
		require.Less(t, admitted, schedules*steps-2000, "the schedules are too thin to show anything")
	}
}

// Reserve gives the times that Reserve of x/time gives, run side by side: with cancels of the latest
// reservation, with longest waits, and with costs.
func TestReserve_GivesTheTimesOfXTime(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			theirs := rate.NewLimiter(2, 3)
			ours := outbound.Must(outbound.NewBucket("k", outbound.Limit{Capacity: 3, LeakRate: 2}))
			cancel := func() {} // of the latest reservation, or nothing
			for range 100 {
				if r.IntN(4) == 0 {
					cancel()
					cancel = func() {}
					continue
				}
				n, most := 1+r.IntN(3), time.Duration(r.IntN(5000))*time.Millisecond
				want := theirs.ReserveN(time.Now(), n)
				is, err := ours.Reserve(ctx, outbound.Cost{float64(n)}, most)
				if want.Delay() > most {
					want.Cancel()
					require.InDelta(t, want.Delay(), wait(t, err), float64(2*time.Second), "seed %d", seed)
					continue
				}
				require.NoError(t, err, "seed %d: x/time waits %v of %v", seed, want.Delay(), most)
				require.InDelta(t, want.Delay(), time.Until(is.At()), float64(time.Microsecond), "seed %d", seed)
				cancel = func() { is.Cancel(); want.Cancel() }
				if r.IntN(3) > 0 {
					time.Sleep(time.Until(is.At()))
					p, err := is.Permit(ctx)
					require.NoError(t, err, "seed %d", seed)
					p.Done()
					cancel = func() {}
				}
			}
		})
	}
}

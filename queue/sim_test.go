package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// simulation is random traffic through queues around one bucket, with cancels, deadlines,
// settles, calls that do not wait, holds, refusals, pauses of the process and new limits.
// Whatever happens, no more units leave than the limits allow.
type simulation struct {
	t      *testing.T
	rnd    *rand.Rand
	b      *outbound.Bucket
	queues []*Queue
	limits []outbound.Limit
	sent   [2]outboundtest.History // what left, by unit
}

func (s *simulation) call(ctx context.Context, l outbound.Limiter, c outbound.Cost, used outbound.Cost, hold time.Duration) {
	p, err := l.Acquire(ctx, c)
	if err != nil {
		errorIf(s.t, !errors.Is(err, outbound.ErrThrottled) && !errors.Is(err, ctx.Err()), "%v", err)
		return
	}
	now := time.Now()
	for i := range s.sent {
		s.sent[i].Add(now, used[i])
	}
	time.Sleep(hold)
	if used != c {
		p.Settle(used)
	}
	p.Done()
}

// run lets n calls come, faster than the limits admit them.
func (s *simulation) run(n int) {
	for range n {
		q := s.queues[s.rnd.IntN(len(s.queues))]
		c := outbound.Cost{1, float64(s.rnd.IntN(5))}
		used := c
		if s.rnd.IntN(3) == 0 {
			used[1] = float64(s.rnd.IntN(int(c[1]) + 1))
		}
		ctx, cancel := context.WithCancel(bg)
		if s.rnd.IntN(10) == 0 {
			ctx, cancel = context.WithTimeout(bg, time.Duration(s.rnd.Int64N(int64(10*time.Second))))
		}
		hold := time.Duration(s.rnd.Int64N(int64(500 * time.Millisecond)))
		go func() {
			s.call(ctx, q, c, used, hold)
			cancel()
		}()
		synctest.Wait()
		switch {
		case q.Len() > 50:
			time.Sleep(time.Duration(s.rnd.Float64() * 2 / s.limits[0].LeakRate * float64(time.Second)))
		case s.rnd.IntN(20) == 0:
			time.Sleep(time.Duration(s.rnd.Int64N(int64(200 * time.Millisecond))))
			cancel()
		}
		s.disturb(q)
	}
}

func (s *simulation) disturb(q *Queue) {
	switch s.rnd.IntN(400) {
	case 0:
		s.b.Hold(bg, time.Duration(s.rnd.Int64N(int64(5*time.Second)))+1)
	case 1:
		pause(q, time.Duration(s.rnd.Int64N(int64(2*time.Second))))
	case 2:
		go s.call(bg, s.b, outbound.Cost{1, 1}, outbound.Cost{1, 1}, 0) // a call that does not wait
	case 3:
		if p, err := s.b.Acquire(bg, outbound.Cost{1}); err == nil {
			s.sent[0].Add(time.Now(), 1)
			p.Refused(time.Duration(s.rnd.Int64N(int64(3 * time.Second))))
			p.Done()
		}
	case 4:
		s.b.SetLimits(bg, s.limits...)
	case 5:
		time.Sleep(30 * time.Second)
	}
}

// Random traffic keeps the limits, and leaves nothing behind.
func TestSimulation_KeepsTheLimits(t *testing.T) {
	seeds, calls := uint64(9), 2000
	switch {
	case raced || testing.Short():
		seeds = 3
	case long:
		seeds, calls = 36, 20_000
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			rate := []float64{0.02, 2, 200}[seed%3] // a test then lasts from a hundred hours to half a minute
			limits := []outbound.Limit{
				{Capacity: float64(1 + seed%4), LeakRate: rate, Name: "calls"},
				{Capacity: 10, LeakRate: 2.5 * rate, Unit: 1, Name: "units"},
			}
			s := &simulation{t: t, rnd: rand.New(rand.NewPCG(seed, 7)), limits: limits}
			if s.b = bucket(t, limits...); seed%2 == 1 {
				s.b = shared(t, store.NewMemory(), limits...)
			}
			for range 1 + seed/3 {
				s.queues = append(s.queues, New(s.b, Config{}))
			}
			s.run(calls)
			pass(10 * time.Hour)
			late := 0.05 // the largest tolerance
			for i, l := range limits {
				err := s.sent[i].Check(l.Capacity, l.LeakRate, late*l.LeakRate)
				errorIf(t, err != nil, "seed %d, %s: %v", seed, l.Name, err)
			}
			for _, q := range s.queues {
				if s, err := s.b.State(bg); q.Len() != 0 || s.Level != 0 || err != nil {
					t.Errorf("seed %d: %d wait, level %v, %v", seed, q.Len(), s.Level, err)
				}
			}
			t.Logf("seed %d: %d calls left in %v", seed, s.sent[0].Len(), s.sent[0].Total().End.Sub(s.sent[0].Total().Start))
		})
	}
}

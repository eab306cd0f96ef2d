package jobs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/queue"
)

// Jobs of several costs, under several limits of several kinds: each limit is kept, and so is the
// order.
func TestScheduler_CostsAndLimitsOfAllKinds(t *testing.T) {
	for name, limits := range map[string][]outbound.Limit{
		"leaky":  {{Capacity: 2, LeakRate: 10, Name: "calls"}, {Capacity: 50, LeakRate: 30, Unit: 1, Name: "tokens"}},
		"per":    {outbound.PerSecond(10), outbound.PerMinute(1800).Burst(30).Of(1, "tokens")},
		"window": {outbound.Window(10, time.Second), outbound.Window(300, 10*time.Second).Of(1, "tokens")},
		"long":   {outbound.PerSecond(20), outbound.FixedWindow(100, 10*time.Second)},
		"day":    {outbound.PerSecond(10), outbound.Daily(150, time.UTC)},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, Config{}, limits, func(t *testing.T, line func() *Scheduler) {
				var tokens outboundtest.History
				s := &punctual{t: t}
				rnd := rand.New(rand.NewPCG(1, 1))
				lines := []*Scheduler{line(), line()}
				begin := time.Now()
				const jobs = 200
				for i := range jobs {
					c := outbound.Cost{1, float64(rnd.IntN(30))}
					if name == "long" || name == "day" {
						c[1] = 0
					}
					s.startIn(0, fmt.Sprint(i), counted{lines[i%2], &tokens}, "", c)
					if i < 2 {
						time.Sleep(time.Millisecond)
					}
				}
				s.jobs.Wait()
				took := time.Since(begin)
				most := 100 * time.Second // for 2 900 tokens
				if name == "day" {        // fifty of them wait for the next day
					most = 25 * time.Hour
				}
				if s.history.Len() != jobs || s.sum() > 3*jobs || took > most {
					t.Errorf("%d jobs in %v, %d runs, up to %d of one", s.history.Len(), took, s.sum(), s.most())
				}
				switch name {
				case "leaky", "per":
					s.check(limits[0])
					if err := tokens.Check(limits[1].Capacity, limits[1].LeakRate, 0.05*limits[1].LeakRate); err != nil {
						t.Error(err)
					}
				case "window":
					if err := s.history.CheckWindow(10, time.Second-10*time.Millisecond); err != nil {
						t.Error(err)
					}
					if err := tokens.CheckWindow(300, 10*time.Second-10*time.Millisecond); err != nil {
						t.Error(err)
					}
				case "long":
					s.check(limits[0])
				case "day":
					if err := s.history.CheckCalendar(150, outboundtest.Day, time.UTC, time.Second); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// counted notes what the calls take of the second unit.
type counted struct {
	*Scheduler
	history *outboundtest.History
}

func (l counted) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	p, err := l.Scheduler.Acquire(ctx, c)
	if err == nil {
		l.history.Add(time.Now(), c[1])
	}
	return p, err
}

// Others take a part of a window. Jobs that find it full wait for the next, and do not have the
// desk wait for that as well.
func TestScheduler_OtherCallsUseTheWindow(t *testing.T) {
	for name, limit := range map[string]outbound.Limit{
		"fixed": outbound.FixedWindow(100, time.Hour), "moving": outbound.Window(100, time.Hour), "hour": outbound.Hourly(100),
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, Config{}, []outbound.Limit{limit}, func(t *testing.T, line func() *Scheduler) {
				l, others, s := line(), queue.New(line().bucket, queue.Config{}), &punctual{t: t}
				begin, went := time.Now(), new(atomic.Int64)
				take := func() {
					for range 10 {
						s.jobs.Go(func() {
							if p, err := others.Acquire(bg, one); err == nil {
								went.Add(1)
								p.Done()
							}
						})
						synctest.Wait()
					}
				}
				take()
				for i := range 5 {
					s.jobs.Go(func() { time.Sleep(time.Duration(i+1) * time.Hour); take() })
				}
				const jobs = 400 // 90 go in a window
				for i := range jobs {
					s.startIn(0, fmt.Sprint(i), l, "", one)
				}
				s.jobs.Wait()
				var last time.Time
				for last = range s.history.All() {
				}
				if took := last.Sub(begin); took > 4*time.Hour+time.Minute || s.history.Len() != jobs || went.Load() != 60 || s.most() > 12 {
					t.Errorf("%d jobs in %v, %d runs, up to %d of one; %d others", s.history.Len(), took, s.sum(), s.most(), went.Load())
				}
			})
		})
	}
}

package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// masses is very many processes on one key of a server that carries out one step at a time. Calls
// wait in each process all the time.
type masses struct {
	processes, waiters int
	limit              outbound.Limit
	trips              []time.Duration // there and back, of the processes in turn
	step               time.Duration   // of the server
	work               time.Duration   // what is measured: before, they work for a third of it
	trouble            bool            // in the last third processes crash, join, and lose the server
}

func (c masses) String() string {
	return fmt.Sprintf("%5d processes, %v, %d waiters each, %v away, %v a step", c.processes, c.limit, c.waiters, c.trips, c.step)
}

// member is a process.
type member struct {
	*far
	left atomic.Int64
	kill context.CancelFunc
}

// server is the time of the server: a request waits for those before it.
type server struct {
	mu   sync.Mutex
	free time.Time
	done atomic.Int64 // steps
}

func (s *server) carry(step time.Duration) {
	s.mu.Lock()
	now := time.Now()
	s.free = latest(now, s.free).Add(step)
	s.done.Add(1)
	wait := s.free.Sub(now)
	s.mu.Unlock()
	time.Sleep(wait)
}

// departed returns how many calls of all have left.
func departed(all []*member) (n int64) {
	for _, one := range all {
		n += one.left.Load()
	}
	return n
}

// run lets the masses work. It returns the fairness among those that work all the time, the part of
// the rate that is used, the requests for each call, and the part of its time that the server works.
func (c masses) run(t *testing.T) (fair, use, requests, load float64) {
	var sent outboundtest.History
	synctest.Test(t, func(t *testing.T) {
		m, srv, dice := store.NewMemory(), new(server), rand.New(rand.NewPCG(1, 2))
		var all []*member
		join := func() {
			ctx, kill := context.WithCancel(bg)
			link := &far{Store: m, way: c.trips[len(all)%len(c.trips)] / 2, jitter: 0.05, first: 4}
			link.before = func(*store.Op) error { srv.carry(c.step); return nil }
			one := &member{far: link, kill: kill}
			all = append(all, one)
			q := New(shared(t, link, c.limit), Config{})
			for range c.waiters {
				go func() {
					for ctx.Err() == nil {
						p, err := q.Acquire(ctx, outbound.Cost{1})
						if err != nil { // the server is away
							time.Sleep(100 * ms)
							continue
						}
						one.left.Add(1)
						sent.Add(time.Now(), 1)
						p.Done()
					}
				}()
			}
		}
		for range c.processes {
			join()
			pass(time.Duration(dice.Int64N(int64(2 * time.Second / time.Duration(c.processes)))))
		}
		pass(c.work / 3)
		counts := make([]float64, len(all))
		sum, steps, from := departed(all), srv.done.Load(), time.Now()
		for i, one := range all {
			counts[i] = -float64(one.left.Load())
		}
		pass(c.work)
		if c.trouble {
			for i := range c.processes / 10 { // crash, while others join
				all[i].away.Store(true)
				all[i].kill()
				join()
				all[c.processes-1-i].away.Store(true)
			}
			pass(c.work / 6)
			for i := range c.processes / 10 {
				all[c.processes-1-i].away.Store(false)
			}
			pass(c.work / 6)
		}
		var shares []float64
		for i := range c.processes {
			if hit := c.trouble && (i < c.processes/10 || i >= c.processes-c.processes/10); !hit {
				shares = append(shares, counts[i]+float64(all[i].left.Load()))
			}
		}
		sum, steps = departed(all)-sum, srv.done.Load()-steps
		took := time.Since(from)
		fair, use = jain(shares), float64(sum)/(c.limit.LeakRate*took.Seconds())
		requests, load = float64(steps)/float64(sum), float64(steps)*c.step.Seconds()/took.Seconds()
		for _, one := range all {
			one.kill()
		}
		pass(5 * time.Minute)
	})
	if err := sent.Check(c.limit.Capacity, c.limit.LeakRate, c.limit.LeakRate*(5*ms).Seconds()*1.05); err != nil {
		t.Errorf("%v: %v", c, err)
	}
	return fair, use, requests, load
}

// Ten thousand processes on one key have equal shares of the whole rate with little more than one
// request a call, while a tenth of them crashes, as many join, and as many lose the server for a
// while. A process with one call at a time makes two requests: its look at the clock before the call
// leaves books no other.
func TestMasses_SharesOneKey(t *testing.T) {
	mixed := []time.Duration{2 * ms, 20 * ms}
	all := []masses{
		{processes: 500, waiters: 2, limit: outbound.Limit{Capacity: 1, LeakRate: 1000}, trips: mixed, step: 60 * time.Microsecond, work: 30 * time.Second, trouble: true},
	}
	if raced {
		all[0].processes, all[0].work = 100, 10*time.Second
	}
	if long { // a quarter of an hour
		all = nil
		for _, n := range []int{100, 1000, 10_000} {
			for _, rate := range []float64{100, 1000, 10_000} {
				for _, w := range []int{1, 2} {
					if work := time.Duration(60*float64(n)/rate) * time.Second; work < time.Hour {
						all = append(all, masses{processes: n, waiters: w, limit: outbound.Limit{Capacity: 1, LeakRate: rate}, trips: mixed, step: 60 * time.Microsecond, work: max(work, 10*time.Second), trouble: true})
					}
				}
			}
		}
	}
	for _, c := range all {
		fair, use, requests, load := c.run(t)
		t.Logf("%v: Jain %.3f, %.3f of the rate, %.2f requests a call, the server works %.0f %% of the time", c, fair, use, requests, 100*load)
		// Two calls of a process that is 20 ms away make at most 100 a second.
		enough := c.limit.LeakRate/float64(c.processes) <= 20
		if c.waiters > 1 && load < 0.7 && enough && (fair < 0.95 || use < 0.95 || requests > 1.5) {
			t.Errorf("%v: Jain %.3f, %.3f of the rate, %.2f requests a call", c, fair, use, requests)
		}
	}
}

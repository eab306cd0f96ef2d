package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// apart is a number of workers at some distance from their store, each with a queue of its
// own. They work for a while, and again after each of several pauses.
type apart struct {
	trips   []time.Duration // there and back, of the workers in turn
	workers int
	limit   outbound.Limit
	waiters int           // calls that wait, of each worker, all the time; 0: single calls come now and then
	work    time.Duration // after that the calls that wait go, and 2 s nothing happens
	times   int
}

// shares is how the workers have used the rate.
type shares struct {
	sent outboundtest.History
	use  float64 // part of the leak rate while they work, without the first half of the first time
	jain float64
	late uint64
}

func (a apart) run(t *testing.T) (o *shares) {
	o = new(shares)
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		queues := make([]*Queue, a.workers)
		for i := range queues {
			s := &far{Store: m, way: a.trips[i%len(a.trips)] / 2, jitter: 0.05, first: 4}
			queues[i] = New(shared(t, s, a.limit), Config{})
		}
		var mu sync.Mutex
		went := make([]float64, a.workers)
		seconds := 0.0
		for k := range a.times {
			from, to := time.Now(), time.Now().Add(a.work)
			if k == 0 {
				from = from.Add(a.work / 2)
			}
			seconds += to.Sub(from).Seconds()
			// A queue that serves too few calls fails here, and not when the test's time is over.
			ctx, cancel := context.WithCancel(bg)
			stuck := time.AfterFunc(a.work+10*time.Second, cancel)
			call := func(i int) {
				if _, err := queues[i].Acquire(ctx, outbound.Cost{1}); err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				now := time.Now()
				o.sent.Add(now, 1)
				mu.Lock()
				defer mu.Unlock()
				if now.After(from) && now.Before(to) {
					went[i]++
				}
			}
			var all sync.WaitGroup
			for i := range a.workers {
				for range a.waiters {
					all.Go(func() {
						for time.Now().Before(to) {
							call(i)
						}
					})
				}
				if a.waiters == 0 {
					every := float64(a.workers) / a.limit.LeakRate * float64(time.Second) / 0.6
					all.Go(func() {
						for time.Now().Before(to) {
							time.Sleep(time.Duration(rand.ExpFloat64() * every))
							all.Go(func() { call(i) })
						}
					})
				}
			}
			all.Wait()
			if stuck.Stop(); ctx.Err() != nil {
				t.Errorf("%v away, %d workers, %v: calls wait 10 s after the work", a.trips, a.workers, a.limit)
				break
			}
			time.Sleep(2 * time.Second)
		}
		var sum, squares float64
		for i, n := range went {
			sum, squares = sum+n, squares+n*n
			o.late += queues[i].Stats().Late
		}
		o.use, o.jain = sum/(a.limit.LeakRate*seconds), sum*sum/squares/float64(a.workers)
	})
	return o
}

// lawful checks that no call left later than by the tolerance, and that an API that counts
// the calls of any second would have refused none.
func (a apart) lawful(t *testing.T, o *shares, second float64) {
	t.Helper()
	if err := o.sent.Check(a.limit.Capacity, a.limit.LeakRate, a.limit.LeakRate*(5*ms).Seconds()*1.01); err != nil {
		t.Errorf("%v away, %d workers, %v: %v", a.trips, a.workers, a.limit, err)
	}
	if w := o.sent.Worst(time.Second); w.Units > second {
		t.Errorf("%v away, %d workers, %v: %v calls in a second", a.trips, a.workers, a.limit, w.Units)
	}
}

// This holds from the first call on and after each pause. Before this rule, a call whose
// place was due before the reply came went when the reply was there, beside the calls after
// it.
func TestQueue_FarStoreKeepsTheLimitAndUsesTheRate(t *testing.T) {
	for _, c := range []struct {
		trips     []time.Duration
		use, jain float64
	}{
		{[]time.Duration{ms}, 0.99, 0.95},
		{[]time.Duration{20 * ms}, 0.98, 0.95},
		{[]time.Duration{50 * ms}, 0.97, 0.95},
		{[]time.Duration{100 * ms}, 0.95, 0.95},
		{[]time.Duration{200 * ms}, 0.90, 0.95},
		{[]time.Duration{2 * ms, 200 * ms}, 0.90, 0.95},
		{[]time.Duration{500 * ms}, 0.60, 0.90}, // of 60 calls by ten workers, one call more or less shows
	} {
		for _, a := range []apart{
			{workers: 10, limit: outbound.PerSecond(10), waiters: 4},
			{workers: 1, limit: outbound.PerSecond(100), waiters: 100},
			{workers: 2, limit: outbound.PerSecond(100), waiters: 50},
			{workers: 20, limit: outbound.PerSecond(100), waiters: 5},
			{workers: 2, limit: outbound.PerSecond(1000), waiters: 750},
		} {
			if a.workers < len(c.trips) || raced && a.limit.LeakRate > 100 {
				continue
			}
			a.trips, a.times, a.work = c.trips, 2, 6*time.Second
			o := a.run(t)
			a.lawful(t, o, a.limit.LeakRate*1.011)
			// A worker learns its distance from its first reply.
			if most := uint64(a.workers + 5 + o.sent.Len()/200); o.use < c.use || o.jain < c.jain || o.late > most {
				t.Errorf("%v away, %d workers, %v: %.3f of the rate, Jain %.3f, %d late", c.trips, a.workers, a.limit, o.use, o.jain, o.late)
			} else {
				t.Logf("%v away, %d workers, %v: %.3f of the rate, Jain %.3f, %d late", c.trips, a.workers, a.limit, o.use, o.jain, o.late)
			}
		}
	}
}

func TestQueue_SingleCallsToAFarStoreKeepTheLimit(t *testing.T) {
	for _, trips := range [][]time.Duration{{ms}, {20 * ms}, {100 * ms}, {200 * ms}, {2 * ms, 200 * ms}} {
		for _, workers := range []int{2, 10} {
			a := apart{trips: trips, workers: workers, limit: outbound.PerSecond(100), times: 3, work: 4 * time.Second}
			a.lawful(t, a.run(t), 100)
		}
	}
}

// A call that comes while nobody waits goes when its reply arrives, and not long after.
func TestQueue_SingleCallWaitsForItsRequest(t *testing.T) {
	for _, trip := range []time.Duration{ms, 20 * ms, 200 * ms} {
		synctest.Test(t, func(t *testing.T) {
			s := &far{Store: store.NewMemory(), way: trip / 2}
			q := New(shared(t, s, outbound.PerSecond(100)), Config{})
			for i := range 20 {
				begin := time.Now()
				if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
					t.Error(err)
				}
				most := trip + trip/10
				if i == 0 && trip > 10*ms { // the worker does not know its distance yet
					most *= 2
				}
				if took := time.Since(begin); took > most {
					t.Errorf("%v away: call %d took %v", trip, i, took)
				}
				time.Sleep(time.Second)
			}
			if n := s.trips.Load(); n > 22 {
				t.Errorf("%v away: %d trips for 20 calls", trip, n)
			}
		})
	}
}

// MaxWait bounds the wait for room and does not count the store's distance. The deadline of
// a ctx counts all.
func TestMaxWait_ShorterThanARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(shared(t, &far{Store: store.NewMemory(), way: 50 * ms}, outbound.PerSecond(100)), Config{MaxWait: 10 * ms})
		for range 5 {
			if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		ctx, cancel := context.WithTimeout(bg, 40*ms)
		defer cancel()
		if _, err := q.Acquire(ctx, outbound.Cost{1}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		pass(time.Second)
	})
}

package queue

import (
	"context"
	"flag"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

var all = flag.Bool("fleets", false, "simulate all fleets, which takes a minute")

const ms = time.Millisecond

// fleet is a number of workers, each with a queue of its own, on one bucket in a store. Each
// worker has so many calls that wait: when one has gone, the next comes.
type fleet struct {
	workers        int
	rate, capacity float64
	waiters        int // calls of each worker
	near, far      time.Duration
	unclaims       bool
}

func (f fleet) String() string {
	return fmt.Sprintf("%4d workers, %4v/s, capacity %3v, %3d waiters each, trips of %v and %v",
		f.workers, f.rate, f.capacity, f.waiters, f.near, f.far)
}

// outcome is how well a fleet did.
type outcome struct {
	jain  float64 // 1: all workers have equal shares; 1/n: one of n has all
	use   float64 // part of the leak rate
	trips float64 // for each call
	late  uint64
	law   error
}

func (o outcome) String() string {
	return fmt.Sprintf("Jain %.4f, %.4f of the rate, %.2f trips a call, %d late, %v", o.jain, o.use, o.trips, o.late, o.law)
}

// run lets the fleet work for so long, and counts after a third of the time.
func (f fleet) run(t *testing.T, length time.Duration) (o outcome) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		stores, queues := make([]*far, f.workers), make([]*Queue, f.workers)
		var h outboundtest.History
		var mu sync.Mutex
		went := make([]float64, f.workers)
		begin := time.Now()
		from, to := begin.Add(length/3), begin.Add(length)
		for i := range f.workers {
			way := f.near / 2
			if i%2 == 1 {
				way = f.far / 2
			}
			stores[i] = &far{Store: m, way: way, jitter: 0.05, unclaims: f.unclaims}
			queues[i] = New(shared(t, stores[i], outbound.Limit{Capacity: f.capacity, LeakRate: f.rate}), Config{})
			call := func() time.Time {
				if _, err := queues[i].Acquire(bg, outbound.Cost{1}); err != nil {
					t.Error(err)
				}
				now := time.Now()
				h.Add(now, 1)
				mu.Lock()
				defer mu.Unlock()
				if now.After(from) && !now.After(to) {
					went[i]++
				}
				return now
			}
			for range f.waiters {
				go func() {
					for call().Before(to) {
					}
				}()
			}
		}
		trips := func() (n float64) {
			for _, s := range stores {
				n += float64(s.trips.Load())
			}
			return n
		}
		pass(length / 3)
		before := trips()
		pass(length - length/3)
		mu.Lock()
		var sum, squares float64
		for i, n := range went {
			sum += n
			squares += n * n
			o.late += queues[i].Stats().Late
		}
		mu.Unlock()
		o.jain = sum * sum / squares / float64(f.workers)
		o.use = sum / (f.rate * to.Sub(from).Seconds())
		o.trips = (trips() - before) / sum
		pass(time.Duration(float64(f.workers*f.waiters)/f.rate*1.2*float64(time.Second)) + 300*time.Second)
		// A call may leave late by the tolerance, which is 5 ms at these rates.
		o.law = h.Check(f.capacity, f.rate, (5*ms).Seconds()*1.05*f.rate)
	})
	return o
}

// expect fails the test if the fleet did not do as well as the package promises.
func (f fleet) expect(t *testing.T, o outcome) {
	t.Helper()
	jain, trips := 0.99, 1.2
	if f.near != f.far {
		jain = 0.98 // the package promises 0.95
	}
	switch {
	case f.waiters == 1:
		trips = 2.2
	case f.workers == 1 && f.rate >= 1000:
		trips = 0.3
	case f.workers > 20:
		trips = 1.7
	}
	if o.law != nil || o.jain < jain || o.use < 0.99 || o.trips > trips {
		t.Errorf("%v: %v; want Jain %v, 0.99 of the rate, at most %v trips", f, o, jain, trips)
	} else {
		t.Logf("%v: %v", f, o)
	}
}

func TestFleet_SharesABucketEqually(t *testing.T) {
	for _, f := range []fleet{
		{workers: 1, rate: 1000, capacity: 1, waiters: 100, near: 2 * ms, far: 2 * ms},
		{workers: 2, rate: 50, capacity: 1, waiters: 2, near: 2 * ms, far: 20 * ms},
		{workers: 2, rate: 1000, capacity: 1, waiters: 20, near: 2 * ms, far: 2 * ms},
		{workers: 2, rate: 1000, capacity: 1, waiters: 200, near: 2 * ms, far: 20 * ms},
		{workers: 2, rate: 1000, capacity: 100, waiters: 200, near: ms * 3 / 10, far: 3 * ms},
		{workers: 10, rate: 50, capacity: 100, waiters: 1, near: 2 * ms, far: 20 * ms},
		{workers: 10, rate: 1000, capacity: 1, waiters: 20, near: 2 * ms, far: 20 * ms},
		{workers: 10, rate: 1000, capacity: 100, waiters: 100, near: 2 * ms, far: 20 * ms},
		{workers: 100, rate: 50, capacity: 1, waiters: 2, near: 2 * ms, far: 20 * ms},
		{workers: 100, rate: 1000, capacity: 1, waiters: 1, near: 2 * ms, far: 20 * ms},
		{workers: 100, rate: 1000, capacity: 1, waiters: 20, near: 2 * ms, far: 20 * ms},
	} {
		if raced && f.workers*f.waiters > 400 {
			continue
		}
		length := 6 * time.Second
		if f.rate == 50 {
			length = time.Minute
		}
		f.expect(t, f.run(t, length))
	}
}

// Without claims the workers close to the store have most of the rate.
func TestFleet_IsUnfairWithoutClaims(t *testing.T) {
	f := fleet{workers: 2, rate: 1000, capacity: 1, waiters: 200, near: 2 * ms, far: 20 * ms, unclaims: true}
	if o := f.run(t, 6*time.Second); o.jain > 0.7 || o.law != nil {
		t.Errorf("%v: %v; want it unfair, or the other test proves nothing", f, o)
	}
}

// A worker without a backlog claims nothing. Its claim would raise the lead, and the others
// would book more than their shares to catch up with it.
func TestFleet_ClaimsOnlyWithABacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &claimed{Store: store.NewMemory()}
		q := New(shared(t, s, outbound.Limit{Capacity: 1, LeakRate: 10}), Config{})
		for _, waiters := range []int{2, 5, 1, 4} { // besides the call that goes at once
			for range waiters + 1 {
				go q.Acquire(bg, outbound.Cost{1})
				synctest.Wait()
			}
			pass(time.Second)
		}
		inf := math.Inf(1)
		want := []float64{
			0, 0, 0, // one goes at once, the others get their places one by one
			0, 0, inf, 1, 2, 0, // of six, the backlog is while more than one has no place
			0, 0, // two, without a backlog
			0, 0, inf, 3, 0, // of five: it goes on from what it had booked
		}
		if !slices.Equal(s.claims, want) {
			t.Errorf("claims %v, want %v", s.claims, want)
		}
	})
}

// claimed is a store that notes the claims of bookings.
type claimed struct {
	store.Store
	claims []float64
}

func (s *claimed) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if op.Action == store.Book && len(op.Costs) > 0 {
		s.claims = append(s.claims, op.Claim)
	}
	return s.Store.Update(ctx, key, op)
}

func TestFleet_All(t *testing.T) {
	if !*all {
		t.Skip("only with -fleets")
	}
	for _, rate := range []float64{50, 1000} {
		for _, workers := range []int{1, 2, 10, 20, 100, 200} {
			for _, waiters := range []int{1, 2, 20, 200} {
				for _, trips := range [][2]time.Duration{{2 * ms, 2 * ms}, {2 * ms, 20 * ms}, {ms * 3 / 10, 3 * ms}} {
					for _, capacity := range []float64{1, 100} {
						f := fleet{workers: workers, rate: rate, capacity: capacity, waiters: waiters, near: trips[0], far: trips[1]}
						if workers >= 100 && waiters == 200 {
							continue
						}
						length := 20 * time.Second
						if rate == 50 {
							length = 3 * time.Minute
						}
						o := f.run(t, length)
						// A fleet with too few calls to use the rate has no shares to claim.
						if few := float64(workers*waiters) < 2*rate*f.far.Seconds(); few {
							t.Logf("%v: %v (few calls)", f, o)
						} else {
							f.expect(t, o)
						}
					}
				}
			}
		}
	}
	f := fleet{workers: 1000, rate: 1000, capacity: 1, waiters: 2, near: 2 * ms, far: 20 * ms}
	f.expect(t, f.run(t, 20*time.Second))
	f.rate = 50
	f.expect(t, f.run(t, 4*time.Minute))
}

package queue

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/trace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Calls leave in the order of their arrival, each as soon as the limit has capacity for it.
func TestQueue_LeavesAtTheRateInOrder(t *testing.T) {
	for _, rate := range []float64{10, 1000, 20_000, 200_000} {
		for range 30 {
			synctest.Test(t, func(t *testing.T) {
				q := New(bucket(t, outbound.Limit{Capacity: 2, LeakRate: rate}), Config{})
				all := comeAll(65, bg, q, 1)
				pass(10 * time.Second)
				for i, c := range all {
					want := time.Duration(float64(max(0, i-1)) / rate * 1e9)
					if !c.admitted() || c.took() < want || c.took() > want+time.Microsecond {
						t.Errorf("at %v/s: call %d left after %v, want %v; %v", rate, i, c.took(), want, c.ended().err)
					}
				}
				if s := q.Stats(); s != (Stats{Admitted: 65, Waited: 63}) {
					t.Errorf("at %v/s: %+v", rate, s)
				}
			})
		}
	}
}

// A call that would wait beyond MaxWait or its deadline is refused immediately. The error has the time
// until it could leave, the bucket's key and the limit's label, as the bucket's own errors have.
func TestQueue_RefusesEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.PerMinute(60)), Config{MaxWait: 3500 * ms})
		comeAll(4, bg, q, 1)
		c := come(bg, q, 1)
		if full := c.refused(); full.RetryAfter.Round(100*ms) != 4*time.Second || full.Err != nil || full.Limit != "60 per 1m" || full.Key != "test" {
			t.Errorf("beyond MaxWait: %v", c.ended().err)
		}
		c = comeIn(t, 2*time.Second, q, 1)
		if !errors.Is(c.ended().err, context.DeadlineExceeded) || !errors.Is(c.ended().err, outbound.ErrThrottled) || !c.refused().Timeout() {
			t.Errorf("beyond the deadline: %v", c.ended().err)
		}
		pass(5 * time.Second)
	})
}

// No call overtakes another, whatever they cost and whichever of them cancel.
func TestQueue_SmallCallOvertakesNoLargeOne(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			limit := outbound.Limit{Capacity: 50, LeakRate: 100}
			q := New(bucket(t, limit), Config{})
			var all calls
			for range 300 {
				n := 1.
				if rnd.IntN(4) == 0 {
					n = float64(1 + rnd.IntN(50))
				}
				ctx, cancel := context.WithCancel(bg)
				all = append(all, come(ctx, q, n))
				if rnd.IntN(5) == 0 {
					time.AfterFunc(time.Duration(rnd.Int64N(int64(5*time.Second))), cancel)
				} else {
					defer cancel()
				}
				time.Sleep(time.Duration(rnd.Int64N(int64(20 * ms))))
			}
			pass(time.Hour)
			n, sorted := all.admitted()
			if s := q.Stats(); !sorted || n != 300-int(s.Cancelled) || s.Cancelled == 0 {
				t.Errorf("seed %d: %d left, %d cancelled, in order: %v", seed, n, s.Cancelled, sorted)
			}
			if err := all.history(0).Check(limit.Capacity, limit.LeakRate, 0); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
	}
}

// Queues around one bucket have equal shares of it, and use all of it.
func TestQueue_QueuesOfOneBucketShareIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := outbound.Limit{Capacity: 2, LeakRate: 100}
		b := bucket(t, limit)
		var queues [3]calls
		for k := range queues {
			queues[k] = comeAll(400, bg, New(b, Config{}), 1)
		}
		pass(6 * time.Second)
		for k, all := range queues {
			if n, _ := all.admitted(); n < 195 || n > 210 {
				t.Errorf("%d of 600 calls left by queue %d, want a third", n, k)
			}
		}
		pass(6 * time.Second)
		var all calls
		for k, some := range queues {
			if n, sorted := some.admitted(); !sorted || n != 400 {
				t.Errorf("queue %d: %d left, in order: %v", k, n, sorted)
			}
			all = append(all, some...)
		}
		h := all.history(0)
		if err := h.Check(limit.Capacity, limit.LeakRate, 0); err != nil {
			t.Error(err)
		}
		if use := h.Use(limit.Capacity, limit.LeakRate); use < 0.998 {
			t.Errorf("%v of the quota used", use)
		}
	})
}

// A call that is admitted immediately allocates nothing.
func TestQueue_ImmediateCallAllocatesNothing(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates")
	}
	q := New(bucket(t, outbound.Limit{Capacity: 1e9, LeakRate: 1e9}), Config{MaxWait: time.Minute})
	if n := testing.AllocsPerRun(1000, func() {
		p, err := q.Acquire(bg, one)
		if err != nil {
			t.Error(err)
		}
		p.Settle(one)
		p.Done()
	}); n != 0 {
		t.Errorf("%v allocations per call, want none", n)
	}
}

// The bucket refuses a call, and has capacity again before the call has joined the queue. A call that
// comes then is behind the first.
func TestQueue_NewcomerOvertakesNoCallThatJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 2, LeakRate: 0.001})
		q := New(b, Config{})
		// After the first success after a hold the next call notifies the bucket's listeners.
		if err := b.Hold(bg, time.Second); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		p := admitted(t, q, 2)
		p.Done()
		begin := time.Now()
		var waited [2]time.Duration
		call := func(i int) {
			if _, err := q.Acquire(bg, one); err != nil {
				t.Error(err)
			}
			waited[i] = time.Since(begin)
		}
		var between atomic.Bool
		defer b.Waiting(func() {
			if between.Swap(true) {
				return
			}
			if err := b.SetLimits(bg, outbound.Limit{Capacity: 3, LeakRate: 0.001}); err != nil {
				t.Error(err)
			}
			go call(1)
			for range 10_000 { // until the other call comes, before the first has joined
				runtime.Gosched()
			}
		})()
		go call(0)
		pass(time.Hour)
		if !between.Load() || waited[0] != 0 || waited[1] < 999*time.Second {
			t.Errorf("the first waited %v, the second %v, want 0s and 1000s; capacity came in between: %v", waited[0], waited[1], between.Load())
		}
	})
}

// The permit of a call that was admitted immediately settles and ends as that of a call that has waited.
func TestQueue_PermitIsTheSameAfterAWait(t *testing.T) {
	for _, limits := range [][]outbound.Limit{
		{{Capacity: 10, LeakRate: 1}},
		{{Capacity: 10, LeakRate: 1}, outbound.InFlight(1)},
	} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, limits...), Config{})
			keyed := outbound.Keyed[string]{New: func(string) (outbound.Limiter, error) { return q, nil }}
			for i, want := range []time.Duration{0, 4 * time.Second, 4 * time.Second} {
				begin := time.Now()
				p, err := keyed.Acquire(bg, "k", outbound.Cost{10})
				if took := time.Since(begin); err != nil || took != want || !p.Pending() {
					t.Errorf("%v: call %d: %v after %v, want it after %v", limits, i, err, took, want)
				}
				p.Settle(outbound.Cost{4})
				if p.Done(); p.Pending() {
					t.Errorf("%v: call %d has something to free after Done", limits, i)
				}
			}
			if s := q.Stats(); s.Admitted != 3 || s.Waited != 2 {
				t.Errorf("%v: %+v", limits, s)
			}
		})
	}
}

// A queue asks the bucket with its own lock held, and the bucket notifies the other queues before it
// returns: no two queues wait for each other's locks.
func TestQueue_QueuesOfOneBucketDoNotDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 10, LeakRate: 1000}, outbound.InFlight(3))
		var all sync.WaitGroup
		for range 4 {
			q := New(b, Config{})
			for i := range 3 {
				all.Go(func() {
					for k := range 100 {
						p, err := q.Acquire(bg, one)
						if err != nil {
							t.Error(err)
						}
						switch {
						case k%50 == 20*i:
							p.Refused(0)
						case k%5 == i:
							p.Settle(outbound.Cost{0.5})
						}
						p.Done()
						time.Sleep(time.Duration(k%7) * ms)
					}
				})
			}
		}
		all.Wait()
	})
}

// A call to a store that comes while no other waits can give up during its request. The reservation
// that the request books returns.
func TestQueue_CallCanGiveUpDuringItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		limit := outbound.Limit{Capacity: 1, LeakRate: 0.01}
		q := New(shared(t, &far{Store: m, way: time.Second}, limit), Config{})
		for _, want := range []error{context.DeadlineExceeded, context.Canceled, ErrClosed} {
			ctx, cancel := context.WithTimeout(bg, time.Hour)
			switch want {
			case context.DeadlineExceeded:
				ctx, cancel = context.WithTimeout(bg, 50*ms)
			case context.Canceled:
				time.AfterFunc(50*ms, cancel)
			default:
				time.AfterFunc(50*ms, func() { _ = q.Close() })
			}
			c := come(ctx, q, 1)
			pass(10 * time.Second)
			if !errors.Is(c.ended().err, want) || c.took() != 50*ms { // and no refusal: there is capacity
				t.Errorf("%v after %v, want %v", c.ended().err, c.took(), want)
			}
			cancel()
			if s, err := shared(t, m, limit).State(bg); err != nil || s.Level != 0 {
				t.Errorf("level %v, %v: the reservation has not returned", s.Level, err)
			}
		}
		if s := q.Stats(); s.Cancelled != 1 || s.Refused != 2 || s.Admitted != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A single call waits for one request to the store and no longer.
func TestQueue_SingleCallTakesOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: store.NewMemory(), way: 10 * ms}
		q := New(shared(t, s, outbound.Limit{Capacity: 5, LeakRate: 0.1}), Config{MaxWait: 5 * time.Second})
		begin := time.Now()
		for range 5 {
			admitted(t, q, 1)
		}
		if took := time.Since(begin); took != 100*ms {
			t.Errorf("five calls, one after the other, took %v", took)
		}
		c := come(bg, q, 1)
		if pass(time.Second); c.refused().RetryAfter < 9*time.Second {
			t.Error(c.ended().err)
		}
		if n := s.trips.Load(); n > 6 {
			t.Errorf("%d requests for six calls", n)
		}
		if s := q.Stats(); s.Admitted != 5 || s.Waited != 0 || s.Refused != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// Under the race detector, timers of no time in several goroutines of a bubble crash the program.
func TestQueue_TimersOfOneInstantDoNotCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		for range 8 {
			q := New(shared(t, store.NewMemory(), outbound.Limit{Capacity: 1e6, LeakRate: 1e6}), Config{})
			wg.Go(func() {
				for range 1000 {
					if _, err := q.Acquire(bg, one); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

// An execution trace has a region for a wait, and none for a call that is admitted immediately.
func TestQueue_TraceHasARegionForAWait(t *testing.T) {
	for _, waits := range []bool{false, true} {
		q := New(bucket(t, outbound.Limit{Capacity: 2, LeakRate: 1}), Config{})
		var out bytes.Buffer
		if err := trace.Start(&out); err != nil {
			t.Skip("something else is tracing: ", err)
		}
		ctx, cancel := context.WithCancel(bg)
		if waits {
			if err := q.Bucket().Hold(ctx, time.Hour); err != nil {
				t.Error(err)
			}
			go func() {
				for q.Len() == 0 {
					runtime.Gosched()
				}
				cancel()
			}()
		}
		p, err := q.Acquire(ctx, one)
		p.Done()
		cancel()
		trace.Stop()
		if region := bytes.Contains(out.Bytes(), []byte("dripfeed: wait in a queue")); region != waits || errors.Is(err, context.Canceled) != waits {
			t.Errorf("waits %v, region %v: %v", waits, region, err)
		}
	}
}

// A waiting call takes the smallest stack that a goroutine can have: all that it needs before it
// waits fits into 2 KiB. 100,000 of them would take twice the memory otherwise, as they do behind a
// Window or an InFlight. The runtime gives new goroutines larger stacks if others have needed them,
// so the test has a process of its own without that.
func TestQueue_WaitingCallHasTheSmallestStack(t *testing.T) {
	const fixed = "adaptivestackstart=0"
	if raced {
		t.Skip("frames are larger under the race detector")
	}
	if !strings.Contains(os.Getenv("GODEBUG"), fixed) {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), "GODEBUG="+fixed)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	const calls = 1000
	q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.01}), Config{MaxWait: 1000 * time.Hour})
	admitted(t, q, 1)
	ctx, cancel := context.WithCancel(bg)
	var all sync.WaitGroup
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range calls {
		all.Go(func() { _, _ = q.Acquire(ctx, one) })
	}
	for q.Len() < calls {
		runtime.Gosched()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := float64(after.StackInuse-before.StackInuse) / calls; each > 2700 {
		t.Errorf("%.0f bytes of stack each", each)
	}
	cancel()
	all.Wait()
}

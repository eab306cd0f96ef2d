package queue

import (
	"bytes"
	"context"
	"errors"
	"math"
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
					errorIf(t, !c.admitted() || c.took() < want || c.took() > want+time.Microsecond,
						"at %v/s: call %d left after %v, want %v; %v", rate, i, c.took(), want, c.ended().err)
				}
				s := q.Stats()
				errorIf(t, s != (Stats{Admitted: 65, Waited: 63}), "at %v/s: %+v", rate, s)
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
		errorIf(t, !errors.Is(c.ended().err, context.DeadlineExceeded) || !errors.Is(c.ended().err, outbound.ErrThrottled) || !c.refused().Timeout(),
			"beyond the deadline: %v", c.ended().err)
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
			err := all.history(0).Check(limit.Capacity, limit.LeakRate, 0)
			errorIf(t, err != nil, "seed %d: %v", seed, err)
		})
	}
}

// A call that is admitted immediately allocates nothing.
func TestQueue_ImmediateCallAllocatesNothing(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates")
	}
	q := New(bucket(t, outbound.Limit{Capacity: 1e9, LeakRate: 1e9}), Config{MaxWait: time.Minute})
	if n := testing.AllocsPerRun(1000, func() {
		p, err := q.Acquire(bg, one)
		noError(t, err)
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
		must(t, b.Hold(bg, time.Second))
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
			noError(t, b.SetLimits(bg, outbound.Limit{Capacity: 3, LeakRate: 0.001}))
			go call(1)
			for range 10_000 { // until the other call comes, before the first has joined
				runtime.Gosched()
			}
		})()
		go call(0)
		pass(time.Hour)
		errorIf(t, !between.Load() || waited[0] != 0 || waited[1] < 999*time.Second,
			"the first waited %v, the second %v, want 0s and 1000s; capacity came in between: %v", waited[0], waited[1], between.Load())
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
				p.Done()
				errorIf(t, p.Pending(), "%v: call %d has something to free after Done", limits, i)
			}
			s := q.Stats()
			errorIf(t, s.Admitted != 3 || s.Waited != 2, "%v: %+v", limits, s)
		})
	}
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
			s, err := shared(t, m, limit).State(bg)
			errorIf(t, err != nil || s.Level != 0, "level %v, %v: the reservation has not returned", s.Level, err)
		}
		s := q.Stats()
		errorIf(t, s.Cancelled != 1 || s.Refused != 2 || s.Admitted != 0, "%+v", s)
	})
}

// A single call waits for one request to the store and no longer.
func TestQueue_SingleCallTakesOneRequest(t *testing.T) {
	for _, way := range []time.Duration{ms / 2, 10 * ms, 100 * ms} {
		synctest.Test(t, func(t *testing.T) {
			s := &far{Store: store.NewMemory(), way: way}
			q := New(shared(t, s, outbound.Limit{Capacity: 20, LeakRate: 0.01}), Config{MaxWait: 5 * time.Second})
			first := uint64(0)
			for i := range 20 {
				want := 2 * way
				if i == 0 && way > 10*ms { // the process does not know its distance yet
					first, want = 1, 4*way
				}
				c := come(bg, q, 1)
				if pass(time.Second); !c.admitted() || c.took() > want {
					t.Errorf("%v away: call %d took %v, %v", way, i, c.took(), c.ended().err)
				}
			}
			c := come(bg, q, 1)
			pass(time.Second)
			errorIf(t, c.refused().RetryAfter < 5*time.Second, "%v", c.ended().err)
			n := s.trips.Load()
			errorIf(t, n > 21+2*int64(first), "%v away: %d requests for 21 calls", way, n)
			if s := q.Stats(); s.Admitted != 20 || s.Waited > first || s.Refused != 1 {
				t.Errorf("%v away: %+v", way, s)
			}
		})
	}
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
			noError(t, q.Bucket().Hold(ctx, time.Hour))
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
		out, err := c.CombinedOutput()
		errorIf(t, err != nil, "%v: %s", err, out)
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
	each := float64(after.StackInuse-before.StackInuse) / calls
	errorIf(t, each > 2700, "%.0f bytes of stack each", each)
	cancel()
	all.Wait()
}

// wantWaits checks what Stats reports of the waiting calls.
func wantWaits(t *testing.T, when string, q *Queue, waiting int, oldest, nextIn time.Duration) {
	t.Helper()
	s := q.Stats()
	if off := s.NextIn - nextIn; off < 0 || off > 20*time.Microsecond || s.NextIn == 0 != (nextIn == 0) || s.Waiting != waiting || s.Oldest != oldest {
		t.Errorf("%s: %d wait, the oldest for %v, the next leaves in %v; want %d, %v, %v", when, s.Waiting, s.Oldest, s.NextIn, waiting, oldest, nextIn)
	}
}

// Stats reports how many calls wait, for how long, and when the next leaves.
func TestStats_CountWaitingCalls(t *testing.T) {
	bothWays(t, []outbound.Limit{{Capacity: 1, LeakRate: 1}}, func(t *testing.T, b *outbound.Bucket) {
		q := New(b, Config{})
		errorIf(t, q.Bucket() != b, "another bucket")
		wantWaits(t, "at first", q, 0, 0, 0)
		come(bg, q, 1)
		wantWaits(t, "after a call that left immediately", q, 0, 0, 0)
		ctx, cancel := context.WithCancel(bg)
		come(ctx, q, 1)
		wantWaits(t, "one waits", q, 1, 0, time.Second)
		pass(300 * ms)
		come(bg, q, 1)
		pass(100 * ms)
		come(bg, q, 1)
		wantWaits(t, "three wait", q, 3, 400*ms, 600*ms)
		n := testing.AllocsPerRun(10, func() { q.Stats() })
		errorIf(t, n != 0, "%v allocations", n)
		cancel()
		synctest.Wait()
		wantWaits(t, "the first was cancelled", q, 2, 100*ms, 600*ms)
		must(t, b.Hold(bg, time.Minute))
		synctest.Wait()
		wantWaits(t, "in a hold", q, 2, 100*ms, time.Minute+600*ms) // it stops the bucket's clock
		pass(time.Minute + 1100*ms)
		wantWaits(t, "after the hold", q, 1, time.Minute+1100*ms, 500*ms)
		pass(time.Minute)
		wantWaits(t, "at the end", q, 0, 0, 0)
	})
}

// NextIn is 0 while it is unknown when the next call leaves.
func TestStats_UnknownNextIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.InFlight(1)), Config{})
		p := admitted(t, q, 1)
		come(bg, q, 1)
		pass(time.Minute)
		wantWaits(t, "a call in flight has to end", q, 1, time.Minute, 0)
		p.Done()
		pass(time.Second)
		wantWaits(t, "it has ended", q, 0, 0, 0)
	})
	synctest.Test(t, func(t *testing.T) {
		q := New(shared(t, &far{Store: store.NewMemory(), way: time.Second}, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{})
		come(bg, q, 1)
		pass(300 * ms)
		wantWaits(t, "the first reply is not here yet", q, 1, 300*ms, 0)
		pass(time.Minute)
	})
	synctest.Test(t, func(t *testing.T) { // nothing can be booked in the next hour yet, and the time is known
		q := New(bucket(t, outbound.Hourly(1)), Config{})
		comeAll(4, bg, q, 1)
		for range 6 * 60 {
			s := q.Stats()
			errorIf(t, s.Waiting > 0 && (s.NextIn == 0 || s.NextIn > time.Hour+time.Minute), "%+v", s)
			pass(time.Minute)
		}
		wantWaits(t, "six hours later", q, 0, 0, 0)
	})
}

// Shutdown refuses new calls and returns when the waiting calls have left, or when its ctx ends.
func TestShutdown_RefusesNewCallsAndDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{})
		all, begin := comeAll(5, bg, q, 1), time.Now()
		ctx, cancel := context.WithTimeout(bg, 2500*ms)
		defer cancel()
		if err := q.Shutdown(ctx); err != context.DeadlineExceeded || time.Since(begin) != 2500*ms {
			t.Errorf("with 2.5 s: %v after %v", err, time.Since(begin))
		}
		_, err := q.Acquire(bg, one)
		errorIf(t, !errors.Is(err, ErrClosed) || errors.Is(err, outbound.ErrThrottled), "a new call: %v", err)
		for range 2 {
			if err := q.Shutdown(bg); err != nil || time.Since(begin) != 4*time.Second {
				t.Errorf("without a deadline: %v after %v, want nil after 4s", err, time.Since(begin))
			}
		}
		synctest.Wait()
		n, _ := all.admitted()
		errorIf(t, n != 5, "%d left, want all 5", n)
	})
}

// Close refuses all calls, and leaves no reservation behind.
func TestClose_RefusesAllAndReturnsReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1})
		q := New(b, Config{})
		all := comeAll(5, bg, q, 1)
		for range 2 {
			noError(t, q.Close())
		}
		synctest.Wait()
		for _, c := range append(all[1:], come(bg, q, 1)) {
			errorIf(t, !errors.Is(c.ended().err, ErrClosed), "%v", c.ended().err)
		}
		if s, _ := b.State(bg); q.Len() != 0 || s.Level != 1 {
			t.Errorf("%d wait, level %v; want none, and the unit of the call that left", q.Len(), s.Level)
		}
	})
}

// A call beyond MaxLen is refused with the time until it could leave.
func TestConfig_MaxLenRefusesWithTheRetryTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{MaxLen: 3})
		comeAll(4, bg, q, 1)
		c := come(bg, q, 1)
		errorIf(t, !errors.Is(c.ended().err, ErrFull) || c.refused().RetryAfter != 4*time.Second, "%v", c.ended().err)
		pass(10 * time.Second)
	})
}

// An invalid Queue or Config is an error of each call and of Explain, and charges nothing.
func TestConfig_InvalidIsAnErrorOfEachCall(t *testing.T) {
	b := bucket(t, outbound.PerSecond(1))
	queues := []*Queue{nil, New(nil, Config{})}
	for _, c := range []Config{
		{MaxLen: -1}, {MaxWait: -1}, {Tolerance: -1}, {Tolerance: time.Second},
		{Weight: -1}, {Weight: math.NaN()}, {Weight: math.Inf(1)}, {Weight: math.Inf(-1)}, {Weight: 1e-10}, {Weight: 1e10},
	} {
		queues = append(queues, New(b, c))
	}
	for i, q := range queues {
		_, err := q.Acquire(bg, one)
		if _, e := q.Explain(bg, one); !errors.Is(err, outbound.ErrInvalid) || !errors.Is(e, outbound.ErrInvalid) {
			t.Errorf("queue %d: %v, %v", i, err, e)
		}
	}
	wantLevel(t, b, 0)
}

package queue

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

func TestQueue_ImmediateCallAllocatesNothing(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates")
	}
	q := New(bucket(t, outbound.Limit{Capacity: 1e9, LeakRate: 1e9}), Config{MaxWait: time.Minute})
	if n := testing.AllocsPerRun(1000, func() {
		p, err := q.Acquire(bg, outbound.Cost{1})
		if err != nil {
			t.Error(err)
		}
		p.Settle(outbound.Cost{1})
		p.Done()
	}); n != 0 {
		t.Errorf("%v allocations per call, want none", n)
	}
}

// The bucket has refused a call, and has room again before the call stands in line.
func TestQueue_NewcomerOvertakesNoCallThatJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 2, LeakRate: 0.001})
		q := New(b, Config{})
		// The first success after a hold makes the next call tell the bucket's listeners.
		if err := b.Hold(bg, time.Second); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		p, err := q.Acquire(bg, outbound.Cost{2})
		if err != nil {
			t.Fatal(err)
		}
		p.Done()
		begin := time.Now()
		var waited [2]time.Duration
		call := func(i int) {
			if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
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
			for range 10_000 { // until the other call comes, before the first is in line
				runtime.Gosched()
			}
		})()
		go call(0)
		pass(time.Hour)
		if !between.Load() || waited[0] != 0 || waited[1] < 999*time.Second {
			t.Errorf("the first waited %v, the second %v, want 0s and 1000s; room came in between: %v", waited[0], waited[1], between.Load())
		}
	})
}

// The clock that the queue has heard counts the place that goes back.
func TestQueue_NewcomerIgnoresReturnedReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{MaxWait: time.Second})
		if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		ctx, cancel := contextWithCancel()
		go q.Acquire(ctx, outbound.Cost{1})
		synctest.Wait()
		q.mu.Lock()
		q.called = true // the pump does not run yet
		q.mu.Unlock()
		cancel()
		synctest.Wait()
		var waited time.Duration
		go func() {
			if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Error(err)
			}
			waited = time.Since(begin)
		}()
		synctest.Wait()
		q.pump()
		pass(time.Minute)
		if waited < time.Second || waited > time.Second+time.Microsecond {
			t.Errorf("waited %v, want 1s", waited)
		}
	})
}

// The permit of a call that was admitted at once settles, ends and counts as in use, as the
// permit of one that has waited.
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

// Each queue asks the bucket with its own lock held, and the bucket tells the others of
// what has changed before it returns.
func TestQueue_QueuesOfOneBucketDoNotDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 10, LeakRate: 1000}, outbound.InFlight(3))
		var all sync.WaitGroup
		for range 4 {
			q := New(b, Config{})
			for i := range 3 {
				all.Go(func() {
					for k := range 100 {
						p, err := q.Acquire(bg, outbound.Cost{1})
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

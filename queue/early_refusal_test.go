package queue

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// reserve has another caller book n reservations of a unit.
func reserve(t *testing.T, b *outbound.Bucket, n int) {
	t.Helper()
	k := outbound.BookRequest{Costs: slices.Repeat([]outbound.Cost{one}, n), Wait: time.Hour, Horizon: time.Hour}
	if err := b.Book(bg, &k); err != nil || len(k.Tickets) != n {
		t.Fatal(err, len(k.Tickets))
	}
}

// A call that cannot leave in time because of another process's reservations is refused immediately, and
// does not wait for its deadline.
func TestEarlyRefusal_CountsOtherProcessesReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		limit := outbound.Limit{Capacity: 1, LeakRate: 10}
		q := New(shared(t, &far{Store: m, way: 10 * ms}, limit), Config{})
		for range 30 {
			come(bg, q, 1)
			pass(ms)
		}
		pass(500 * ms)
		comeIn(t, 10*time.Second, q, 1) // the queue computes this call's time
		reserve(t, shared(t, m, limit), 50)
		pass(500 * ms) // replies of the store have shown the reservations
		c := comeIn(t, 4*time.Second, q, 1)
		if pass(5 * time.Second); !errors.Is(c.ended().err, outbound.ErrThrottled) || c.took() > 100*ms {
			t.Errorf("the call ended with %v after %v, want an immediate refusal", c.ended().err, c.took())
		}
		_ = q.Close()
		pass(time.Minute)
	})
}

// comeUnknown has a call come after the bucket has reported a change, and then has the queue ask what has
// changed: it is unknown when the call leaves.
func comeUnknown(q *Queue) *call {
	q.mu.Lock()
	q.news++
	q.mu.Unlock()
	c := come(bg, q, 1)
	q.onChange()
	synctest.Wait()
	return c
}

// A call that comes while it is unknown when it leaves, because a request is to show what was returned, is
// refused after that request, and not at its deadline. The calls that were judged before stay, also if
// others have booked since and they cannot leave in time any more: units may be returned.
func TestEarlyRefusal_AfterTheRequestOfAnUnknownCall(t *testing.T) {
	limit := outbound.Limit{Capacity: 1, LeakRate: 1}
	for _, far := range []*far{nil, {Store: store.NewMemory(), way: 20 * ms}} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, limit)
			if far != nil {
				b = shared(t, far, limit)
			}
			q := New(b, Config{MaxWait: 10 * time.Second})
			for range 20 {
				come(bg, q, 1)
				pass(40 * ms)
			}
			judged := q.Len()
			if far != nil {
				reserve(t, shared(t, far.Store, limit), 5)
			}
			c := comeUnknown(q)
			if pass(100 * ms); c.refused().RetryAfter <= 10*time.Second {
				t.Errorf("the call has %v after 100 ms", c.ended().err)
			}
			q.mu.Lock()
			n, uncounted := q.line.n, q.line.uncounted
			q.mu.Unlock()
			if n != judged || uncounted != &q.line.end {
				t.Errorf("%d wait, and %v is not counted, want %d", n, uncounted, judged)
			}
			pass(time.Minute)
		})
	}
}

// A call that cancels during the request leaves a reservation that fits no call. It returns, and does not
// count for a call that has come meanwhile.
func TestEarlyRefusal_IgnoresAReturnedReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(shared(t, &far{Store: store.NewMemory(), way: 20 * ms}, outbound.Limit{Capacity: 10, LeakRate: 1}), Config{})
		p := admitted(t, q, 10)
		ctx, cancel := context.WithCancel(bg)
		come(ctx, q, 8)
		pass(200 * ms)
		go p.Settle(outbound.Cost{9.9})
		synctest.Wait()
		if !q.pumping || q.current() {
			t.Fatal("no request is in flight")
		}
		cancel()
		synctest.Wait()
		c := comeIn(t, 5*time.Second, q, 1)
		if pass(time.Minute); c.ended().err != nil {
			t.Errorf("refused: %v", c.ended().err)
		}
	})
}

// The step that books for a call of an invalid cost makes no request, and learns nothing.
func TestEarlyRefusal_NotByAStepWithoutARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(shared(t, &far{Store: store.NewMemory(), way: 20 * ms}, outbound.Limit{Capacity: 10, LeakRate: 1}), Config{})
		used := [2]outbound.Permit{admitted(t, q, 5), admitted(t, q, 5)}
		come(bg, q, 1)
		pass(100 * ms)
		q.mu.Lock()
		in := q.early(time.Now()) + q.requests.lowMark()
		q.mu.Unlock()
		pass(in - 75*ms)
		go used[0].Settle(outbound.Cost{4.999})
		synctest.Wait()
		if !q.pumping || q.current() {
			t.Fatal("no request is in flight")
		}
		invalid, valid := come(bg, q, -1), comeIn(t, 500*ms, q, 1)
		pass(30 * ms)
		go used[1].Settle(outbound.Cost{0.1})
		if pass(time.Minute); !errors.Is(invalid.ended().err, outbound.ErrInvalid) || valid.ended().err != nil {
			t.Errorf("%v, %v", invalid.ended().err, valid.ended().err)
		}
	})
}

// When the queue looks at a long line again, it keeps the sums by which it refuses new calls: those that
// come next are refused immediately.
func TestEarlyRefusal_CountingAgainAdmitsNoMoreCalls(t *testing.T) {
	for _, rate := range []float64{100, 20000} { // at 20,000 per second many have reservations
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: rate}), Config{MaxWait: time.Duration(1000 / rate * 1e9)})
			comeAll(1100, bg, q, 1)
			waiting := q.Len()
			for range 3 {
				left := 40
				for ; left > 0 && comeUnknown(q).ended().err == nil; left-- { // the first of them wait for the work to be worth it
				}
				if comeAll(5, bg, q, 1); left == 0 || q.Len() != waiting {
					t.Fatalf("%d wait, want %d", q.Len(), waiting)
				}
			}
			_ = q.Close()
		})
	}
}

// No call leaves before the last one that has a reservation, whatever limit that needs. A new call is
// refused by the time of that.
func TestEarlyRefusal_CountsTheLastReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 100, LeakRate: 100}, outbound.Limit{Capacity: 10, LeakRate: 1, Unit: 1}), Config{})
		comeAll(2, bg, q, 1, 10)
		if c := comeIn(t, time.Second, q, 1); c.refused().RetryAfter != 10*time.Second || c.took() != 0 {
			t.Errorf("%v after %v", c.ended().err, c.took())
		}
		pass(time.Minute)
	})
}

// While no call waits the queue does not listen to the bucket, and forgets what it knew.
func TestQueue_EmptyQueueForgetsItsClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := shared(t, &far{Store: store.NewMemory(), way: 10 * ms}, outbound.Limit{Capacity: 10, LeakRate: 10})
		q := New(b, Config{})
		admitted(t, q, 1)
		pass(time.Minute)
		if err := b.SetLimits(bg, outbound.Limit{Capacity: 1000, LeakRate: 1000}); err != nil {
			t.Fatal(err)
		}
		all := comeAll(2, bg, q, 50) // the second comes during the request of the first
		pass(time.Minute)
		if n, _ := all.admitted(); n != 2 {
			t.Errorf("%v, %v", all[0].ended().err, all[1].ended().err)
		}
	})
}

// Until a request that returns units has ended, the clock still counts them. A call that comes before that
// is not refused for them.
func TestEarlyRefusal_NotForUnitsThatReturn(t *testing.T) {
	for name, returns := range map[string]func(p *outbound.Permit, cancel func()){
		"a cancel": func(_ *outbound.Permit, cancel func()) { cancel() },
		"a settle": func(p *outbound.Permit, _ func()) { p.Settle(outbound.Cost{}) },
	} {
		synctest.Test(t, func(t *testing.T) {
			q := New(shared(t, &far{Store: store.NewMemory(), way: 10 * ms}, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{})
			p := admitted(t, q, 1)
			ctx, cancel := context.WithCancel(bg)
			come(ctx, q, 1)
			pass(100 * ms)
			returns(&p, cancel)
			var all calls
			for range 6 { // immediately, during the request, and after it
				synctest.Wait()
				all = append(all, comeIn(t, 980*ms, q, 0.01))
				time.Sleep(5 * ms)
			}
			cancel()
			pass(5 * time.Second)
			for i, c := range all {
				if !c.admitted() {
					t.Errorf("%s: call %d: %v", name, i, c.ended().err)
				}
			}
		})
	}
}

// A window that is above its capacity, because it was lowered, frees all of it together. A call that can
// wait for that is not refused, and one that cannot is refused immediately.
func TestEarlyRefusal_OfAWindowAboveItsCapacity(t *testing.T) {
	bothWays(t, []outbound.Limit{outbound.Window(100, time.Minute)}, func(t *testing.T, b *outbound.Bucket) {
		admitted(t, b, 100)
		if err := b.SetLimits(bg, outbound.Window(10, time.Minute)); err != nil {
			t.Fatal(err)
		}
		q, all := New(b, Config{}), calls(nil)
		for range 9 {
			all = append(all, comeIn(t, 2*time.Minute, q, 1))
		}
		time.Sleep(time.Second)
		all = append(all, comeIn(t, 100*time.Second, q, 1))
		pass(61 * time.Second)
		for i, c := range all {
			if !c.admitted() {
				t.Errorf("call %d of ten waits for more than 62s: %v", i, c.ended().err)
			}
		}
		for range 10 {
			comeIn(t, 2*time.Minute, q, 1)
		}
		c := comeIn(t, 30*time.Second, q, 1)
		if pass(3 * time.Minute); c.ended().err == nil || c.took() > time.Second {
			t.Errorf("without hope, after %v: %v", c.took(), c.ended().err)
		}
	})
}

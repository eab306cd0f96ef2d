package queue

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

func TestSlot_WaitsForADone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.InFlight(2), outbound.Limit{Capacity: 100, LeakRate: 100})
		l := line{q: New(b, Config{})}
		begin := time.Now()
		for i := range 10 {
			l.arrive(bg, i, outbound.Cost{1}, func(*outbound.Permit) { time.Sleep(3 * time.Second) })
		}
		pass(2 * time.Second)
		if n := l.went(); n != 2 {
			t.Errorf("%d in progress, want 2", n)
		}
		// The first call has no slot, and takes nothing of the other limit.
		if s, _ := b.States(bg); s[1].Level != 2 || s[0].Level != 0 {
			t.Errorf("levels %v in progress, %v units, want 2, 0", s[1].Level, s[0].Level)
		}
		pass(time.Minute)
		if len(l.order) != 10 || !l.sorted() {
			t.Errorf("order %v", l.order)
		}
		for i, at := range l.at {
			if want := time.Duration(i/2) * 3 * time.Second; at.Sub(begin) != want {
				t.Errorf("call %d went at %v, want %v, when a slot came back", i, at.Sub(begin), want)
			}
		}
	})
}

func TestSlot_MaxWaitEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.InFlight(1).Of(0, "sockets")), Config{MaxWait: 5 * time.Second})
		p, err := q.Acquire(bg, outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		oldest := time.Now()
		for range 3 {
			go func() {
				begin := time.Now()
				_, err := q.Acquire(bg, outbound.Cost{1})
				var full *outbound.ThrottledError
				if !errors.As(err, &full) || full.RetryAfter != 0 || time.Since(begin) != 5*time.Second {
					t.Errorf("after %v: %v", time.Since(begin), err)
				} else if full.Limit != "sockets" || full.InProgress != 1 || full.Oldest != time.Since(oldest) {
					t.Errorf("after %v: %v", time.Since(oldest), err)
				}
			}()
			time.Sleep(100 * time.Millisecond)
		}
		pass(10 * time.Second)
		p.Done()
		if p, err = q.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Error(err)
		}
		p.Done()
		pass(time.Second)
		if !q.Idle() {
			t.Error("not idle")
		}
	})
}

func TestSlot_OfAnUnusedReservationIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.InFlight(2), outbound.Limit{Capacity: 1, LeakRate: 1})
		l := line{q: New(b, Config{})}
		l.arrive(bg, 0, outbound.Cost{1}, nil)
		ctx, cancel := contextWithCancel()
		l.arrive(ctx, 1, outbound.Cost{1}, nil)
		cancel()
		pass(time.Second)
		if s, _ := b.States(bg); s[0].Level != 0 {
			t.Errorf("%v slots taken, want 0", s[0].Level)
		}
	})
}

// A call that its deadline ends during the trip that asks for a slot learns which limit is full.
func TestQueue_RefusalDuringATripSaysWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := shared(t, &far{Store: store.NewMemory(), way: 50 * ms}, outbound.InFlight(1).Of(0, "sockets"), outbound.PerSecond(10))
		q := New(b, Config{})
		p, err := q.Acquire(bg, outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Done()
		begin, refused := time.Now(), atomic.Int32{}
		for range 30 { // the queue asks each second, and hears 100 ms later
			ctx, cancel := context.WithTimeout(bg, 3050*ms)
			go func() {
				defer cancel()
				_, err := q.Acquire(ctx, outbound.Cost{1})
				var full *outbound.ThrottledError
				if !errors.As(err, &full) || full.InProgress != 1 {
					t.Errorf("after %v: %v", time.Since(begin), err)
				}
				refused.Add(1)
			}()
			pass(50 * ms)
		}
		pass(time.Minute)
		if refused.Load() != 30 {
			t.Errorf("%d were refused", refused.Load())
		}
	})
}

// A place that is booked anew keeps its slot.
func TestSlot_MovedReservationKeepsIts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.InFlight(2), outbound.Limit{Capacity: 10, LeakRate: 1, Unit: 1}), Config{})
		begin := time.Now()
		p, err := q.Acquire(bg, outbound.Cost{1, 10})
		if err != nil {
			t.Fatal(err)
		}
		var waited time.Duration
		go func() {
			if _, err := q.Acquire(bg, outbound.Cost{1, 10}); err != nil {
				t.Error(err)
			}
			waited = time.Since(begin)
		}()
		synctest.Wait()
		time.Sleep(time.Second)
		p.Settle(outbound.Cost{1, 4})
		pass(time.Minute)
		if waited != 4*time.Second {
			t.Errorf("waited %v, want 4s", waited)
		}
		p.Done()
	})
}

// The garbage collector frees the slot of a permit that was dropped without Done. The queue
// asks for that by itself.
func TestSlot_DroppedPermitFreesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.InFlight(1)), Config{})
		func() {
			if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
		}()
		went := make(chan error, 1)
		go func() {
			_, err := q.Acquire(bg, outbound.Cost{1})
			went <- err
		}()
		synctest.Wait()
		for range 2000 { // the collector does not run in the bubble
			runtime.GC()
			pass(slotCheck)
			if len(went) > 0 {
				break
			}
		}
		if len(went) == 0 {
			q.Close()
			t.Error("still waits")
		}
		if err := <-went; err != nil {
			t.Error(err)
		}
	})
}

func TestSlot_DoneMakesNoEndlessRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.5}, outbound.InFlight(5))
		q := New(b, Config{})
		p, err := q.Acquire(bg, outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		var told atomic.Int32
		defer b.Waiting(func() { told.Add(1) })()
		go q.Acquire(bg, outbound.Cost{1})
		synctest.Wait()
		p.Done()
		pass(time.Second)
		if n := told.Load(); n > 3 {
			t.Errorf("one Done has told of %d changes", n)
		}
		pass(2 * time.Second)
		if q.Len() != 0 {
			t.Error("the other call still waits")
		}
	})
}

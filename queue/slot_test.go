package queue

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

func TestAFirstCallWithoutASlotWaitsForADone(t *testing.T) {
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

func TestMaxWaitEndsTheWaitForASlot(t *testing.T) {
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

func TestTheSlotOfATicketThatNoCallUsesComesBack(t *testing.T) {
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

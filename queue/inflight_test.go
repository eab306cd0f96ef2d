package queue

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Calls wait until one in flight ends. The first of them takes nothing of the other limit meanwhile.
func TestInFlight_CallsWaitForTheEndOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.InFlight(2), outbound.Limit{Capacity: 100, LeakRate: 100})
		q, all := New(b, Config{}), calls(nil)
		for range 10 {
			all = append(all, comeAndUse(bg, q, func(p *outbound.Permit) { time.Sleep(3 * time.Second); p.Done() }, 1))
		}
		pass(2 * time.Second)
		s, _ := b.States(bg)
		errorIf(t, s[1].Level != 2 || s[0].Level != 0, "levels %v in flight, %v units, want 2, 0", s[1].Level, s[0].Level)
		pass(time.Minute)
		for i, c := range all {
			c.wantWait(t, time.Duration(i/2)*3*time.Second)
		}
	})
}

// A call that waits beyond MaxWait for the end of another learns which limit is full, and since when.
func TestInFlight_MaxWaitEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, oldest := New(bucket(t, outbound.InFlight(1).Of(0, "sockets")), Config{MaxWait: 5 * time.Second}), time.Now()
		p, all := admitted(t, q, 1), calls(nil)
		for range 3 {
			all = append(all, come(bg, q, 1))
			time.Sleep(100 * ms)
		}
		pass(10 * time.Second)
		for i, c := range all {
			full := c.refused()
			if full.RetryAfter != 0 || c.took() != 5*time.Second || full.Limit != "sockets" || full.InProgress != 1 || full.Oldest != c.ended().left.Sub(oldest) {
				t.Errorf("call %d after %v: %v", i, c.took(), c.ended().err)
			}
		}
		p.Done()
		p = admitted(t, q, 1)
		p.Done()
		pass(time.Second)
		errorIf(t, !q.Idle(), "not idle")
	})
}

// A reservation that no call uses returns what it has in flight.
func TestInFlight_UnusedReservationIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.InFlight(2), outbound.Limit{Capacity: 1, LeakRate: 1})
		q := New(b, Config{})
		come(bg, q, 1)
		ctx, cancel := context.WithCancel(bg)
		come(ctx, q, 1)
		cancel()
		pass(time.Second)
		s, _ := b.States(bg)
		errorIf(t, s[0].Level != 0, "%v in flight, want 0", s[0].Level)
	})
}

// A call that its deadline ends during the request for capacity in flight learns which limit is full.
func TestInFlight_RefusalDuringARequestHasTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := shared(t, &far{Store: store.NewMemory(), way: 50 * ms}, outbound.InFlight(1).Of(0, "sockets"), outbound.PerSecond(10))
		q := New(b, Config{})
		p, all := admitted(t, q, 1), calls(nil)
		defer p.Done()
		for range 30 { // the queue asks each second, and has the reply 100 ms later
			all = append(all, comeIn(t, 3050*ms, q, 1))
			pass(50 * ms)
		}
		pass(time.Minute)
		for i, c := range all {
			errorIf(t, c.refused().InProgress != 1, "call %d after %v: %v", i, c.took(), c.ended().err)
		}
	})
}

// A reservation that moves stays in flight.
func TestInFlight_MovedReservationKeepsIts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.InFlight(2), outbound.Limit{Capacity: 10, LeakRate: 1, Unit: 1}), Config{})
		p := admitted(t, q, 1, 10)
		c := come(bg, q, 1, 10)
		time.Sleep(time.Second)
		p.Settle(outbound.Cost{1, 4})
		pass(time.Minute)
		c.wantWait(t, 4*time.Second)
		p.Done()
	})
}

// The garbage collector ends a call whose permit was dropped without Done. The queue asks for that by
// itself.
func TestInFlight_DroppedPermitEndsItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.InFlight(1)), Config{})
		func() { admitted(t, q, 1) }()
		c := come(bg, q, 1)
		for i := 0; i < 2000 && !c.admitted(); i++ { // the collector does not run in the bubble
			runtime.GC()
			pass(slotCheck)
		}
		if !c.admitted() {
			q.Close()
			t.Error("still waits: ", c.ended().err)
		}
	})
}

// One Done makes few requests, and the queue stops then.
func TestInFlight_DoneMakesNoEndlessRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.5}, outbound.InFlight(5))
		q := New(b, Config{})
		p := admitted(t, q, 1)
		var changes atomic.Int32
		defer b.Waiting(func() { changes.Add(1) })()
		c := come(bg, q, 1)
		p.Done()
		pass(time.Second)
		n := changes.Load()
		errorIf(t, n > 3, "one Done has made %d changes", n)
		pass(2 * time.Second)
		errorIf(t, !c.admitted(), "the other call still waits")
	})
}

// A call is booked while its slot is asked for. If another process has taken the slot meanwhile, the
// booking goes back, and the call leaves when there is a slot.
func TestInFlight_BookingWithoutASlotGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, limits := store.NewMemory(), []outbound.Limit{outbound.Window(10, time.Hour), outbound.InFlight(2)}
		b := shared(t, &far{Store: m, way: 10 * ms}, limits...)
		q := New(b, Config{})
		for range 2 { // then it knows that two slots are free, which is no longer true
			p := admitted(t, q, 1)
			p.Done()
			pass(time.Second)
		}
		other := shared(t, m, limits...)
		all := [2]outbound.Permit{admitted(t, other, 1), admitted(t, other, 1)}
		calls := calls{comeAndUse(bg, q, done, 1), comeAndUse(bg, q, done, 1)}
		pass(time.Second)
		if states, err := b.States(bg); err != nil || states[0].Level != 4 {
			t.Errorf("4 calls have left: %v, %v", states, err)
		}
		for _, p := range all {
			p.Done()
		}
		pass(time.Second)
		states, err := b.States(bg)
		n, _ := calls.admitted()
		errorIf(t, n != 2 || err != nil || states[0].Level != 6, "%d of 2 calls have left: %v, %v", n, states, err)
	})
}

// Processes that wait have nearly all of the calls in flight, have equal shares, and make few requests.
func TestInFlight_FleetSharesThem(t *testing.T) {
	for _, c := range []struct {
		processes, callers, n int
		takes, lasts          time.Duration
		use, jain, trips      float64
	}{
		{50, 4, 10, 10 * ms, 10 * time.Second, 0.9, 0.97, 1900},
		{50, 4, 10, 100 * ms, 20 * time.Second, 0.92, 0.98, 1300},
		{50, 4, 10, 5 * time.Second, 400 * time.Second, 0.97, 0.98, 160},
		{10, 4, 1, 100 * ms, 60 * time.Second, 0.9, 0.98, 300},
		{4, 20, 40, 100 * ms, 10 * time.Second, 0.95, 0.93, 250},
	} {
		if raced && c.processes == 50 {
			continue
		}
		t.Run(fmt.Sprintf("%d processes, n %d, %v", c.processes, c.n, c.takes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &far{Store: store.NewMemory(), way: ms / 2, jitter: 1}
				var inFlight, most, busy atomic.Int64
				ctx, cancel := context.WithCancel(bg)
				warm := time.Now().Add(c.lasts / 5)
				end := warm.Add(c.lasts)
				counts := make([]atomic.Int64, c.processes)
				for i := range counts {
					loop(t, ctx, New(shared(t, s, outbound.InFlight(c.n)), Config{}), c.callers, func(*outbound.Permit) {
						for n, old := inFlight.Add(1), most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
						}
						began := time.Now()
						time.Sleep(c.takes)
						if in := min(time.Since(warm), c.takes) - max(0, time.Since(end)); in > 0 && began.Before(end) {
							busy.Add(int64(in))
							counts[i].Add(1)
						}
						inFlight.Add(-1)
					})
				}
				time.Sleep(time.Until(warm))
				before := s.trips.Load()
				time.Sleep(time.Until(end))
				trips := float64(s.trips.Load()-before) / c.lasts.Seconds()
				shares := make([]float64, c.processes)
				for i := range counts {
					shares[i] = float64(counts[i].Load())
				}
				use, jain := float64(busy.Load())/float64(c.n)/float64(c.lasts), jain(shares)
				cancel()
				time.Sleep(c.takes + time.Second)
				t.Logf("%d in flight, use %.3f, Jain %.3f, %.0f requests a second", most.Load(), use, jain, trips)
				if most.Load() > int64(c.n) || use < c.use || jain < c.jain || trips > c.trips {
					t.Errorf("%d in flight, use %.3f, Jain %.3f, %.0f requests a second; want at most %d, %v, %v, %v", most.Load(), use, jain, trips, c.n, c.use, c.jain, c.trips)
				}
			})
		})
	}
}

// A queue that waits for calls in flight makes, apart from the requests for those, one request a second.
// By that it learns of a hold, and refuses what cannot leave in time.
func TestInFlight_WaitingQueueLearnsOfAHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var trips atomic.Int64
		s := &far{Store: store.NewMemory(), way: ms / 2, jitter: 1, before: func(op *store.Op) error {
			if op.Action != store.Allot {
				trips.Add(1)
			}
			return nil
		}}
		other := shared(t, s, outbound.InFlight(1))
		p := admitted(t, other, 1)
		all := comeAll(5, bg, New(shared(t, s, outbound.InFlight(1)), Config{MaxWait: 30 * time.Second}), 1)
		time.Sleep(time.Second)
		before := trips.Load()
		time.Sleep(10 * time.Second)
		n := trips.Load() - before
		errorIf(t, n > 11, "%d requests in 10 s to wait", n)
		must(t, other.Pause(bg, time.Minute))
		pass(1100 * ms)
		for i, c := range all {
			errorIf(t, c.refused().RetryAfter < 50*time.Second, "call %d on hold: %v", i, c.ended().err)
		}
		p.Done()
		time.Sleep(time.Minute)
	})
}

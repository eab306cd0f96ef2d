package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// expect checks how many calls were admitted, and how many have failed with the store's error.
func (all calls) expect(t *testing.T, admitted, failed int) {
	t.Helper()
	a, f := 0, 0
	for i, c := range all {
		switch {
		case c.admitted():
			a++
		case errors.As(c.ended().err, new(*outbound.StoreError)) && errors.Is(c.ended().err, errAway):
			f++
		case c.ended().err != nil:
			t.Errorf("call %d: %v", i, c.ended().err)
		}
	}
	errorIf(t, a != admitted || f != failed, "%d were admitted and %d failed, want %d and %d", a, f, admitted, failed)
}

// The first request to a store that is unavailable answers all calls.
func TestOutage_OneErrorAnswersCallsWithoutReservation(t *testing.T) {
	for _, rate := range []float64{0.5, 10, 1000} {
		synctest.Test(t, func(t *testing.T) {
			s := &far{Store: store.NewMemory(), way: ms, hangs: time.Second}
			q := New(shared(t, s, outbound.Limit{Capacity: 1, LeakRate: rate}), Config{})
			all := comeAll(10_000, bg, q, 1)
			pass(2100 * ms)
			s.away.Store(true)
			begin, before := time.Now(), s.trips.Load()
			pass(20 * time.Second)
			n, last := 0, begin
			for _, c := range all {
				if c.admitted() {
					n++
				}
				if c.ended().left.After(last) {
					last = c.ended().left
				}
			}
			all.expect(t, n, 10_000-n)
			// The next reservation is due in 1/rate. The queue makes no request before.
			took, most := last.Sub(begin), time.Duration(float64(time.Second)/rate)+1100*ms
			errorIf(t, took > most, "%v/s: the last call had its answer after %v, want at most %v", rate, took, most)
			if n := s.trips.Load() - before; n > 3 {
				t.Errorf("%v/s: %d requests to a store that is unavailable", rate, n)
			}
			s.away.Store(false)
			more := comeAll(3, bg, q, 1)
			pass(10 * time.Second)
			more.expect(t, 3, 0)
		})
	}
}

// A reservation outlasts an outage that ends before it is due. One call leaves, one has a reservation after 20 s,
// two have none.
func TestOutage_ReservationOutlastsAShortOne(t *testing.T) {
	for _, c := range []struct {
		outage time.Duration
		moves  bool // the first request that fails was to move the reservation
		during int  // calls that fail in the outage
		left   int  // in the end
	}{
		{12 * time.Second, false, 0, 4}, // a request for news fails, and no call needs it
		{30 * time.Second, false, 3, 1}, // the queue cannot read the clock when the reservation is due
		{time.Second, true, 3, 1},       // it is unknown whether the reservation is still booked
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &far{Store: store.NewMemory(), way: ms}
			q, all := New(shared(t, s, outbound.Limit{Capacity: 1, LeakRate: 0.05}), Config{}), calls(nil)
			for range 4 {
				all = append(all, come(bg, q, 1))
				pass(10 * ms)
			}
			all.expect(t, 1, 0)
			s.away.Store(true)
			if c.moves {
				q.onChange() // the queue has to ask what has changed, and cannot
			}
			pass(c.outage)
			all.expect(t, 1, c.during)
			s.away.Store(false)
			pass(2 * time.Minute)
			all.expect(t, c.left, c.during)
		})
	}
}

// A call uses its reservation if the queue has read the clock lately, whatever has failed since.
func TestOutage_ReservationIsUsedIfTheClockIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: store.NewMemory(), way: ms}
		all := comeAll(100, bg, New(shared(t, s, outbound.Limit{Capacity: 1, LeakRate: 100}), Config{}), 1)
		// Reservations are 10 ms apart. The queue books each 7 ms before the one ahead of it is
		// due, so the next call has its reservation.
		pass(502 * ms)
		n, _ := all.admitted()
		s.away.Store(true)
		pass(time.Second)
		all.expect(t, n+1, 99-n)
	})
}

// One failed request answers all calls that came meanwhile.
func TestOutage_ErrorAnswersCallsOfTheSameRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: store.NewMemory(), way: 500 * ms}
		s.away.Store(true)
		all := comeAll(100, bg, New(shared(t, s, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{}), 1)
		pass(500 * ms)
		all.expect(t, 0, 100)
		n := s.trips.Load()
		errorIf(t, n != 1, "%d requests, want one for all", n)
	})
}

// A store books further ahead than the booking asks, as for a process that catches up, and then fails
// immediately. A reservation that is too old stays behind one that is not: the queue pauses until that is due.
func TestOutage_StoreIsNotAskedWithoutPause(t *testing.T) {
	for after := ms; after < 60*ms; after += ms {
		synctest.Test(t, func(t *testing.T) {
			s := &far{Store: store.NewMemory(), unmeasured: true, hangs: time.Nanosecond} // or a queue that asks without a pause would never end
			s.before = func(op *store.Op) error {
				op.Horizon = 100 * ms
				return nil
			}
			all := comeAll(400, bg, New(shared(t, s, outbound.Limit{Capacity: 1, LeakRate: 500}), Config{}), 1)
			time.Sleep(after)
			s.away.Store(true)
			pass(time.Second)
			n, _ := all.admitted()
			all.expect(t, n, 400-n)
			trips := s.trips.Load()
			errorIf(t, trips > 100, "%d left, %d requests", n, trips)
		})
	}
}

// A store that books reservations which have passed is asked with growing pauses. A call waits for that no
// longer than MaxWait.
func TestOutage_UselessStoreIsAskedWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: store.NewMemory(), way: time.Nanosecond, after: func(_ *store.Op, r *store.Reply) error {
			for i := range r.Charges {
				r.Charges[i].Place -= time.Minute
			}
			return nil
		}}
		q := New(shared(t, s, outbound.PerSecond(1000)), Config{MaxWait: 10 * time.Second})
		c := come(bg, q, 1)
		if pass(11 * time.Second); !errors.Is(c.ended().err, outbound.ErrThrottled) || c.took() < 10*time.Second || c.took() > 11*time.Second {
			t.Errorf("%v after %v", c.ended().err, c.took())
		}
		n := s.trips.Load()
		errorIf(t, n > 100 || !q.Idle(), "%d requests in 10 s, %d wait", n, q.Len())
	})
}

// A store whose replies take longer than they show, or do not show it, serves all calls: the queue learns
// to book later reservations.
func TestOutage_StoreWithoutTimesServesAll(t *testing.T) {
	for name, s := range map[string]*far{
		"its replies do not have their latency": {unmeasured: true},
		"its replies are later than they show":  {late: func(int) time.Duration { return 100 * ms }},
	} {
		for _, waiters := range []int{1, 20} {
			synctest.Test(t, func(t *testing.T) {
				s := &far{Store: store.NewMemory(), way: 50 * ms, jitter: 0.02, unmeasured: s.unmeasured, late: s.late}
				q := New(shared(t, s, outbound.PerSecond(1000)), Config{})
				for range 5 {
					all := comeAll(waiters, bg, q, 1)
					pass(1500 * ms)
					all.expect(t, waiters, 0)
					pass(time.Second)
				}
				t.Logf("%s, %d calls: %d requests, %+v", name, waiters, s.trips.Load(), q.Stats())
			})
		}
	}
}

// mute returns a store that carries the request out which moves a reservation, and loses the reply. It takes
// some time to fail, or its reply is empty. moves counts such requests.
func mute(takes time.Duration, empty bool) (s *far, moves *atomic.Int64) {
	moves = new(atomic.Int64)
	return &far{Store: store.NewMemory(), after: func(op *store.Op, r *store.Reply) error {
		if op.Action != store.Book || op.Move == nil {
			return nil
		}
		moves.Add(1)
		time.Sleep(takes)
		if *r = (store.Reply{}); empty {
			return nil
		}
		return errAway
	}}, moves
}

// 1,000 units leave, the next 1,000 wait for 5 s. Then the first are returned, the store moves the reservation and
// loses its reply. It gives the capacity at its first time to another process. The call fails.
func TestLostReply_CallFailsIfItsReservationMayHaveMoved(t *testing.T) {
	limit := outbound.Limit{Capacity: 1000, LeakRate: 200}
	for _, c := range []struct {
		takes time.Duration
		empty bool
	}{{}, {takes: 10 * time.Second}, {empty: true}} { // 10 s: the first time passes during the request
		synctest.Test(t, func(t *testing.T) {
			m, moves := mute(c.takes, c.empty)
			q := New(shared(t, m, limit), Config{})
			first := admitted(t, q, 1000)
			all := calls{come(bg, q, 1000)}
			pass(time.Second)
			first.Settle(outbound.Cost{}) // it was not sent, so the history has nothing of it
			first.Done()
			pass(3700 * ms)
			// The store has the capacity of the first time again.
			other := shared(t, m.Store, limit)
			for range 10 {
				all = append(all, come(bg, other, 100))
				pass(50 * ms)
			}
			pass(10 * time.Second)
			if !errors.As(all[0].ended().err, new(*outbound.StoreError)) || !c.empty && !errors.Is(all[0].ended().err, errAway) || moves.Load() != 1 {
				t.Errorf("%+v: %v after %d moves, want the store's error after one", c, all[0].ended().err, moves.Load())
			}
			noError(t, all.history(0).Check(limit.Capacity, limit.LeakRate, 0))
			s := q.Stats()
			errorIf(t, s.Admitted != 1 || s.Refused != 1, "%+v", s)
			pass(time.Minute)
			admitted(t, q, 1000)
		})
	}
}

// A reservation that may have moved is given to no other call, such as that behind one that cancels during the request,
// and does not return: the store would take its first time for one that is still booked.
func TestLostReply_MovedReservationIsNotInherited(t *testing.T) {
	limit := outbound.Limit{Capacity: 1000, LeakRate: 200}
	for _, closes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m, _ := mute(time.Second, false)
			q := New(shared(t, m, limit), Config{})
			first := admitted(t, q, 1000)
			ctx, cancel := context.WithCancel(bg)
			a := come(ctx, q, 1000)
			pass(10 * ms)
			b := come(bg, q, 1000)
			pass(1010 * ms)
			settled := time.Now()
			first.Settle(outbound.Cost{})
			first.Done()
			pass(500 * ms) // the request is in flight, which takes a second
			want := errAway
			if cancel(); closes {
				want = ErrClosed
				_ = q.Close()
			}
			pass(3 * time.Second)
			errorIf(t, !errors.Is(a.ended().err, context.Canceled) && !errors.Is(a.ended().err, ErrClosed) || !errors.Is(b.ended().err, want),
				"%v, and %v, want %v", a.ended().err, b.ended().err, want)
			// The reservation counts from when the settle came, and nothing of it has returned.
			s, err := shared(t, m.Store, limit).State(bg)
			if want := 1000 - 200*time.Since(settled).Seconds(); err != nil || math.Abs(s.Level-want) > 0.01 {
				t.Errorf("level %v, %v, want %v", s.Level, err, want)
			}
		})
	}
}

// fallen returns a bucket whose store is unavailable, and which has a quarter of the limit meanwhile.
func fallen(t *testing.T, limit outbound.Limit) (*outbound.Bucket, *far) {
	s := &far{Store: store.NewMemory()}
	s.away.Store(true)
	return shared(t, &fallback.Store{Store: s, Share: 0.25}, limit), s
}

// A process that has a quarter of a limit while the store is unavailable refuses and explains by the
// quarter.
func TestFallback_QueueRefusesByTheShare(t *testing.T) {
	for name, c := range map[string]struct {
		limit    outbound.Limit
		a, b     time.Duration // when the first two calls leave
		slack    time.Duration // by which a window's time may be too short
		tooLarge float64       // more than the share, and not more than the limit
	}{
		"one after the other": {outbound.PerSecond(2), 2020 * ms, 4040 * ms, 0, 0},
		"burst":               {outbound.Limit{Capacity: 8, LeakRate: 2}, 2 * time.Second, 4 * time.Second, 0, 3},
		"window":              {outbound.Window(4, 2500*ms), 2510 * ms, 5020 * ms, time.Second, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			b, _ := fallen(t, c.limit)
			q, began, all := New(b, Config{MaxWait: 5500 * ms}), time.Now(), calls(nil)
			close := func(what string, d, want time.Duration) {
				t.Helper()
				errorIf(t, d > want+ms || d < want-c.slack-ms, "%s: %s %v, want %v", name, what, d, want)
			}
			is, err := b.State(bg)
			must(t, err)
			close("NextIn is", is.NextIn, c.a)
			e, err := b.Explain(bg, one)
			errorIf(t, err != nil || e.Because != "limit" || e.Limit == "", "%s: %v, %v", name, e, err)
			close("Explain has", e.Wait, c.a)
			if c.tooLarge > 0 {
				if e, err := b.Explain(bg, outbound.Cost{c.tooLarge}); err != nil || e.Wait >= 0 || e.Because != "limit" {
					t.Errorf("%s: a call above the capacity of the share: %v, %v", name, e, err)
				}
			}
			for i := range 7 {
				all = append(all, come(bg, q, 1))
				pass(10 * ms)
				if i == 1 && c.slack == 0 {
					if e, err := q.Explain(bg, one); err != nil || e.Ahead != 2 {
						t.Errorf("%s: %v, %v", name, e, err)
					} else {
						close("the queue's Explain has", e.Wait, c.b+c.a-time.Since(began))
					}
				}
			}
			pass(time.Minute)
			for i, call := range all {
				switch full := (*outbound.ThrottledError)(nil); {
				case i < 2 && call.admitted():
					close("the call left after", call.ended().left.Sub(began), []time.Duration{c.a, c.b}[i])
				case i < 2, !errors.As(call.ended().err, &full):
					t.Errorf("%s, call %d: %v", name, i, call.ended().err)
				case c.slack == 0:
					close("the refusal takes", call.took(), 0)
					close("RetryAfter is", full.RetryAfter, c.b+c.a-call.came.Sub(began))
				}
			}
		})
	}
}

// A call above the capacity of the share fails with the store's error, and not as one that can never leave.
// It fails alone.
func TestFallback_CostAboveTheShareFailsAlone(t *testing.T) {
	for headroom, large := range map[float64]float64{0: 3, 0.5: 2} {
		synctest.Test(t, func(t *testing.T) {
			b, _ := fallen(t, outbound.Limit{Capacity: 8, LeakRate: 2})
			q, all := New(b, Config{MaxWait: time.Minute, Headroom: headroom}), calls(nil)
			e, err := q.Explain(bg, outbound.Cost{large})
			errorIf(t, err != nil || e.Wait >= 0 || e.Because != "limit", "headroom %v: %v, %v", headroom, e, err)
			for _, n := range []float64{1, large, 1, 1, 1, 1} {
				all = append(all, come(bg, q, n))
				pass(10 * ms)
			}
			pass(time.Minute)
			if n, _ := all.admitted(); n != 5 || !errors.Is(all[1].ended().err, errAway) {
				t.Errorf("headroom %v: %d left, and the large one has %v", headroom, n, all[1].ended().err)
			}
		})
	}
}

// Four processes, whose calls wait all the time, lose their store and find it again. They use all of the
// rate, and no more.
func TestFallback_QueueUsesItsShareAndReturns(t *testing.T) {
	for _, limit := range []outbound.Limit{{Capacity: 8, LeakRate: 100}, {Capacity: 40, LeakRate: 4}, outbound.PerSecond(20)} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := store.NewMemory()
				ctx, cancel := context.WithCancel(bg)
				var all outboundtest.History
				var links [4]*far
				for i := range links {
					links[i] = &far{Store: m, way: time.Duration(1+i) * ms}
					q := New(shared(t, &fallback.Store{Store: links[i], Share: 0.25}, limit), Config{})
					loop(t, ctx, q, 10, func(*outbound.Permit) { all.Add(time.Now(), 1) })
				}
				minute := func(when string) {
					n := all.Len()
					time.Sleep(time.Minute)
					if n = all.Len() - n; float64(n) < 0.97*60*limit.LeakRate {
						t.Errorf("%s: %d calls in a minute, want %v", when, n, 60*limit.LeakRate)
					}
				}
				away := func(away bool) {
					for _, l := range links {
						l.away.Store(away)
					}
				}
				minute("at first")
				away(true)
				time.Sleep(time.Second)
				minute("without the store")
				away(false)
				time.Sleep(15 * time.Second)
				minute("with the store again")
				cancel()
				pass(time.Minute)
				// The law allows some slack: reservations of the store for 25 ms after the switch,
				// calls that are late by 5 ms, and a unit for each process whose share of the
				// capacity is less.
				// For up to a second after the return some processes are on shares while others are back.
				slack := limit.LeakRate*1.05 + max(0, 4-limit.Capacity)
				noError(t, all.Check(limit.Capacity, limit.LeakRate, slack))
			})
		})
	}
}

// No call waits for a store that takes a second to fail.
func TestFallback_NoCallWaitsForAHungStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := fallen(t, outbound.Limit{Capacity: 4, LeakRate: 200})
		s.hangs = time.Second
		q := New(b, Config{MaxWait: 2 * time.Second})
		begin := time.Now()
		for range 1000 {
			admitted(t, q, 1)
		}
		if took := time.Since(begin); took > 22*time.Second { // 1000 at 50 per second, and the first second
			t.Errorf("1000 calls took %v", took)
		}
		s.away.Store(false)
		time.Sleep(3 * time.Second) // the last attempt to reach the store
	})
}

package queue

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Calls that wait for a window leave when its units return, also if the API asks for a pause of
// nearly so long meanwhile: in all processes, and with a leaky limit next to the window.
func TestHold_WindowAgesInIt(t *testing.T) {
	const n = 10
	window := outbound.Window(n, time.Hour)
	for name, limits := range map[string][]outbound.Limit{"alone": {window}, "next to a leaky limit": {outbound.PerSecond(10), window}} {
		for _, processes := range []int{0, 3} { // 0: in memory
			synctest.Test(t, func(t *testing.T) {
				m, queues := store.NewMemory(), []*Queue{New(bucket(t, limits...), Config{})}
				for i := range processes {
					queues = append(queues[:i], New(shared(t, m, limits...), Config{}))
				}
				begin, permits, all := time.Now(), []outbound.Permit(nil), calls(nil)
				for i := range n {
					permits = append(permits, admitted(t, queues[i%len(queues)], 1))
				}
				for i := range n {
					all = append(all, comeAndUse(bg, queues[i%len(queues)], done, 1))
				}
				time.Sleep(time.Minute)
				permits[0].Refused(55 * time.Minute)
				pass(2 * time.Hour)
				for i, c := range all {
					// A refusal slows the clock: the last four minutes take longer.
					if at := c.ended().left.Sub(begin); c.ended().err != nil || at < time.Hour || at > 62*time.Minute {
						t.Errorf("%s, %d processes: call %d left after %v: %v", name, processes, i, at, c.ended().err)
					}
				}
				for _, q := range queues {
					q.Close()
				}
			})
		}
	}
}

// A pause costs its time only: what leaks in it lets calls go at once afterwards, in their order. A
// reservation in it is not late by this process. 5 of 6 as block_for of shopify/prorate lets go.
func TestHold_PauseLetsTheLimitsLeak(t *testing.T) {
	bothWays(t, []outbound.Limit{{Capacity: 5, LeakRate: 5}}, func(t *testing.T, b *outbound.Bucket) {
		q := New(b, Config{})
		defer q.Close()
		defer b.Observe(func(e outbound.Event) { errorIf(t, e.Kind == outbound.EventLate, "%+v", e) })()
		begin, all := time.Now(), comeAll(8, bg, q, 1) // 3 have reservations in the pause
		time.Sleep(ms)
		must(t, b.Pause(bg, 2*time.Second-ms))
		all = append(all, comeAll(3, bg, q, 1)...)
		pass(3 * time.Second)
		for i, c := range all {
			want := []time.Duration{0, 0, 0, 0, 0, 2000, 2000, 2000, 2000, 2000, 2200}[i] * ms
			if at := c.ended().left.Sub(begin); c.ended().err != nil || at < want || at > want+10*ms {
				t.Errorf("call %d left after %v, %v, want %v", i, at, c.ended().err, want)
			}
		}
		_, sorted := all.admitted()
		errorIf(t, !sorted || q.Stats().Late > 0, "in order: %v; %+v", sorted, q.Stats())
	})
}

// The error of a call that waited when a hold began, and is refused for it, has the hold and its reason, as
// that of a new call. So has that of a call which only its deadline keeps from waiting for the end.
func TestHold_RefusalHasItsReason(t *testing.T) {
	bothWays(t, []outbound.Limit{outbound.PerMinute(60)}, func(t *testing.T, b *outbound.Bucket) {
		q := New(b, Config{MaxWait: 20 * time.Second})
		defer q.Close()
		permit := admitted(t, q, 1)
		all := append(comeAll(5, bg, q, 1), comeIn(t, 10*time.Second, New(b, Config{}), 1))
		time.Sleep(100 * ms)
		permit.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: time.Minute, Reason: "rate"})
		time.Sleep(100 * ms)
		all = append(all, come(bg, q, 1))
		for i, c := range all { // the first has a reservation
			if full := c.refused(); !full.Held || full.Reason != "rate" || full.RetryAfter < 50*time.Second {
				t.Errorf("call %d has %v", i, c.ended().err)
			}
		}
	})
}

// A Resume counts that comes when the bucket has answered and the queue does not listen to it yet.
func TestHold_ResumeDuringTheFirstRequestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: store.NewMemory()}
		b := shared(t, s, outbound.Limit{Capacity: 1, LeakRate: 1})
		b.Hold(bg, time.Hour)
		var resumed atomic.Bool
		s.after = func(op *store.Op, _ *store.Reply) error {
			if op.Action != store.Book || resumed.Swap(true) {
				return nil
			}
			return b.Resume(bg)
		}
		c := come(bg, New(b, Config{}), 1)
		pass(3 * time.Second)
		errorIf(t, !c.admitted(), "waits 3 s after the Resume: %v", c.ended().err)
	})
}

// After a Resume the calls book again, in their order.
func TestHold_ResumeBooksAgainInOrder(t *testing.T) {
	for _, rate := range []float64{1, 1000} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: rate})
			all, others := comeAll(50, bg, New(b, Config{}), 1), calls(nil)
			b.Hold(bg, time.Hour)
			pass(10 * time.Second)
			n, _ := all.admitted()
			errorIf(t, n != 1, "%d left, want 1", n)
			b.Resume(bg)
			for range 100 { // which the void reservations do not keep from leaving
				others = append(others, come(bg, b, 1))
				time.Sleep(100 * time.Microsecond)
			}
			pass(time.Hour)
			n, sorted := all.admitted()
			errorIf(t, n != 50 || !sorted, "%d left, in order: %v", n, sorted)
			err := append(all, others...).history(0).Check(1, rate, 0)
			errorIf(t, err != nil, "at %v/s: %v", rate, err)
		})
	}
}

// The queue learns of it when another process ends a hold.
func TestHold_ResumeByAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		limit := outbound.Limit{Capacity: 1, LeakRate: 10}
		other := shared(t, m, limit)
		must(t, other.Hold(bg, time.Hour))
		c := come(bg, New(shared(t, m, limit), Config{}), 1)
		time.Sleep(time.Minute + time.Second)
		must(t, other.Resume(bg))
		pass(newsCheck + time.Second)
		errorIf(t, !c.admitted(), "waits %v after the Resume: %v", newsCheck, c.ended().err)
		pass(time.Hour)
	})
}

// A waiting call above the capacity of new limits is refused immediately, and the others leave.
func TestSetLimits_RefusesACostAboveTheCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 10, LeakRate: 1})
		q := New(b, Config{})
		admitted(t, q, 10)
		all := calls{come(bg, q, 1), come(bg, q, 9), come(bg, q, 2)}
		must(t, b.SetLimits(bg, outbound.Limit{Capacity: 5, LeakRate: 1}))
		if synctest.Wait(); !errors.Is(all[1].ended().err, outbound.ErrTooLarge) || q.Len() != 2 {
			t.Errorf("%d wait at the change, and the large call has %v", q.Len(), all[1].ended().err)
		}
		pass(time.Minute)
		if n, _ := all.admitted(); n != 2 {
			t.Errorf("%v, %v", all[0].ended().err, all[2].ended().err)
		}
	})
}

// A reservation far away that was booked under the old limits binds no call. Waiting calls leave by
// the new limits, immediately if this process has set them, else within newsCheck.
func TestSetLimits_RaisedLimitCountsForWaitingCalls(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		bothWays(t, []outbound.Limit{outbound.PerHour(1)}, func(t *testing.T, b *outbound.Bucket) {
			most := time.Second + 500*ms // reservations within the next second stay as they are
			setter := b
			if elsewhere {
				m := store.NewMemory()
				b, setter = shared(t, m, outbound.PerHour(1)), shared(t, m, outbound.PerHour(1))
				most += newsCheck
			}
			all := comeAll(4, bg, New(b, Config{}), 1)
			time.Sleep(10*time.Minute + 3*time.Second)
			must(t, setter.SetLimits(bg, outbound.PerSecond(10)))
			pass(most)
			n, _ := all.admitted()
			errorIf(t, n != 4, "elsewhere %v: %d left %v after the change", elsewhere, n, most)
			noError(t, all.history(0).Check(1, 10, 0.05))
			pass(3 * time.Hour)
		})
	}
}

// A program that reads its configuration each second sets the same limits each second. That delays no call.
func TestSetLimits_ReloadEachSecondCostsNoCall(t *testing.T) {
	limits := []outbound.Limit{outbound.PerSecond(10), outbound.PerHour(5_000).Burst(500).Of(0, "hour")}
	for _, every := range []time.Duration{time.Hour, time.Second, 50 * ms} {
		bothWays(t, limits, func(t *testing.T, b *outbound.Bucket) {
			ctx, cancel := context.WithCancel(bg)
			go func() {
				for time.Sleep(every); ctx.Err() == nil; time.Sleep(every) {
					noError(t, b.SetLimits(bg, limits...))
				}
			}()
			all := comeAll(20, bg, New(b, Config{}), 1)
			pass(2 * time.Second)
			for i, c := range all {
				if want := time.Duration(i)*101*ms + ms; !c.admitted() || c.took() > want {
					t.Errorf("with a reload every %v call %d takes %v: %v", every, i, c.took(), c.ended().err)
				}
			}
			cancel()
			pass(every)
		})
	}
}

// A limit that is lowered leaves the reservations of the next second as they are.
func TestSetLimits_LoweredLimitKeepsNearReservations(t *testing.T) {
	bothWays(t, []outbound.Limit{{Capacity: 1, LeakRate: 2}}, func(t *testing.T, b *outbound.Bucket) {
		all := comeAll(2, bg, New(b, Config{MaxWait: time.Second}), 1)
		pass(100 * ms)
		must(t, b.SetLimits(bg, outbound.Limit{Capacity: 1, LeakRate: 0.1}))
		pass(time.Minute)
		all[1].wantWait(t, 500*ms)
	})
}

// Twelve callers acquire by an estimate and settle to 0.4 of it. They use all of the token
// rate, whatever limit of calls stands next to it.
func TestSettle_EstimatesUseTheTokenRate(t *testing.T) {
	tokens := outbound.Limit{Capacity: 500, LeakRate: 1000, Unit: 1, Name: "tokens"}
	for _, limits := range [][]outbound.Limit{
		{tokens},
		{tokens, {Capacity: 1, LeakRate: 20}},
		{{Capacity: 2, LeakRate: 10}, tokens},
		{{Capacity: 500, LeakRate: 50}, tokens},
		{tokens, {Capacity: 1, LeakRate: 7}, {Capacity: 1000, LeakRate: 6, Name: "more calls"}},
	} {
		bothWays(t, limits, func(t *testing.T, b *outbound.Bucket) {
			q := New(b, Config{})
			var used outboundtest.History
			begin, length := time.Now(), 2*time.Minute
			for range 12 {
				go func() {
					for time.Since(begin) < length {
						p, err := q.Acquire(bg, outbound.Cost{1, 500})
						noError(t, err)
						used.Add(time.Now(), 200)
						time.Sleep(50 * ms)
						p.Settle(outbound.Cost{1, 200})
						p.Done()
					}
				}()
			}
			pass(length + time.Minute)
			use, err := used.Use(tokens.Capacity, tokens.LeakRate), used.Check(tokens.Capacity, tokens.LeakRate, tokens.LeakRate*0.05)
			t.Logf("%v: %.4f of the token rate used", limits, use)
			errorIf(t, use < 0.99 || err != nil, "%v: %.4f of the token rate used, want 0.99; %v", limits, use, err)
		})
	}
}

// Units that a call settles above its cost do not delay a reservation.
func TestSettle_AddedUnitsMoveNoReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 100, LeakRate: 10}), Config{MaxWait: 2 * time.Second})
		p := admitted(t, q, 100)
		c := come(bg, q, 10)
		time.Sleep(100 * ms)
		p.Settle(outbound.Cost{300})
		pass(time.Minute)
		c.wantWait(t, time.Second)
	})
}

// A settle takes one request of its own at most. The queue whose request has carried it does not
// take it for a change.
func TestSettle_TakesAtMostOneRequest(t *testing.T) {
	for _, rate := range []float64{5, 50, 1000} {
		synctest.Test(t, func(t *testing.T) {
			s := &far{Store: store.NewMemory(), way: ms}
			q := New(shared(t, s, outbound.Limit{Capacity: 10, LeakRate: rate}), Config{})
			for range 2000 {
				comeAndUse(bg, q, func(p *outbound.Permit) { p.Settle(outbound.Cost{0.9}); p.Done() }, 1)
			}
			pass(20 * time.Second)
			trips := float64(s.trips.Load()) / float64(q.Stats().Admitted)
			errorIf(t, trips > 2.1, "%v/s: %.2f requests a call", rate, trips)
			q.Close()
			pass(time.Second)
		})
	}
}

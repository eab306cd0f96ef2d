package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// slack is by how much a window of the law is longer than that of the API.
const slack = 10 * ms

// Calls that come at random, at 95 % of the limit, wait hardly longer than for a limit that
// remembers each call.
func TestWindow_RandomArrivalsWaitBriefly(t *testing.T) {
	const n, window, load = 1000, time.Minute, 0.95
	arrivals := 100_000
	if raced {
		arrivals /= 5
	}
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Window(n, window)), Config{})
		r := rand.New(rand.NewPCG(15, 2))
		var all calls
		for range arrivals {
			time.Sleep(time.Duration(r.ExpFloat64() * float64(window) / (n * load)))
			all = append(all, comeAndUse(bg, q, done, 1))
		}
		pass(window)
		mean := time.Duration(0)
		for _, c := range all {
			mean += c.took() / time.Duration(arrivals)
		}
		t.Logf("%d calls wait %v on average", arrivals, mean)
		left, _ := all.admitted()
		errorIf(t, left != arrivals || mean > 150*ms, "%d calls leave and wait %v on average", left, mean)
		noError(t, all.history(0).CheckWindow(n, window+slack))
	})
}

// Traffic of calls that cancel, settle, and come in bursts, with holds, around midnight: each of five limits
// is kept.
func TestWindow_AllKindsTogetherKeepTheirLimits(t *testing.T) {
	const perDay, inFlight = 600, 12
	limits := []outbound.Limit{outbound.Window(30, time.Second), outbound.Window(200, 20*time.Second), outbound.PerSecond(25).Burst(5),
		outbound.InFlight(inFlight), outbound.Daily(perDay, time.UTC)}
	seeds, calls := uint64(6), 1500
	if raced {
		seeds, calls = 1, 300
	}
	for seed := range seeds {
		bothWays(t, limits, func(t *testing.T, b *outbound.Bucket) {
			r := rand.New(rand.NewPCG(seed, 1))
			time.Sleep(day - 30*time.Second)
			queues := []*Queue{New(b, Config{}), New(b, Config{MaxWait: 5 * time.Second})}
			var sent outboundtest.History
			var inProgress, most atomic.Int64
			for range calls {
				lasts := time.Duration(r.Int64N(int64(400 * ms)))
				q, used, ctx, cancel := queues[r.IntN(2)], 1., bg, func() {}
				if r.IntN(5) == 0 {
					used = 0
				}
				if r.IntN(8) == 0 {
					ctx, cancel = context.WithTimeout(bg, time.Duration(r.Int64N(int64(2*time.Second))))
				}
				go func() {
					defer cancel()
					p, err := q.Acquire(ctx, one)
					switch {
					case err == nil && used == 0:
						p.Settle(outbound.Cost{})
					case err == nil:
						sent.Add(time.Now(), 1)
						if n := inProgress.Add(1); n > most.Load() {
							most.Store(n)
						}
						time.Sleep(lasts)
						inProgress.Add(-1)
					case !errors.Is(err, outbound.ErrThrottled) && !errors.Is(err, ctx.Err()):
						t.Error(err)
					}
					p.Done()
				}()
				synctest.Wait()
				if q.Len() > 20 || r.IntN(30) == 0 {
					time.Sleep(time.Duration(r.ExpFloat64() * float64(300*ms)))
				}
				if r.IntN(200) == 0 {
					noError(t, b.Hold(bg, time.Duration(1+r.Int64N(int64(3*time.Second)))))
				}
			}
			pass(2 * day)
			errorIf(t, queues[0].Len()+queues[1].Len() > 0 || sent.Len() < calls*7/15 || most.Load() > inFlight,
				"%d have left, %d wait, up to %d in flight", sent.Len(), queues[0].Len(), most.Load())
			late := 2 * queues[0].clock.Tolerance(0)
			if err := errors.Join(sent.CheckWindow(30, time.Second+slack-late), sent.CheckWindow(200, 20*time.Second+slack-late),
				sent.CheckCalendar(perDay, outboundtest.Day, time.UTC, time.Second)); err != nil { // the API's clock may be a second off
				t.Error(err)
			}
		})
	}
}

// Waiting calls leave when a fixed window is over, as many as the next admits, and not when single calls of
// the last one are a window ago.
func TestFixedWindow_AllLeaveWhenItEnds(t *testing.T) {
	const n, window = 10, time.Second + slack
	for _, first := range []time.Duration{0, 90 * ms} { // from one call of the first window to the next
		bothWays(t, []outbound.Limit{outbound.FixedWindow(n, time.Second)}, func(t *testing.T, b *outbound.Bucket) {
			q, begin, all := New(b, Config{}), time.Now(), calls(nil)
			for range n {
				all = append(all, come(bg, q, 1))
				time.Sleep(first)
			}
			all = append(all, comeAll(2*n+1, bg, q, 1)...)
			in := q.Stats().NextIn
			errorIf(t, in != window-time.Since(begin), "the first leaves in %v, want %v", in, window-time.Since(begin))
			pass(4 * window)
			for i, c := range all[n:] {
				want := time.Duration(1+i/n) * window
				if d := c.ended().left.Sub(begin) - want; c.ended().err != nil || d < 0 || d > 20*ms {
					t.Errorf("call %d leaves %v after %v: %v", n+i, d, want, c.ended().err)
				}
			}
		})
	}
}

// The queue pauses until its first call can leave. If that one gives up, the next may leave sooner.
func TestFixedWindow_CancelledHeadDelaysNoOther(t *testing.T) {
	bothWays(t, []outbound.Limit{outbound.FixedWindow(10, time.Minute)}, func(t *testing.T, b *outbound.Bucket) {
		admitted(t, b, 8)
		q := New(b, Config{})
		ctx, cancel := context.WithCancel(bg)
		come(ctx, q, 5)
		c := come(bg, q, 1)
		time.Sleep(time.Second)
		cancel()
		pass(time.Minute)
		c.wantWait(t, time.Second)
	})
}

// Calls that come straight to the bucket may be first at the end of a fixed window, because nothing can
// be reserved in the next one. What they leave is used by the queue, at each end.
func TestFixedWindow_QueueUsesWhatOthersLeave(t *testing.T) {
	const n, window = 10, time.Second + slack
	bothWays(t, []outbound.Limit{outbound.FixedWindow(n, time.Second)}, func(t *testing.T, b *outbound.Bucket) {
		begin := time.Now()
		ctx, cancel := context.WithCancel(bg)
		go func() { // 8 of 10 in each window
			for ctx.Err() == nil {
				_, _ = b.Acquire(bg, outbound.Cost{8}) // it fails if the queue is first
				time.Sleep(window)
			}
		}()
		synctest.Wait()
		all := comeAll(7, bg, New(b, Config{}), 1)
		time.Sleep(10 * window)
		cancel()
		pass(window)
		for i, c := range all {
			if at, most := c.ended().left.Sub(begin), time.Duration(i/2)*window; c.ended().err != nil || at > most || at%window != 0 {
				t.Errorf("call %d leaves after %v, want an end of a window up to %v: %v", i, at, most, c.ended().err)
			}
		}
	})
}

// A call that waits for the period after the next stays in the queue, although nothing can be reserved so
// far ahead yet. A call that cannot leave in time is refused immediately, also while the next hour is full.
func TestCalendar_LongQueueWaitsPeriodByPeriod(t *testing.T) {
	const n = 10
	bothWays(t, []outbound.Limit{outbound.Hourly(n)}, func(t *testing.T, b *outbound.Bucket) {
		q, begin := New(b, Config{}), time.Now() // at midnight
		all := comeAll(5*n, bg, q, 1)
		for _, r := range []struct {
			when        time.Duration
			q           *Queue
			wait, least time.Duration
		}{
			{90 * time.Second, q, 57 * time.Minute, 58 * time.Minute},
			{90 * time.Second, New(b, Config{}), 57 * time.Minute, 58 * time.Minute},
			{time.Hour + time.Second - ms, q, 50 * time.Minute, time.Hour},
		} {
			time.Sleep(r.when - time.Since(begin))
			if c := comeIn(t, r.wait, r.q, 1); c.refused().RetryAfter < r.least || c.took() > 0 {
				t.Errorf("after %v a wait of up to %v: %v after %v", r.when, r.wait, c.ended().err, c.took())
			}
		}
		pass(5 * time.Hour)
		for i, c := range all {
			if want := time.Duration(i/n) * time.Hour; !c.admitted() || c.took() < want || c.took() > want+2*time.Second {
				t.Errorf("call %d leaves after %v: %v", i, c.took(), c.ended().err)
			}
		}
	})
}

// A hold moves reservations over midnight. Their calls book again: the next day has not more calls
// than its limit, and the units that were booked in the day before return.
func TestCalendar_ReservationMovedToAnotherDayIsVoid(t *testing.T) {
	pacific, err := time.LoadLocation("America/Los_Angeles")
	must(t, err)
	const n = 100
	midnight := time.Date(2024, 11, 4, 0, 0, 0, 0, pacific) // after a day of 25 hours
	bothWays(t, []outbound.Limit{outbound.Daily(n, pacific), {Capacity: 2, LeakRate: 2}}, func(t *testing.T, b *outbound.Bucket) {
		time.Sleep(time.Until(midnight.Add(-20 * time.Second)))
		all := comeAll(2*n, bg, New(b, Config{}), 1) // some are refused, as more than a day away
		time.Sleep(17200 * ms)                       // with a reservation 2.5 s before midnight
		must(t, b.Hold(bg, 10*time.Second))
		pass(0)
		before, _ := all.admitted()
		pass(12 * time.Hour)
		after, _ := all.admitted()
		if s, err := b.States(bg); err != nil || s[0].Level != n || after-before != n {
			t.Errorf("%d and then %d have left, level %+v (%v)", before, after-before, s, err)
		}
		pass(24 * time.Hour)
		noError(t, all.history(0).CheckWindow(float64(before+n+1), 12*time.Hour))
	})
}

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

// While calls wait they use all of a window.
func TestWindow_IsUsedWholly(t *testing.T) {
	const n, window, windows = 300, time.Minute, 20
	bothWays(t, []outbound.Limit{outbound.Window(n, window)}, func(t *testing.T, b *outbound.Bucket) {
		var sent outboundtest.History
		ctx, cancel := context.WithCancel(bg)
		loop(t, ctx, New(b, Config{}), 100, func(*outbound.Permit) { sent.Add(time.Now(), 1) })
		pass(windows*(window+slack) - 1)
		use := float64(sent.Len()) / (n * windows)
		cancel()
		if err := sent.CheckWindow(n, window+slack); err != nil || use < 0.995 || use > 1 {
			t.Errorf("%.4f of the quota is used, %v", use, err)
		}
		synctest.Wait()
	})
}

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
		if left, _ := all.admitted(); left != arrivals || mean > 150*ms {
			t.Errorf("%d calls leave and wait %v on average", left, mean)
		}
		if err := all.history(0).CheckWindow(n, window+slack); err != nil {
			t.Error(err)
		}
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
					if err := b.Hold(bg, time.Duration(1+r.Int64N(int64(3*time.Second)))); err != nil {
						t.Error(err)
					}
				}
			}
			pass(2 * day)
			if queues[0].Len()+queues[1].Len() > 0 || sent.Len() < calls*7/15 || most.Load() > inFlight {
				t.Errorf("%d have left, %d wait, up to %d in flight", sent.Len(), queues[0].Len(), most.Load())
			}
			late := 2 * queues[0].clock.Tolerance(0)
			if err := errors.Join(sent.CheckWindow(30, time.Second+slack-late), sent.CheckWindow(200, 20*time.Second+slack-late),
				sent.CheckCalendar(perDay, outboundtest.Day, time.UTC, time.Second)); err != nil { // the API's clock may be a second off
				t.Error(err)
			}
		})
	}
}

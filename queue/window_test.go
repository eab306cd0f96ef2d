package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// slack is by how much a window of the law is longer than that of the API.
const slack = 10 * ms

// departures are when calls went.
type departures struct {
	mu sync.Mutex
	at []time.Time
}

func (d *departures) went() {
	d.mu.Lock()
	d.at = append(d.at, time.Now())
	d.mu.Unlock()
}

func (d *departures) n() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.at)
}

// check fails if a window of this length has more than n.
func (d *departures) check(t *testing.T, n int, window time.Duration) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.SortFunc(d.at, time.Time.Compare)
	for i := range d.at[min(n, len(d.at)):] {
		if in := d.at[i+n].Sub(d.at[i]); in < window {
			t.Fatalf("calls %d to %d within %v, of %v for %d", i, i+n, in, window, n)
		}
	}
}

// buckets are of each way to keep a state.
func buckets(limits ...outbound.Limit) map[string]func() *outbound.Bucket {
	return map[string]func() *outbound.Bucket{
		"in memory": func() *outbound.Bucket { return outbound.Must(outbound.NewBucket("k", limits...)) },
		"shared": func() *outbound.Bucket {
			return outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "k", limits...))
		},
	}
}

func TestWindow_IsUsedWholly(t *testing.T) {
	const n, window, windows = 300, time.Minute, 20
	for name, of := range buckets(outbound.Window(n, window)) {
		synctest.Test(t, func(t *testing.T) {
			q, begin := New(of(), Config{}), time.Now()
			var sent departures
			for range 100 {
				go func() {
					for time.Since(begin) < windows*(window+slack) {
						p, err := q.Acquire(bg, outbound.Cost{1})
						if err != nil {
							t.Error(err)
							return
						}
						sent.went()
						p.Done()
					}
				}()
			}
			time.Sleep(windows*(window+slack) - 1)
			synctest.Wait()
			use := float64(sent.n()) / (n * windows)
			time.Sleep(2 * window) // those who wait still
			sent.check(t, n, window+slack)
			if use < 0.995 || use > 1 {
				t.Errorf("%s: %.4f of the quota is used", name, use)
			}
			t.Logf("%s: %.4f", name, use)
		})
	}
}

// Callers that come at random, at 95 % of the limit, wait hardly longer than for a limit that
// remembers each call.
func TestWindow_RandomArrivalsWaitBriefly(t *testing.T) {
	const n, window, load = 1000, time.Minute, 0.95
	calls := 100_000
	if raced {
		calls /= 5
	}
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Window(n, window)), Config{})
		r := rand.New(rand.NewPCG(15, 2))
		var sent departures
		var waited time.Duration
		for range calls {
			time.Sleep(time.Duration(r.ExpFloat64() * float64(window) / (n * load)))
			go func() {
				begin := time.Now()
				p, err := q.Acquire(bg, outbound.Cost{1})
				if err != nil {
					t.Error(err)
					return
				}
				sent.mu.Lock()
				waited += time.Since(begin)
				sent.mu.Unlock()
				sent.went()
				p.Done()
			}()
		}
		time.Sleep(window)
		synctest.Wait()
		sent.check(t, n, window+slack)
		mean := waited / time.Duration(len(sent.at))
		t.Logf("%d calls wait %v on average", len(sent.at), mean)
		if len(sent.at) != calls || mean > 150*ms {
			t.Errorf("%d calls wait %v on average", len(sent.at), mean)
		}
	})
}

// Traffic of calls that cancel, settle, and come in bursts, with holds, around midnight.
func TestWindow_AllKindsTogetherKeepTheirLimits(t *testing.T) {
	const day, inFlight = 600, 12
	limits := []outbound.Limit{outbound.Window(30, time.Second), outbound.Window(200, 20*time.Second), outbound.PerSecond(25).Burst(5),
		outbound.InFlight(inFlight), outbound.Daily(day, time.UTC)}
	seeds := uint64(6)
	if raced {
		seeds = 2
	}
	for seed := range seeds {
		for name, of := range buckets(limits...) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 1))
				time.Sleep(24*time.Hour - 30*time.Second)
				midnight := time.Now().Add(30 * time.Second)
				b := of()
				queues := []*Queue{New(b, Config{}), New(b, Config{MaxWait: 5 * time.Second})}
				var sent departures
				var inProgress, most atomic.Int64
				for range 1500 {
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
						p, err := q.Acquire(ctx, outbound.Cost{1})
						switch {
						case err == nil && used == 0:
							p.Settle(outbound.Cost{})
						case err == nil:
							sent.went()
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
				time.Sleep(48 * time.Hour)
				synctest.Wait()
				if queues[0].Len()+queues[1].Len() > 0 || sent.n() < 700 {
					t.Errorf("%s: %d have gone, and %d wait", name, len(sent.at), queues[0].Len())
				}
				late := 2 * queues[0].clock.Tolerance(0)
				sent.check(t, 30, time.Second+slack-late)
				sent.check(t, 200, 20*time.Second+slack-late)
				// The API's clock may be a second ahead or behind.
				for _, skew := range []time.Duration{-time.Second, 0, time.Second} {
					begin := midnight.Add(skew)
					n := 0
					for _, at := range sent.at {
						if !at.Before(begin) && at.Before(begin.Add(24*time.Hour)) {
							n++
						}
					}
					if before := sort.Search(len(sent.at), func(i int) bool { return !sent.at[i].Before(begin) }); n > day || before > day {
						t.Errorf("%s: %d before midnight, and %d on the next day, by a clock that is %v off", name, before, n, skew)
					}
				}
				if most.Load() > inFlight {
					t.Errorf("%s: %d at once", name, most.Load())
				}
			})
		}
	}
}

// Who waits for the period after the next stays in line: nobody books so far ahead yet.
func TestCalendar_LongQueueWaitsPeriodByPeriod(t *testing.T) {
	const n = 10
	for name, of := range buckets(outbound.Hourly(n)) {
		synctest.Test(t, func(t *testing.T) {
			b := of()
			q, begin := New(b, Config{}), time.Now() // at midnight
			var admitted atomic.Int64
			for i := range 5 * n {
				go func() {
					if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					admitted.Add(1)
					if want := time.Duration(i/n) * time.Hour; time.Since(begin) < want || time.Since(begin) > want+2*time.Second {
						t.Errorf("%s: call %d goes after %v", name, i, time.Since(begin))
					}
				}()
				synctest.Wait()
			}
			// Who cannot make it is told so at once, also while the next hour is taken and nobody
			// books beyond it yet.
			refused := func(when time.Duration, q *Queue, wait, least time.Duration) {
				t.Helper()
				time.Sleep(when - time.Since(begin))
				ctx, cancel := context.WithTimeout(bg, wait)
				defer cancel()
				at := time.Now()
				_, err := q.Acquire(ctx, outbound.Cost{1})
				var full *outbound.ThrottledError
				if !errors.As(err, &full) || full.RetryAfter < least || time.Since(at) > 0 {
					t.Errorf("%s: after %v a wait of up to %v: %v after %v", name, when, wait, err, time.Since(at))
				}
			}
			refused(90*time.Second, q, 57*time.Minute, 58*time.Minute)
			refused(90*time.Second, New(b, Config{}), 57*time.Minute, 58*time.Minute)
			refused(time.Hour+time.Second-ms, q, 50*time.Minute, time.Hour)
			time.Sleep(5 * time.Hour)
			synctest.Wait()
			if admitted.Load() != 5*n {
				t.Errorf("%s: %d of %d have gone", name, admitted.Load(), 5*n)
			}
		})
	}
}

// A hold moves places over midnight. Those are booked anew: the new day has not more calls
// than it may, and the old one gets back what was booked in it.
func TestCalendar_ReservationMovedToAnotherDayIsVoid(t *testing.T) {
	pacific, err := time.LoadLocation("America/Los_Angeles")
	if err != nil {
		t.Fatal(err)
	}
	const n = 100
	midnight := time.Date(2024, 11, 4, 0, 0, 0, 0, pacific) // after a day of 25 hours
	for name, of := range buckets(outbound.Daily(n, pacific), outbound.Limit{Capacity: 2, LeakRate: 2}) {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(midnight.Add(-20 * time.Second)))
			b := of()
			q := New(b, Config{})
			var sent departures
			for range 2 * n {
				go func() {
					p, err := q.Acquire(bg, outbound.Cost{1})
					if err != nil {
						return // more than a day away
					}
					sent.went()
					p.Done()
				}()
			}
			time.Sleep(17200 * ms) // with a place 2.5 s before midnight
			if err := b.Hold(bg, 10*time.Second); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			before := sent.n()
			time.Sleep(12 * time.Hour)
			synctest.Wait()
			if s, err := b.States(bg); err != nil || s[0].Level != n || sent.n()-before != n {
				t.Errorf("%s: %d and then %d have gone, level %+v (%v)", name, before, sent.n()-before, s, err)
			}
			time.Sleep(24 * time.Hour)
			synctest.Wait()
			sent.check(t, before+n+1, 12*time.Hour)
		})
	}
}

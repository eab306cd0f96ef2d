package queue

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// arrival is a call that comes whether or not earlier ones were answered.
type arrival struct {
	at, within, took time.Duration // within 0: its ctx has no deadline
	cost             outbound.Cost
}

// arrivals are calls at random times, 15 per second on an average.
func arrivals(seed uint64, n int) (all []arrival) {
	rnd := rand.New(rand.NewPCG(seed, 18))
	at := time.Duration(0)
	for range n {
		at += time.Duration(rnd.ExpFloat64() * float64(time.Second) / 15)
		a := arrival{at: at, took: time.Duration(rnd.IntN(int(60 * ms)))}
		if rnd.IntN(4) == 0 {
			a.within = time.Duration(rnd.Int64N(int64(4 * time.Second)))
		}
		a.cost[0] = float64(1 + rnd.IntN(3))
		all = append(all, a)
	}
	return all
}

// answer is what a queue has answered to a call, and when.
type answer struct {
	came, wait, retry time.Duration
	err               error
}

// trial lets calls come to a queue around a bucket. If rough is set, some of them cancel or settle, and
// there are holds. The call patient has no deadline and no MaxWait; below 0 no call has that luck. It
// returns the answers, and when units were returned.
func trial(t *testing.T, seed uint64, of func() *outbound.Bucket, rough bool, patient int) (said []answer, back []time.Duration) {
	all := arrivals(seed, 100)
	said = make([]answer, len(all))
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 78))
		most := time.Duration(1+r.IntN(6)) * time.Second
		time.Sleep(time.Hour - 5*time.Second)
		b, begin, used := of(), time.Now(), 0.0
		q := New(b, Config{CallTime: -1}) // what it learns of the API would change while calls wait
		var mu sync.Mutex
		returned := func() {
			mu.Lock()
			back = append(back, time.Since(begin))
			mu.Unlock()
		}
		for at := time.Second; rough && at < 7*time.Second; at += time.Duration(1 + r.Int64N(int64(3*time.Second))) {
			time.AfterFunc(at, func() { _ = b.Hold(bg, 300*ms) })
		}
		cancels, settles := make([]time.Duration, len(all)), make([]float64, len(all))
		for i := range all {
			if settles[i] = 1; !rough {
				continue
			}
			if r.IntN(10) == 0 {
				cancels[i] = 1 + time.Duration(r.IntN(int(2*time.Second)))
			}
			if r.IntN(10) == 0 {
				settles[i] = 2 * r.Float64()
			}
		}
		var calls sync.WaitGroup
		for i, a := range all {
			time.Sleep(a.at - time.Since(begin))
			calls.Go(func() {
				came, within := time.Now(), most
				if a.within > 0 {
					within = min(most, a.within)
				}
				ctx, cancel := context.WithTimeout(bg, within)
				defer cancel()
				if i == patient {
					ctx = bg
				} else if cancels[i] > 0 {
					defer time.AfterFunc(cancels[i], cancel).Stop()
				}
				p, err := q.Acquire(ctx, a.cost)
				said[i] = answer{came: came.Sub(begin), wait: time.Since(came), err: err}
				full, throttled := errors.AsType[*outbound.ThrottledError](err)
				switch {
				case throttled:
					said[i].retry = full.RetryAfter
					if said[i].wait > within || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("seed %d, call %d: refused after %v of %v: %v", seed, i, said[i].wait, within, err)
					}
				case err != nil:
					returned()
				default:
					time.Sleep(a.took)
					cost := a.cost
					if cost[0] *= settles[i]; settles[i] < 1 {
						returned()
					}
					p.Settle(cost)
					mu.Lock()
					used += cost[0]
					mu.Unlock()
				}
				p.Done()
			})
			synctest.Wait() // so that calls come in their order
		}
		calls.Wait()
		time.Sleep(time.Second) // unused reservations return
		states, err := b.States(bg)
		if meter := states[len(states)-1]; err != nil || meter.Limit.Name == "meter" && math.Abs(meter.Level-used) > 1e-6 {
			t.Errorf("seed %d: %v charged, %v used, %v", seed, meter.Level, used, err)
		}
	})
	return said, back
}

// The queue refuses no call that would leave in time, unless units return later. It refuses all others at
// their deadlines at the latest, and does not charge them. With one leaky limit it refuses all of them
// immediately, with the time that they would have waited.
func TestEarlyRefusal_RefusesNoCallThatWouldLeaveInTime(t *testing.T) {
	notRaced(t)
	var refused, late, twins, exact [2]int // with one leaky limit, with others
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 77))
		kinds := []outbound.Limit{
			outbound.Window(float64(8+r.IntN(40)), time.Duration(1+r.IntN(5))*time.Second).Of(0, "moving"),
			outbound.FixedWindow(float64(8+r.IntN(40)), time.Duration(1+r.IntN(5))*time.Second).Of(0, "fixed"),
			{Capacity: float64(3 + r.IntN(9)), LeakRate: float64(8 + r.IntN(9)), Name: "leaky"},
			{Capacity: float64(30 + r.IntN(30)), LeakRate: float64(5 + r.IntN(9)), Name: "slower"},
			outbound.Hourly(float64(40+r.IntN(80))).Of(0, "hour"),
		}
		which, rough := 1, r.IntN(3) > 0
		if seed%4 == 0 {
			kinds, which, rough = kinds[2:3], 0, false
		} else {
			r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
			kinds = append(kinds[:1+r.IntN(3)], outbound.Monthly(1e6, time.UTC).Of(0, "meter"))
		}
		inStore := r.IntN(2) == 0
		of := func() *outbound.Bucket {
			if inStore {
				return shared(t, store.NewMemory(), kinds...)
			}
			return bucket(t, kinds...)
		}
		said, back := trial(t, seed, of, rough, -1)
		tries := 0
		for i, s := range said {
			if !errors.Is(s.err, outbound.ErrThrottled) {
				continue
			}
			if refused[which]++; s.wait > 0 {
				late[which]++
			}
			if tries++; tries%12 != 1 || s.wait > 0 {
				continue
			}
			twins[which]++
			again, more := trial(t, seed, of, rough, i)
			twin := again[i]
			known := func(at time.Duration) bool { return at < s.came || at > twin.came+twin.wait }
			if slices.ContainsFunc(append(more, back...), func(at time.Duration) bool { return !known(at) }) {
				continue
			}
			if (twin.wait - s.retry).Abs() <= 20*time.Microsecond {
				exact[which]++
			}
			if twin.err == nil && s.retry > twin.wait+20*time.Microsecond {
				t.Errorf("seed %d, %v, in a store %v, call %d at %v: refused for %v, would have waited %v", seed, kinds, inStore, i, s.came, s.retry, twin.wait)
			}
		}
	}
	t.Logf("%d refused, %d of them late; of %d twins %d have the exact time", refused, late, twins, exact)
	if late[0] > 0 || exact[0] < twins[0] || twins[0] < 50 || twins[1] < 50 {
		t.Errorf("%d refused, %d of them late; of %d twins %d have the exact time", refused, late, twins, exact)
	}
}

// With one window, and calls that cost the same, most of those that cannot leave in time are refused
// immediately.
func TestEarlyRefusal_OfAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, window = 5 * time.Second, 4 * time.Second
		q, begin, all := New(bucket(t, outbound.Window(40, window)), Config{}), time.Now(), calls(nil)
		for _, a := range arrivals(1, 600) {
			time.Sleep(a.at - time.Since(begin))
			all = append(all, comeIn(t, most, q, 1))
		}
		pass(most)
		refused, late := 0, 0
		for i, c := range all {
			retry := c.refused().RetryAfter
			switch {
			case c.ended().err == nil:
			case c.took() > 0 && c.took() <= most:
				late++
			case c.took() > 0 || retry <= most || retry > most+2*window:
				t.Errorf("call %d was refused after %v: %v", i, c.took(), c.ended().err)
			default:
				refused++
			}
		}
		if refused < 100 || late > refused/2 {
			t.Errorf("%d were refused immediately, and %d later", refused, late)
		}
	})
}

// A window with capacity for all calls delays none of them: with a MaxWait that is shorter than the window
// the queue knows when each call leaves, and refuses immediately the one that cannot leave in time.
func TestEarlyRefusal_WindowWithCapacityIsExact(t *testing.T) {
	for _, slow := range []outbound.Limit{outbound.Window(5_000, time.Hour), outbound.FixedWindow(5_000, time.Hour), outbound.Daily(5_000, time.UTC)} {
		bothWays(t, []outbound.Limit{outbound.PerSecond(10), slow}, func(t *testing.T, b *outbound.Bucket) {
			pass(2 * time.Second) // a day has begun
			q := New(b, Config{MaxWait: 10 * time.Second})
			all := comeAll(12, bg, q, 1)
			pass(50 * ms)
			const wait = 12*101*ms - 50*ms // the first has left when it came
			if e, err := q.Explain(bg, one); err != nil || (e.Wait-wait).Abs() > 25*ms {
				t.Errorf("%v: %v, %v, want %v", slow, e, err, wait)
			}
			if c := comeIn(t, wait-100*ms, q, 1); (c.refused().RetryAfter-wait).Abs() > 25*ms || c.took() > 0 {
				t.Errorf("%v: refused after %v: %v", slow, c.took(), c.ended().err)
			}
			pass(2 * time.Second)
			if n, _ := all.admitted(); n != 12 {
				t.Errorf("%v: %d calls left, want 12", slow, n)
			}
		})
	}
}

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

// reserve has another caller book n reservations of a unit.
func reserve(t *testing.T, b *outbound.Bucket, n int) {
	t.Helper()
	k := outbound.BookRequest{Costs: slices.Repeat([]outbound.Cost{one}, n), Wait: time.Hour, Horizon: time.Hour}
	err := b.Book(bg, &k)
	fatalIf(t, err != nil || len(k.Tickets) != n, "%v %v", err, len(k.Tickets))
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
			pass(100 * ms)
			errorIf(t, c.refused().RetryAfter <= 10*time.Second, "the call has %v after 100 ms", c.ended().err)
			q.mu.Lock()
			n, uncounted := q.line.n, q.line.uncounted
			q.mu.Unlock()
			errorIf(t, n != judged || uncounted != &q.line.end,
				"%d wait, and %v is not counted, want %d", n, uncounted, judged)
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
		fatalIf(t, !q.pumping || q.current(), "no request is in flight")
		cancel()
		synctest.Wait()
		c := comeIn(t, 5*time.Second, q, 1)
		pass(time.Minute)
		errorIf(t, c.ended().err != nil, "refused: %v", c.ended().err)
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
		fatalIf(t, !q.pumping || q.current(), "no request is in flight")
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
				comeAll(5, bg, q, 1)
				fatalIf(t, left == 0 || q.Len() != waiting, "%d wait, want %d", q.Len(), waiting)
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
		c := comeIn(t, time.Second, q, 1)
		errorIf(t, c.refused().RetryAfter != 10*time.Second || c.took() != 0, "%v after %v", c.ended().err, c.took())
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
		must(t, b.SetLimits(bg, outbound.Limit{Capacity: 1000, LeakRate: 1000}))
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
				errorIf(t, !c.admitted(), "%s: call %d: %v", name, i, c.ended().err)
			}
		})
	}
}

// A window that is above its capacity, because it was lowered, frees all of it together. A call that can
// wait for that is not refused, and one that cannot is refused immediately.
func TestEarlyRefusal_OfAWindowAboveItsCapacity(t *testing.T) {
	bothWays(t, []outbound.Limit{outbound.Window(100, time.Minute)}, func(t *testing.T, b *outbound.Bucket) {
		admitted(t, b, 100)
		must(t, b.SetLimits(bg, outbound.Window(10, time.Minute)))
		q, all := New(b, Config{}), calls(nil)
		for range 9 {
			all = append(all, comeIn(t, 2*time.Minute, q, 1))
		}
		time.Sleep(time.Second)
		all = append(all, comeIn(t, 100*time.Second, q, 1))
		pass(61 * time.Second)
		for i, c := range all {
			errorIf(t, !c.admitted(), "call %d of ten waits for more than 62s: %v", i, c.ended().err)
		}
		for range 10 {
			comeIn(t, 2*time.Minute, q, 1)
		}
		c := comeIn(t, 30*time.Second, q, 1)
		pass(3 * time.Minute)
		errorIf(t, c.ended().err == nil || c.took() > time.Second, "without hope, after %v: %v", c.took(), c.ended().err)
	})
}

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
					errorIf(t, said[i].wait > within || !errors.Is(err, context.DeadlineExceeded),
						"seed %d, call %d: refused after %v of %v: %v", seed, i, said[i].wait, within, err)
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
			errorIf(t, twin.err == nil && s.retry > twin.wait+20*time.Microsecond,
				"seed %d, %v, in a store %v, call %d at %v: refused for %v, would have waited %v", seed, kinds, inStore, i, s.came, s.retry, twin.wait)
		}
	}
	t.Logf("%d refused, %d of them late; of %d twins %d have the exact time", refused, late, twins, exact)
	errorIf(t, late[0] > 0 || exact[0] < twins[0] || twins[0] < 50 || twins[1] < 50,
		"%d refused, %d of them late; of %d twins %d have the exact time", refused, late, twins, exact)
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
		errorIf(t, refused < 100 || late > refused/2, "%d were refused immediately, and %d later", refused, late)
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
			e, err := q.Explain(bg, one)
			errorIf(t, err != nil || (e.Wait-wait).Abs() > 25*ms, "%v: %v, %v, want %v", slow, e, err, wait)
			if c := comeIn(t, wait-100*ms, q, 1); (c.refused().RetryAfter-wait).Abs() > 25*ms || c.took() > 0 {
				t.Errorf("%v: refused after %v: %v", slow, c.took(), c.ended().err)
			}
			pass(2 * time.Second)
			n, _ := all.admitted()
			errorIf(t, n != 12, "%v: %d calls left, want 12", slow, n)
		})
	}
}

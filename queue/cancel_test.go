package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Calls cancel at any time, during requests as well. The queue forgets none of the others, each leaves
// by a reservation of its own cost, and at the end nothing is booked.
func TestCancel_ForgetsNoOtherCall(t *testing.T) {
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			rate := []float64{5, 20, 100}[rnd.IntN(3)]
			limit := outbound.Limit{Capacity: 10, LeakRate: 10 * rate}
			b, way := bucket(t, limit), rnd.IntN(30)
			var mu sync.Mutex
			went, booked := 0.0, 0.0 // booked is the sum of the reservations that did not return
			if way > 0 {
				late := func(n int) time.Duration {
					k := uint64(n) * (2*seed + 1)
					return time.Duration(k%4/3*(k%41)) * ms
				}
				count := func(op *store.Op, r *store.Reply) error {
					mu.Lock()
					defer mu.Unlock()
					for _, c := range op.Unused {
						booked -= c.N[0]
					}
					for i := range r.Charges {
						if booked += op.Costs[i][0]; op.Move != nil {
							booked -= op.Move.N[0]
						}
					}
					return nil
				}
				b = shared(t, &far{Store: store.NewMemory(), way: time.Duration(way) * ms, jitter: 0.1, late: late, after: count}, limit)
			}
			q := New(b, Config{})
			span := func() time.Duration { return time.Duration(rnd.Float64() * 5 / rate * 1e9) }
			for range 12 {
				ctx, cancel := context.WithCancel(bg)
				cost := outbound.Cost{10}
				if rnd.IntN(4) == 0 {
					cost[0] = 5
				}
				if rnd.IntN(3) == 0 {
					time.AfterFunc(1+span(), cancel)
				} else {
					defer cancel()
				}
				time.AfterFunc(1+span()/2, func() {
					_, err := q.Acquire(ctx, cost)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						went += cost[0]
					}
				})
			}
			pass(time.Minute)
			errorIf(t, way > 0 && booked != went,
				"seed %d: calls of %v units have left, by reservations of %v", seed, went, booked)
			s, err := b.State(bg)
			if stats := q.Stats(); stats.Waiting != 0 || stats.Admitted+stats.Cancelled > 12 || s.Level != 0 || err != nil {
				t.Errorf("seed %d: %+v, level %v, %v", seed, stats, s.Level, err)
			}
			errorIf(t, len(q.line.tickets)+len(q.line.unused) != 0 || q.line.unbooked != &q.line.end,
				"seed %d: %d tickets, %d to return, rest %v", seed, len(q.line.tickets), len(q.line.unused), q.line.unbooked)
			q.Close() // a call that was forgotten would wait for ever
		})
	}
}

// A call's ctx may end at the instant of its reservation. Then the call is either cancelled, and has used
// nothing, or admitted.
func TestCancel_AtTheInstantOfAdmission(t *testing.T) {
	var outcomes [2]int
	for range 1000 {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 10})
			q := New(b, Config{})
			admitted(t, q, 1)
			ctx, cancel := context.WithCancel(bg)
			time.AfterFunc(100*ms, cancel)
			_, err := q.Acquire(ctx, one)
			synctest.Wait()
			level, want := 1.0, Stats{Admitted: 2, Waited: 1}
			if err != nil {
				level, want = 0, Stats{Admitted: 1, Cancelled: 1}
			}
			outcomes[want.Cancelled]++
			s, _ := b.State(bg)
			if stats := q.Stats(); s.Level != level || stats != want || err != nil && err != context.Canceled {
				t.Errorf("%v, level %v, %+v", err, s.Level, stats)
			}
		})
	}
	errorIf(t, outcomes[0] == 0 || outcomes[1] == 0,
		"%d admitted, %d cancelled: the test proves nothing", outcomes[0], outcomes[1])
}

// The first call cancels during a request, and its reservation is due before the request ends. A call
// that costs more does not use it.
func TestCancel_DuringARequestGivesNoCheaperReservation(t *testing.T) {
	for way := ms; way <= 16*ms; way += 5 * ms {
		for at := 50 * ms; at < 130*ms; at += ms {
			synctest.Test(t, func(t *testing.T) {
				limit := outbound.Limit{Capacity: 10, LeakRate: 10}
				q := New(shared(t, &far{Store: store.NewMemory(), way: way}, limit), Config{})
				ctx, cancel := context.WithCancel(bg)
				all := calls{come(bg, q, 10), come(ctx, q, 1), come(bg, q, 10)}
				time.Sleep(at)
				cancel()
				pass(time.Minute)
				h := all.history(0)
				err := h.Check(limit.Capacity, limit.LeakRate, limit.LeakRate*0.05)
				errorIf(t, err != nil || h.Len() < 2, "%v away, cancelled after %v: %d left, %v", way, at, h.Len(), err)
			})
		}
	}
}

// The next call uses the reservation of a call that cancels. If that was booked for another cost it
// returns, and the next call books its own.
func TestCancel_LeavesTheReservationToTheNext(t *testing.T) {
	for _, next := range []float64{3, 1, 10} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, outbound.Limit{Capacity: 10, LeakRate: 1}), Config{})
			admitted(t, q, 10)
			ctx, cancel := context.WithCancel(bg)
			come(ctx, q, 3)
			c := come(bg, q, next)
			time.Sleep(500 * ms)
			cancel()
			pass(time.Minute)
			c.wantWait(t, time.Duration(next)*time.Second)
		})
	}
}

// The clock of the queue counts a reservation that returns. A new call does not wait for it.
func TestCancel_NewcomerIgnoresReturnedReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{MaxWait: time.Second})
		admitted(t, q, 1)
		ctx, cancel := context.WithCancel(bg)
		come(ctx, q, 1)
		q.mu.Lock()
		q.called = true // pump does not run yet
		q.mu.Unlock()
		cancel()
		synctest.Wait()
		c := come(bg, q, 1)
		q.pump()
		if pass(time.Minute); c.ended().err != nil || c.took() < time.Second || c.took() > time.Second+time.Microsecond {
			t.Errorf("%v after %v, want 1s", c.ended().err, c.took())
		}
	})
}

// A call that cancels, or settles to less, makes capacity for one that comes then.
func TestCancel_RefusesNoLaterCall(t *testing.T) {
	for name, returns := range map[string]func(p *outbound.Permit, cancel func()){
		"a cancel": func(_ *outbound.Permit, cancel func()) { cancel() },
		"a settle": func(p *outbound.Permit, _ func()) { p.Settle(outbound.Cost{4}) },
	} {
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, outbound.Window(10, time.Minute)), Config{MaxWait: 90 * time.Second})
			p := admitted(t, q, 10)
			ctx, cancel := context.WithCancel(bg)
			comeAll(9, bg, q, 1)
			come(ctx, q, 1)
			if c := come(bg, q, 1); !errors.Is(c.ended().err, outbound.ErrThrottled) {
				t.Errorf("%s: without capacity in the next window: %v", name, c.ended().err)
			}
			returns(&p, cancel)
			synctest.Wait()
			c := come(bg, q, 1)
			pass(time.Hour)
			errorIf(t, !c.admitted(), "%s: %v", name, c.ended().err)
			cancel()
		})
	}
}

// needless replays the calls that left through ideal buckets. A call could have left as soon as it had
// come, all calls before it had left or cancelled, and there was capacity next to those that had really
// left. needless returns the sum of all waits beyond that, and the longest.
func needless(all calls, limits []outbound.Limit) (sum, most time.Duration) {
	later := func(a, b time.Time) time.Time {
		if a.After(b) {
			return a
		}
		return b
	}
	level := make([]float64, len(limits))
	var at, first time.Time // at is the time of the levels; at first all calls before have left or cancelled
	for _, c := range all {
		if first = later(first, c.came); !c.admitted() {
			first = later(first, c.ended().left)
			continue
		}
		earliest := first
		for i, l := range limits {
			if n := c.cost[l.Unit]; n > 0 && !at.IsZero() {
				earliest = later(earliest, at.Add(time.Duration((level[i]+n-l.Capacity)/l.LeakRate*1e9)))
			}
		}
		d := c.ended().left.Sub(earliest)
		sum, most = sum+max(0, d), max(most, d)
		for i, l := range limits {
			if !at.IsZero() {
				level[i] = max(0, level[i]-l.LeakRate*c.ended().left.Sub(at).Seconds())
			}
			level[i] += c.cost[l.Unit]
		}
		at, first = c.ended().left, later(first, c.ended().left)
	}
	return sum, most
}

// Calls cancel one by one or many at once, whatever they cost. The calls behind wait no longer than if
// those had never come.
func TestCancel_DelaysNoOtherCall(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 10
	}
	var sum time.Duration
	var n, cancelled uint64
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 5))
			rate := []float64{0.5, 20, 500}[seed%3]
			limits := []outbound.Limit{
				{Capacity: 2, LeakRate: rate, Name: "calls"},
				{Capacity: 10, LeakRate: 3 * rate, Unit: 1, Name: "tokens"},
			}
			b := bucket(t, limits...)
			if seed%2 == 1 {
				b = shared(t, store.NewMemory(), limits...)
			}
			q, all := New(b, Config{}), calls(nil)
			unit := float64(time.Second) / rate
			some := func(units float64) time.Duration { return 1 + time.Duration(units*unit*rnd.ExpFloat64()) }
			parent, cancelAll := context.WithCancel(bg)
			for range 1000 {
				ctx, cancel := context.WithCancel(parent)
				if rnd.IntN(5) < 3 {
					time.AfterFunc(some(10), cancel)
				} else {
					defer cancel()
				}
				if rnd.IntN(100) == 0 {
					time.AfterFunc(some(5), cancelAll)
					parent, cancelAll = context.WithCancel(bg)
				}
				all = append(all, comeAndUse(ctx, q, done, 1, float64(rnd.IntN(8))))
				time.Sleep(some(0.5))
			}
			pass(10 * time.Hour)
			cancelAll()
			needless, most := needless(all, limits)
			sum += needless
			errorIf(t, most > 10*time.Microsecond, "seed %d: %v of needless waits, up to %v", seed, needless, most)
			cancelled += q.Stats().Cancelled
			n += 1000
		})
	}
	t.Logf("%v of needless waits, %d of %d calls cancelled", sum, cancelled, n)
	errorIf(t, sum > 10*ms || cancelled < n*2/5, "%v of needless waits, %d of %d calls cancelled", sum, cancelled, n)
}

package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// tenancy has 40 tenants with a total of 3,000 calls a minute, and nothing but defaults.
type tenancy struct {
	tenants *outbound.Keyed[int]
	waits   [40][]time.Duration
	left    [40]int
}

func newTenancy() *tenancy {
	total := outbound.Must(outbound.NewBucket("total", outbound.PerSecond(50)))
	return &tenancy{tenants: &outbound.Keyed[int]{New: func(tenant int) (outbound.Limiter, error) {
		own, err := outbound.NewBucket(fmt.Sprint("tenant ", tenant), outbound.PerMinute(300).Burst(10), outbound.InFlight(1))
		return outbound.Within(New(own, Config{}), New(total, Config{})), err
	}}}
}

// call makes a call of a tenant that takes so long, and reports whether it was made.
func (c *tenancy) call(ctx context.Context, tenant int, takes time.Duration, answered func(*outbound.Permit)) bool {
	came := time.Now()
	p, err := c.tenants.Acquire(ctx, tenant, one)
	if err != nil {
		return false
	}
	c.waits[tenant] = append(c.waits[tenant], time.Since(came)) // one call in flight
	c.left[tenant]++
	time.Sleep(takes)
	if answered != nil {
		answered(&p)
	}
	p.Done()
	return true
}

// Forty tenants with a backlog use 98 % of a total, in equal shares, and a 429 of one delays no
// other.
func TestWithin_TenantsShareATotal(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	for _, refused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newTenancy()
			ctx, cancel := context.WithCancel(bg)
			time.AfterFunc(time.Minute, cancel)
			begin := time.Now()
			for tenant := range 40 {
				for range 10 {
					go func() {
						for c.call(ctx, tenant, 20*ms, func(p *outbound.Permit) {
							if refused && tenant == 7 && time.Since(begin) > 20*time.Second && time.Since(begin) < 30*time.Second {
								p.Refused(10 * time.Second)
							}
						}) {
						}
					}()
				}
			}
			pass(time.Minute + time.Second)
			sum := 0
			for tenant, n := range c.left {
				sum += n
				if refused && tenant == 7 {
					errorIf(t, n > 70, "the refused tenant made %d calls", n)
					continue
				}
				if fair := 2970.0 / 40; float64(n) < fair*0.97 || !refused && float64(n) > fair*1.03 {
					t.Errorf("refused: %v: tenant %d made %d calls, want %.1f", refused, tenant, n, fair)
				}
				longest := slices.Max(c.waits[tenant][1:])
				errorIf(t, refused && longest > 9*time.Second, "tenant %d waited %v", tenant, longest)
			}
			t.Logf("refused: %v: %d calls in a minute, %d to %d a tenant", refused, sum, slices.Min(c.left[:]), slices.Max(c.left[:]))
			errorIf(t, sum < 2940, "%d calls in a minute, want 98 %% of 3,000", sum)
		})
	}
}

// A tenant with 10,000 calls delays no other's p95 by more than 10 % while all have a backlog, and by
// 20 ms while the others leave a part of the total.
func TestWithin_BacklogDelaysNoOtherTenant(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	p95 := func(calls int, pause time.Duration) (wait time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			c := newTenancy()
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			defer cancel()
			for range calls {
				go c.call(ctx, 0, 20*ms, nil)
			}
			for tenant := 1; tenant < 40; tenant++ {
				time.Sleep(pause / 39)
				for range 10 {
					go func() {
						for c.call(ctx, tenant, 20*ms, nil) {
							time.Sleep(pause)
						}
					}()
					time.Sleep(pause / 10)
				}
			}
			pass(time.Minute + time.Second)
			var waits []time.Duration
			for _, w := range c.waits[1:] {
				waits = append(waits, w...)
			}
			slices.Sort(waits)
			wait = waits[len(waits)*95/100]
		})
		return wait
	}
	backlog := 10_000
	if raced {
		backlog = 1_000
	}
	for pause, more := range map[time.Duration]time.Duration{0: 800 * ms, 10 * time.Second: 20 * ms} {
		without, with := p95(75, pause), p95(backlog, pause)
		t.Logf("pauses of %v: p95 %v, and %v next to %d calls", pause, without, with, backlog)
		errorIf(t, with > without+more, "pauses of %v: p95 %v, and %v next to %d calls", pause, without, with, backlog)
	}
}

// What the inner limiter refuses, and what a ctx ends, costs the outer one nothing. RetryAfter is the
// longer of both. A limiter that is missing is an error.
func TestWithin_ChargesBothOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := bucket(t, outbound.Limit{Capacity: 2, LeakRate: 1}, outbound.InFlight(1))
		total := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.1})
		l := outbound.Within(own, total)
		p := admitted(t, l, 1)
		if _, err := l.Acquire(bg, one); !errors.Is(err, outbound.ErrThrottled) || !p.Pending() {
			t.Error("two in flight")
		}
		p.Done()
		for _, c := range comeAll(5, bg, l, 1) {
			errorIf(t, c.refused().RetryAfter != 10*time.Second, "%v, want to retry in 10 s", c.ended().err)
		}
		if is, err := own.State(bg); err != nil || is.Level > 1 {
			t.Errorf("outer: %v, %v; want the one call", is, err)
		}
		e, err := l.(interface {
			Explain(context.Context, outbound.Cost) (outbound.Explanation, error)
		}).Explain(bg, one)
		errorIf(t, err != nil || e.Wait != 10*time.Second || len(e.States) != 3, "%v, %v", e, err)
		must(t, own.Hold(bg, time.Minute))
		_, err = l.Acquire(bg, one)
		errorIf(t, !errors.Is(err, outbound.ErrThrottled), "%v", err)
		// A call that waits inside and gives up.
		own = bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.001}, outbound.InFlight(1))
		l = outbound.Within(own, New(total, Config{}))
		ctx, cancel := context.WithCancel(bg)
		c := come(ctx, l, 1)
		time.Sleep(time.Second)
		cancel()
		pass(10 * time.Second)
		errorIf(t, !errors.Is(c.ended().err, context.Canceled), "%v", c.ended().err)
		p = admitted(t, l, 1)
		p.Settle(outbound.Cost{})
		p.Done()
		for name, b := range map[string]*outbound.Bucket{"outer": own, "inner": total} {
			if is, err := b.State(bg); err != nil || is.Level > 0 {
				t.Errorf("%s: %v, %v", name, is, err)
			}
		}
		if _, err := outbound.Within(nil, total).Acquire(bg, one); !errors.Is(err, outbound.ErrInvalid) {
			t.Error(err)
		}
	})
}

// An answer reaches the outer limiter alone, and a refused call is no success of the inner one.
func TestWithin_AnswersReachTheOuterLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, total := bucket(t, outbound.PerSecond(10)), bucket(t, outbound.PerSecond(10))
		p := admitted(t, outbound.Within(own, total), 1)
		p.Refused(time.Minute)
		p.Done()
		time.Sleep(time.Second)
		_, err := own.Acquire(bg, one)
		errorIf(t, err == nil, "the outer limiter is not held")
		admitted(t, total, 1)
		b, ok := outbound.As[*outbound.Bucket](outbound.Within(own, total))
		errorIf(t, !ok || b != own, "As finds another bucket")
	})
}

// A limit of calls in flight around one per time lets 1,000 calls leave as one bucket with both limits does. The
// other way round more calls leave within a second than the rate allows. The API stalls from 5 s to 8 s.
func TestWithin_InFlightGoesAroundTheRate(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	rate, inFlight := outbound.PerSecond(50), outbound.InFlight(20)
	of := func(limits ...outbound.Limit) outbound.Limiter { return New(bucket(t, limits...), Config{}) }
	var alone time.Duration // what one bucket takes
	for _, c := range []struct {
		name    string
		limiter func() outbound.Limiter
		right   bool
	}{
		{"one bucket", func() outbound.Limiter { return of(rate, inFlight) }, true},
		{"in flight around the rate", func() outbound.Limiter { return outbound.Within(of(inFlight), of(rate)) }, true},
		{"one shared bucket", func() outbound.Limiter { return New(shared(t, store.NewMemory(), rate, inFlight), Config{}) }, true},
		{"the rate around in flight", func() outbound.Limiter { return outbound.Within(of(rate), of(inFlight)) }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, begin, all := c.limiter(), time.Now(), make(calls, 1000)
			var running, most atomic.Int64
			for i := range all {
				all[i] = comeAndUse(bg, l, func(p *outbound.Permit) {
					if n := running.Add(1); n > most.Load() {
						most.Store(n)
					}
					time.Sleep(100 * ms)
					if at := time.Since(begin); at > 5*time.Second {
						time.Sleep(8*time.Second - at)
					}
					running.Add(-1)
					p.Done()
				}, 1)
			}
			pass(time.Minute)
			h := all.history(0)
			worst, took := h.Worst(time.Second).Units, h.Total().End.Sub(begin)
			if alone == 0 {
				alone = took
			}
			errorIf(t, h.Len() != 1000 || most.Load() > 20 || c.right != (worst <= 50) || took > alone+alone/50,
				"%s: %d of 1000 left, %v in a second, %d in flight, %v; in one bucket %v", c.name, h.Len(), worst, most.Load(), took, alone)
		})
	}
}

// Queues of more tenants than a Keyed holds, all around one busy bucket, make room for each
// other. A queue in which a call waits stays, and no call leaves above the limit.
func TestKeyed_QueuesAroundABusyBucketMakeRoom(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 10, LeakRate: 1000})
		made := map[int]int{}
		tenants := &outbound.Keyed[int]{New: func(tenant int) (outbound.Limiter, error) {
			made[tenant]++
			return New(b, Config{}), nil
		}}
		admitted(t, b, 10)
		begin := time.Now()
		for tenant := range 11_000 {
			p := admitted(t, tenants.For(tenant), 1)
			p.Done()
		}
		took := time.Since(begin)
		errorIf(t, took < 11*time.Second || took > 12*time.Second, "11,000 calls at 1,000 per second took %v", took)
		n := tenants.Len()
		errorIf(t, n > 10_000, "%d queues", n)
		must(t, b.Hold(bg, time.Hour))
		c := come(bg, tenants.For(-1), 1)
		for tenant := range 20_000 {
			err := tenants.Use(20_000+tenant, func(outbound.Limiter) error { return nil })
			fatalIf(t, err != nil, "tenant %d: %v", tenant, err)
		}
		_ = tenants.Use(-1, func(l outbound.Limiter) error {
			n := l.(*Queue).Len()
			errorIf(t, n != 1 || made[-1] != 1, "%d calls wait in the tenant's queue, which was made %d times", n, made[-1])
			return nil
		})
		pass(2 * time.Hour)
		errorIf(t, !c.admitted(), "%v", c.ended().err)
	})
}

// A queue around a bucket that was made for its tenant alone stays until the bucket is idle:
// otherwise the tenant would have its whole capacity again.
func TestKeyed_QueueAroundItsOwnBucketStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenants := &outbound.Keyed[string]{Max: 2, New: func(tenant string) (outbound.Limiter, error) {
			b, err := outbound.NewBucket(tenant, outbound.PerHour(2).Burst(2))
			return New(b, Config{MaxWait: time.Second}), err
		}}
		for _, tenant := range []string{"a", "b", "a", "b"} {
			p := admitted(t, tenants.For(tenant), 1)
			p.Done()
		}
		time.Sleep(10 * time.Minute)
		for range 10 {
			for _, tenant := range []string{"c", "a", "b"} {
				_, err := tenants.Acquire(bg, tenant, one)
				fatalIf(t, err == nil, "%s: a call above the limit, or a third queue", tenant)
			}
		}
		time.Sleep(2 * time.Hour)
		admitted(t, tenants.For("c"), 1)
	})
}

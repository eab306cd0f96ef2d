package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// tenancy is 40 tenants with a total of 3,000 calls a minute, and nothing but defaults.
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
	p, err := c.tenants.Acquire(ctx, tenant, outbound.Cost{1})
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
	for _, refused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newTenancy()
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			defer cancel()
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
					if n > 70 {
						t.Errorf("the refused tenant made %d calls", n)
					}
					continue
				}
				if fair := 2970.0 / 40; float64(n) < fair*0.97 || !refused && float64(n) > fair*1.03 {
					t.Errorf("refused: %v: tenant %d made %d calls, want %.1f", refused, tenant, n, fair)
				}
				if longest := slices.Max(c.waits[tenant][1:]); refused && longest > 9*time.Second {
					t.Errorf("tenant %d waited %v", tenant, longest)
				}
			}
			t.Logf("refused: %v: %d calls in a minute, %d to %d a tenant", refused, sum, slices.Min(c.left[:]), slices.Max(c.left[:]))
			if sum < 2940 {
				t.Errorf("%d calls in a minute, want 98 %% of 3,000", sum)
			}
		})
	}
}

// A tenant with 10,000 calls delays no other's p95 by more than 10 % while all have a backlog, and by
// 20 ms while the others leave a part of the total.
func TestWithin_ABacklogDelaysNoOtherTenant(t *testing.T) {
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
	for pause, more := range map[time.Duration]time.Duration{0: 800 * ms, 10 * time.Second: 20 * ms} {
		without, with := p95(75, pause), p95(10_000, pause)
		t.Logf("pauses of %v: p95 %v, and %v beside 10,000 calls", pause, without, with)
		if with > without+more {
			t.Errorf("pauses of %v: p95 %v, and %v beside 10,000 calls", pause, without, with)
		}
	}
}

// What the inner limiter refuses, and what a ctx ends, costs the outer one nothing. RetryAfter is the
// longer of both. A limiter that is missing is an error.
func TestWithin_ChargesBothOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := bucket(t, outbound.Limit{Capacity: 2, LeakRate: 1}, outbound.InFlight(1))
		total := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.1})
		l := outbound.Within(own, total)
		p, err := l.Acquire(bg, outbound.Cost{1})
		if err != nil || !p.Pending() {
			t.Fatal(err)
		}
		if _, err := l.Acquire(bg, outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
			t.Error("two in flight")
		}
		p.Done()
		for range 5 {
			_, err := l.Acquire(bg, outbound.Cost{1})
			if full, ok := errors.AsType[*outbound.ThrottledError](err); !ok || full.RetryAfter != 10*time.Second {
				t.Fatalf("%v, want to retry in 10 s", err)
			}
		}
		if is, err := own.State(bg); err != nil || is.Level > 1 {
			t.Errorf("outer: %v, %v; want the one call", is, err)
		}
		e, err := l.(interface {
			Explain(context.Context, outbound.Cost) (outbound.Explanation, error)
		}).Explain(bg, outbound.Cost{1})
		if err != nil || e.Wait != 10*time.Second || len(e.States) != 3 {
			t.Errorf("%v, %v", e, err)
		}
		if err := own.Hold(bg, time.Minute); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Acquire(bg, outbound.Cost{1}); err == nil || !errors.Is(err, outbound.ErrThrottled) {
			t.Error(err)
		}
		// A call that waits inside and gives up.
		own = bucket(t, outbound.Limit{Capacity: 1, LeakRate: 0.001}, outbound.InFlight(1))
		l = outbound.Within(own, New(total, Config{}))
		ctx, cancel := context.WithCancel(bg)
		go func() { time.Sleep(time.Second); cancel() }()
		if _, err := l.Acquire(ctx, outbound.Cost{1}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		if p, err = l.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		p.Settle(outbound.Cost{})
		p.Done()
		for name, b := range map[string]*outbound.Bucket{"outer": own, "inner": total} {
			if is, err := b.State(bg); err != nil || is.Level > 0 {
				t.Errorf("%s: %v, %v", name, is, err)
			}
		}
		if _, err := outbound.Within(nil, total).Acquire(bg, outbound.Cost{1}); !errors.Is(err, outbound.ErrInvalid) {
			t.Error(err)
		}
	})
}

// An answer reaches the outer limiter alone, and a refused call is no success of the inner one.
func TestWithin_AnswersReachTheOuterLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, total := bucket(t, outbound.PerSecond(10)), bucket(t, outbound.PerSecond(10))
		p, err := outbound.Within(own, total).Acquire(bg, outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		p.Refused(time.Minute)
		p.Done()
		time.Sleep(time.Second)
		if _, err := own.Acquire(bg, outbound.Cost{1}); err == nil {
			t.Error("the outer limiter is not held")
		}
		if _, err := total.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Error("the inner limiter is held: ", err)
		}
		if b, ok := outbound.As[*outbound.Bucket](outbound.Within(own, total)); !ok || b != own {
			t.Error("As finds another bucket")
		}
	})
}

package queue

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

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
				if t.Helper(); d > want+ms || d < want-c.slack-ms {
					t.Errorf("%s: %s %v, want %v", name, what, d, want)
				}
			}
			is, err := b.State(bg)
			if err != nil {
				t.Fatal(err)
			}
			close("NextIn is", is.NextIn, c.a)
			e, err := b.Explain(bg, one)
			if err != nil || e.Because != "limit" || e.Limit == "" {
				t.Errorf("%s: %v, %v", name, e, err)
			}
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
			if e, err := q.Explain(bg, outbound.Cost{large}); err != nil || e.Wait >= 0 || e.Because != "limit" {
				t.Errorf("headroom %v: %v, %v", headroom, e, err)
			}
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
				if err := all.Check(limit.Capacity, limit.LeakRate, slack); err != nil {
					t.Error(err)
				}
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

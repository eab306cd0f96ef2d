package queue

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Four workers, whose calls wait all the time, lose their store and find it again.
func TestFallback_QueueUsesItsShareAndReturns(t *testing.T) {
	for _, limit := range []outbound.Limit{{Capacity: 8, LeakRate: 100}, {Capacity: 40, LeakRate: 4}, outbound.PerSecond(20)} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := store.NewMemory()
				var phases [3]outboundtest.History
				var all outboundtest.History
				var phase atomic.Int32
				var stop atomic.Bool
				var links [4]*far
				for i := range links {
					links[i] = &far{Store: m, way: time.Duration(1+i) * time.Millisecond}
					b, err := outbound.NewSharedBucket(&fallback.Store{Store: links[i], Share: 0.25}, "k", limit)
					if err != nil {
						t.Fatal(err)
					}
					q := New(b, Config{})
					for range 10 {
						go func() {
							for !stop.Load() {
								p, err := q.Acquire(bg, outbound.Cost{1})
								if err != nil {
									t.Error(err)
									return
								}
								all.Add(time.Now(), 1)
								phases[phase.Load()].Add(time.Now(), 1)
								p.Done()
							}
						}()
					}
				}
				away := func(away bool) {
					for _, l := range links {
						l.away.Store(away)
					}
				}
				time.Sleep(time.Minute)
				away(true)
				time.Sleep(time.Second)
				phase.Store(1)
				time.Sleep(time.Minute)
				away(false)
				time.Sleep(15 * time.Second)
				phase.Store(2)
				time.Sleep(time.Minute)
				stop.Store(true)
				time.Sleep(time.Minute)
				// The law allows some slack: places of the store for 25 ms after the switch,
				// calls that are late by 5 ms, and a unit for each worker whose share of the
				// capacity is less.
				// For up to a second after the return some workers are on shares while others are back.
				slack := limit.LeakRate*1.05 + max(0, 4-limit.Capacity)
				if err := all.Check(limit.Capacity, limit.LeakRate, slack); err != nil {
					t.Error(err)
				}
				for i := range phases {
					if n, want := phases[i].Len(), 60*limit.LeakRate; float64(n) < 0.97*want {
						t.Errorf("phase %d: %d calls in a minute, want %v", i, n, want)
					}
				}
			})
		})
	}
}

// No call waits for a store that hangs.
func TestFallback_NoCallWaitsForAHungStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &hung{Store: store.NewMemory()}
		b, err := outbound.NewSharedBucket(&fallback.Store{Store: s, Share: 0.5}, "k", outbound.Limit{Capacity: 2, LeakRate: 100})
		if err != nil {
			t.Fatal(err)
		}
		q := New(b, Config{MaxWait: 2 * time.Second})
		s.hangs.Store(true)
		begin := time.Now()
		for range 1000 {
			p, err := q.Acquire(bg, outbound.Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			p.Done()
		}
		if took := time.Since(begin); took > 22*time.Second { // 1000 at 50 per second, and the first second
			t.Errorf("1000 calls took %v", took)
		}
		s.hangs.Store(false)
		time.Sleep(3 * time.Second) // the last attempt to reach the store
	})
}

// hung is a store that takes a second to fail.
type hung struct {
	store.Store
	hangs atomic.Bool
}

func (h *hung) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if h.hangs.Load() {
		time.Sleep(time.Second)
		return store.Reply{}, errAway
	}
	return h.Store.Update(ctx, key, op)
}

package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

var errKind = errors.New("WRONGTYPE")

// picky is a store that refuses one key.
type picky struct {
	leak.Store
	bad  string
	mild atomic.Bool // it no longer refuses the key
}

func (p *picky) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if key == p.bad && !p.mild.Load() {
		return leak.Reply{}, errKind
	}
	return p.Store.Update(ctx, key, op)
}

func TestAnErrorOfOneKeyDoesNotMarkTheStoreAway(t *testing.T) {
	for _, f := range []*fallback.Store{{}, {Share: 0.5}, {Unlimited: true}} {
		synctest.Test(t, func(t *testing.T) {
			m := leak.NewMemory()
			f.Store = &picky{Store: m, bad: "bad"}
			f.OnSwitch = func(away bool, err error) { t.Errorf("away %v: %v", away, err) }
			limit := outbound.Limit{Capacity: 10, LeakRate: 10}
			bad := outbound.Must(outbound.NewSharedBucket(f, "bad", limit))
			workers := []*outbound.Bucket{
				outbound.Must(outbound.NewSharedBucket(f, "good", limit)),
				outbound.Must(outbound.NewSharedBucket(m, "good", limit)),
			}
			var all outboundtest.History
			for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(2 * time.Millisecond) {
				var failed *outbound.StoreError
				if _, err := bad.Acquire(background, outbound.Cost{1}); !errors.As(err, &failed) || !errors.Is(err, errKind) {
					t.Fatal(err)
				}
				for _, b := range workers {
					switch _, err := b.Acquire(background, outbound.Cost{1}); {
					case err == nil:
						all.Add(time.Now(), 1)
					case !errors.Is(err, outbound.ErrThrottled):
						t.Fatal(err)
					}
				}
			}
			if err := all.Check(limit.Capacity, limit.LeakRate, 1e-6); err != nil {
				t.Error(err)
			}
		})
	}
}

// The Store keeps what a key has spent until the store takes it. Meanwhile other keys go on.
func TestAnErrorOfOneKeyOnReturnStopsNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &picky{Store: leak.NewMemory(), bad: "bad"}
		w := newWorker(t, p, &fallback.Store{Share: 0.5}, slow)
		bad := outbound.Must(outbound.NewSharedBucket(w.f, "bad", slow))
		w.set(true)
		w.take(outbound.Cost{1})
		_, _ = bad.State(background)
		time.Sleep(3 * time.Hour)
		if _, err := bad.Acquire(background, outbound.Cost{20}); err != nil {
			t.Error(err)
		}
		w.reconnect()
		for range 3 {
			if _, err := bad.Acquire(background, outbound.Cost{1}); !errors.Is(err, errKind) {
				t.Error(err)
			}
		}
		if n := w.take(outbound.Cost{1}); n != 100 {
			t.Errorf("%d of the others went, want 100", n)
		}
		p.mild.Store(true)
		if s, err := bad.State(background); err != nil || math.Abs(s.Level-20) > 0.5 {
			t.Errorf("level %v, %v; want 20", s.Level, err)
		}
	})
}

// A call that gets an error of its key has reached the store.
func TestAnErrorOfOneKeyEndsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, &picky{Store: leak.NewMemory(), bad: "bad"}, &fallback.Store{}, slow)
		bad := outbound.Must(outbound.NewSharedBucket(w.f, "bad", slow))
		w.set(true)
		if _, err := w.b.State(background); !errors.Is(err, errCut) {
			t.Error(err)
		}
		w.set(false)
		time.Sleep(time.Second)
		if _, err := bad.State(background); !errors.Is(err, errKind) {
			t.Error(err)
		}
		w.level(0)
	})
}

func TestOnSwitchHearsOfSwitchesInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{}, slow)
		var told []bool // OnSwitch appends to it, one call after the other
		w.f.OnSwitch = func(away bool, err error) {
			if away {
				time.Sleep(time.Minute) // OnSwitch may be slow
				if len(told) == 0 {
					_, _ = w.b.State(background) // OnSwitch may use the store itself
				}
			}
			told = append(told, away)
		}
		for range 2 {
			w.set(true)
			go w.b.State(background)
			time.Sleep(time.Second)
			w.set(false)
			for range 15 {
				_, _ = w.b.State(background)
				time.Sleep(time.Second)
			}
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if fmt.Sprint(told) != "[true false true false]" {
			t.Errorf("told %v", told)
		}
	})
}

package fallback

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
	"github.com/dripfeed/dripfeed/outbound/leak"
)

var (
	ctx = context.Background()
	// badShares are no parts of a limit.
	badShares = []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, -math.SmallestNonzeroFloat64, -1e308, 1.000001, 1e12 + 1, 1e300, math.MaxFloat64}
)

func TestABadFallbackIsRefusedAtEachUpdate(t *testing.T) {
	for _, share := range badShares {
		f := &Store{Store: leak.NewMemory(), Share: share}
		if _, err := outbound.Must(outbound.NewSharedBucket(f, "key", outbound.PerSecond(1))).Acquire(ctx, outbound.Cost{1}); !errors.Is(err, outbound.ErrInvalidLimit) {
			t.Errorf("a share of %v: %v", share, err)
		}
	}
	for want, f := range map[error]*Store{outbound.ErrNil: {}, outbound.ErrInvalidLimit: {Store: leak.NewMemory(), Share: 0.5, Unlimited: true}} {
		b := outbound.Must(outbound.NewSharedBucket(f, "key", outbound.PerSecond(1)))
		for _, err := range []error{b.Hold(ctx, 1), b.Resume(ctx), b.SetLimits(ctx)} {
			if !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
	}
	var none *Store
	if _, err := outbound.Must(outbound.NewSharedBucket(none, "key", outbound.PerSecond(1))).Acquire(ctx, outbound.Cost{1}); !errors.Is(err, outbound.ErrNil) {
		t.Errorf("no fallback: %v", err)
	}
}

func TestAFallbackKeepsBoundedlyManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &switched{Store: leak.NewMemory()}
		f := &Store{Store: s, Share: 0.5}
		bucket := func(i int) *outbound.Bucket {
			return outbound.Must(outbound.NewSharedBucket(f, fmt.Sprint(i), outbound.Limit{Capacity: 2, LeakRate: 1}))
		}
		for i := range maxKeys + 100 {
			if err := bucket(i).Hold(ctx, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(f.seen); n != maxKeys {
			t.Errorf("%d holds are remembered", n)
		}
		s.away.Store(true)
		failed := 0
		for i := range maxKeys + 100 {
			if _, err := bucket(i).Acquire(ctx, outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
				failed++
			}
		}
		if failed != 100 || len(f.keys) != maxKeys {
			t.Errorf("%d calls failed, %d keys", failed, len(f.keys))
		}
		s.away.Store(false)
		for range 6 {
			time.Sleep(time.Second)
			_, _ = bucket(0).State(ctx)
		}
		synctest.Wait()
		if len(f.keys) != 0 || !f.breaker.in(there) {
			t.Errorf("%d keys after the return", len(f.keys))
		}
	})
}

// Beyond the bound the Store keeps nothing new of a key.
func TestUnlimitedAdmitsForAnyNumberOfKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &switched{Store: leak.NewMemory()}
		f := &Store{Store: s, Unlimited: true}
		bucket := func(key string) *outbound.Bucket {
			return outbound.Must(outbound.NewSharedBucket(f, key, outbound.Limit{Capacity: 2, LeakRate: 1}))
		}
		held := bucket("held")
		if err := held.Hold(ctx, time.Minute); err != nil {
			t.Fatal(err)
		}
		s.away.Store(true)
		for i := range maxKeys + 100 {
			b := bucket(fmt.Sprint(i))
			for range 3 {
				p, err := b.Acquire(ctx, outbound.Cost{1})
				if err != nil {
					t.Fatal(i, err)
				}
				p.Settle(outbound.Cost{})
			}
		}
		if _, err := held.Acquire(ctx, outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
			t.Errorf("in a hold: %v", err)
		}
		if len(f.keys) != maxKeys {
			t.Errorf("%d keys are remembered", len(f.keys))
		}
		time.Sleep(time.Minute)
		if _, err := held.Acquire(ctx, outbound.Cost{1}); err != nil {
			t.Errorf("after the hold: %v", err)
		}
	})
}

// switched is a store that fails while away is set.
type switched struct {
	leak.Store
	away atomic.Bool
}

func (s *switched) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if s.away.Load() {
		return leak.Reply{}, leak.ErrAway
	}
	return s.Store.Update(ctx, key, op)
}

// Every reply brings the levels of a calendar, so that they come from more keys than are kept.
func TestLevelsOfCalendarsMakeTheStoreForgetNoHold(t *testing.T) {
	f := &Store{Store: leak.NewMemory(), Share: 0.5}
	hours := &leak.Op{Limits: []leak.Limit{{Kind: leak.Hourly, Capacity: 10}}}
	var free, held leak.Reply
	free.State.Speed, held.State.Speed = 1, 1
	held.State.Rem = time.Hour
	for i := range 100 {
		f.remember(fmt.Sprint("held ", i), hours, &held)
	}
	for i := range 2 * maxKeys {
		f.remember(fmt.Sprint(i), hours, &free)
	}
	if len(f.seen) != 100 || len(f.levels) != maxKeys {
		t.Errorf("%d holds and %d levels are remembered", len(f.seen), len(f.levels))
	}
	for key := range f.levels { // one that is known makes no other go
		f.remember(key, hours, &held)
	}
	if len(f.levels) != maxKeys || len(f.seen) < maxKeys {
		t.Errorf("%d holds and %d levels are remembered", len(f.seen), len(f.levels))
	}
}

// The key counts by the calendar, its period is over, and nobody uses it again.
func TestAKeyThatNobodyUsesAgainIsForgotten(t *testing.T) {
	hour := outbound.Hourly(100).Of(0, "hour")
	rate := outbound.Limit{Capacity: 100, LeakRate: 0.01, Name: "rate"}
	for name, set := range map[string]bool{"a bucket's own limits": false, "limits that were set": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(2*time.Hour + time.Minute)
				s := &switched{Store: leak.NewMemory()}
				f := &Store{Store: s, Share: 0.5}
				limits := []outbound.Limit{hour, rate}
				b := outbound.Must(outbound.NewSharedBucket(f, "key", limits...))
				if set {
					limits[0].Capacity = 50
					if err := b.SetLimits(ctx, limits...); err != nil {
						t.Fatal(err)
					}
				}
				s.away.Store(true)
				_, _ = b.State(ctx)
				time.Sleep(time.Hour)
				if _, err := b.Acquire(ctx, outbound.Cost{10}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Hour)
				s.away.Store(false)
				time.Sleep(time.Hour) // rate drains meanwhile
				synctest.Wait()
				if len(f.keys) != 0 {
					t.Errorf("%d keys are left", len(f.keys))
				}
				if _, err := outbound.Must(outbound.NewSharedBucket(f, "other", rate)).Acquire(ctx, outbound.Cost{1}); err != nil || !f.breaker.in(there) {
					t.Errorf("%v; the store is used again: %v", err, f.breaker.in(there))
				}
			})
		})
	}
}

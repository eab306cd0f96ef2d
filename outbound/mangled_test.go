package outbound

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A reply that does not fit to its step is a StoreError or is not used, without a panic or a long wait.
// A bucket that has asked for slots in vain refuses calls until it asks again.
func TestStore_MangledRepliesAreStoreErrors(t *testing.T) {
	nan := math.NaN()
	for name, mangle := range map[string]func(r *store.Reply){
		"nothing":       func(r *store.Reply) { *r = store.Reply{} },
		"many charges":  func(r *store.Reply) { r.Charges = append(r.Charges, make([]store.Charge, 9)...) },
		"no charges":    func(r *store.Reply) { r.Charges, r.Refused = nil, false },
		"other limits":  func(r *store.Reply) { r.Limits, r.Number = []store.Limit{{Capacity: 1, Rate: 1, Kind: 99}}, 7 },
		"no numbers":    func(r *store.Reply) { r.Limits, r.Number = []store.Limit{{Capacity: nan, Rate: nan}}, 7 },
		"many limits":   func(r *store.Reply) { r.Limits, r.Number = make([]store.Limit, 99), 7 },
		"always stale":  func(r *store.Reply) { r.Stale = true },
		"level NaN":     func(r *store.Reply) { r.State.Level[0] = nan },
		"level huge":    func(r *store.Reply) { r.State.Level[0] = math.MaxFloat64 },
		"speed NaN":     func(r *store.Reply) { r.State.Speed = nan },
		"times huge":    func(r *store.Reply) { r.State.At, r.State.Last = math.MaxInt64, math.MaxInt64 },
		"times low":     func(r *store.Reply) { r.State.Rem, r.State.Skip = math.MinInt64, math.MinInt64 },
		"far limit":     func(r *store.Reply) { r.Limit = 99 },
		"negative wait": func(r *store.Reply) { r.Wait = -1 },
		"odd share":     func(r *store.Reply) { r.Share = []store.Limit{{Capacity: nan}} },
		"many slots":    func(r *store.Reply) { r.Allotment.Held = 99 },
		"few slots":     func(r *store.Reply) { r.Allotment.Held = math.MinInt },
		"free slots":    func(r *store.Reply) { r.Allotment.Free = 99 },
		"late slots":    func(r *store.Reply) { r.Allotment.Again = -1 },
		"many parts":    func(r *store.Reply) { r.State.Parts = make([]store.Part, 99) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := new(FakeStore)
				b := Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
					r, err := s.Update(ctx, key, op)
					mangle(&r)
					return r, err
				}), "k", Window(10, time.Minute), InFlight(2)))
				for action, do := range map[string]func() error{
					"acquire": func() error { _, err := b.Acquire(ctx, Cost{1}); return err },
					"reserve": func() error { _, err := b.Reserve(ctx, Cost{1}, time.Minute); return err },
					"book":    func() error { return b.Book(ctx, &BookRequest{Costs: []Cost{{1}, {1}}, Wait: time.Minute}) },
					"look":    func() error { _, err := b.States(ctx); return err },
					"explain": func() error { _, err := b.Explain(ctx, Cost{1}); return err },
					"fillup":  func() error { _, err := b.Fillup(ctx, Cost{1}); return err },
					"hold":    func() error { return b.Hold(ctx, time.Second) },
					"resume":  func() error { return b.Resume(ctx) },
					"set":     func() error { return b.SetLimits(ctx, Window(5, time.Minute), InFlight(2)) },
				} {
					begin, err := time.Now(), do()
					used, _ := b.slots().Crowd()
					if used > 2 {
						t.Errorf("%s: %d calls are in flight", action, used)
					}
					if _, failed := errors.AsType[*StoreError](err); err != nil && !failed && !strings.Contains(err.Error(), "in flight") {
						t.Errorf("%s: %v", action, err)
					} else if took := time.Since(begin); took > time.Minute {
						t.Errorf("%s took %v", action, took)
					} else if t.Logf("%s: %v", action, err); err == nil {
						for _, x := range b.Limits() {
							if x.Capacity != 10 && x.Capacity != 5 && x.Capacity != 2 {
								t.Errorf("%s: the limits are %v", action, b.Limits())
							}
						}
					}
				}
			})
		})
	}
}

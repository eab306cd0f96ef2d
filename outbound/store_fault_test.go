package outbound

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A settle that waits for the next booking of a queue is not lost with a call that gives up during its request.
func TestResend_EndedCallLosesNoSettle(t *testing.T) {
	for _, used := range []float64{40, 500} {
		synctest.Test(t, func(t *testing.T) {
			s := &FakeStore{Way: 10 * time.Millisecond}
			b := Must(NewSharedBucket(s, "key", Limit{Capacity: 1000, LeakRate: 1e-3}))
			p := admit(t, b, 100)
			defer b.Waiting(func() {})()
			p.Settle(Cost{used})
			s.Fail(errWhoKnows, false)
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			errorIs(t, errOf(b.Acquire(short, Cost{1})), context.DeadlineExceeded, "the error")
			for _, err := range []error{b.SetLimits(ctx, PerSecond(1)), b.Resume(ctx)} {
				errorIf(t, !errors.Is(err, errWhoKnows), "%v", err)
			}
			s.Fail(nil, false)
			if _, err := b.State(ctx); err != nil { // then the bucket knows that the store is available
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			for range 2 {
				s, err := b.State(ctx)
				errorIf(t, err != nil || math.Abs(s.Level-used) > 0.1, "level %v, %v; want %v", s.Level, err, used)
			}
		})
	}
}

// The bucket sends what a call has cost beyond its cost until the store has it, once in each outage. Units that the call
// would return are lost.
func TestResend_AddedUnitsOutlastAnOutage(t *testing.T) {
	for _, carried := range []bool{false, true} {
		for _, watched := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := &FakeStore{Way: 10 * time.Millisecond}
				b := Must(NewSharedBucket(s, "key", Limit{Capacity: 1000, LeakRate: 1e-3}, Limit{Capacity: 1000, LeakRate: 1e-3, Unit: 1}))
				p := admit(t, b, 100, 100)
				if watched {
					defer b.Waiting(func() {})()
				}
				s.Fail(errWhoKnows, carried)
				p.Settle(Cost{500, 20})
				for range 10 {
					errorIs(t, b.Book(ctx, &BookRequest{}), errWhoKnows, "the error")
					s.Fail(errWhoKnows, false)
				}
				s.Fail(nil, false)
				_, _ = b.State(ctx)
				synctest.Wait()
				time.Sleep(time.Second)
				want := [2]float64{500, 100}
				if carried {
					want = [2]float64{900, 20}
				}
				for range 2 {
					all, err := b.States(ctx)
					errorIf(t, err != nil || math.Abs(all[0].Level-want[0]) > 0.1 || math.Abs(all[1].Level-want[1]) > 0.1,
						"levels %v and %v, %v; want %v", all[0].Level, all[1].Level, err, want)
				}
			})
		}
	}
}

// A report reaches the store once.
func TestResend_OnceAndNotAgain(t *testing.T) {
	bubble(t, "The bucket sends a success again that the store has not received", func(t *testing.T) {
		s := &FakeStore{Way: 10 * time.Millisecond}
		b := Must(NewSharedBucket(s, "key", Limit{Capacity: 1000, LeakRate: 1000}))
		call := func(f func(*Permit)) {
			p := mustAcquire(t, b)
			f(p)
			p.Done()
			time.Sleep(2 * time.Second)
		}
		call(func(p *Permit) { p.Refused(time.Second) })
		call(func(*Permit) { s.Fail(errWhoKnows, false) })
		s.Fail(nil, false)
		call(func(*Permit) {})
		call(func(p *Permit) { p.Refused(time.Millisecond) })
		if s, err := b.State(ctx); err != nil || s.Speed == 1 {
			t.Errorf("%+v, %v: a refusal after a success slows down", s, err)
		}
	})
	bubble(t, "A settle that the store has received before the request failed is not sent again", func(t *testing.T) {
		s, fails := new(FakeStore), new(atomic.Bool)
		delivers := StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			if !fails.Load() {
				return s.Update(ctx, key, op)
			}
			reports := *op
			reports.Action, reports.Costs = store.Look, nil
			_, err := s.Update(ctx, key, &reports)
			return store.Reply{Reported: true}, errors.Join(errWhoKnows, err)
		})
		b := Must(NewSharedBucket(delivers, "key", Limit{Capacity: 1000, LeakRate: 1e-6}))
		p := admit(t, b, 100)
		defer b.Waiting(func() {})() // the settle is sent with the booking
		p.Settle(Cost{150})
		fails.Store(true)
		err := b.Book(ctx, &BookRequest{Costs: []Cost{{1}}, Wait: time.Hour})
		fatalIf(t, !errors.Is(err, errWhoKnows), "%v", err)
		fails.Store(false)
		for range 2 {
			is, err := b.State(ctx)
			errorIf(t, err != nil || math.Abs(is.Level-150) > 0.1, "level %v, %v; want 150", is.Level, err)
			time.Sleep(time.Second)
		}
	})
	t.Run("A reservation whose move has failed is not returned, because it may have been moved", func(t *testing.T) {
		s := new(FakeStore)
		b := Must(NewSharedBucket(s, "key", Limit{Capacity: 100, LeakRate: 1e-6}))
		k := book(t, b, BookRequest{Costs: []Cost{{4}}, Wait: time.Hour})
		s.Fail(errNotWritten, false)
		err := b.Book(ctx, &BookRequest{Move: k.Tickets[0], Costs: []Cost{{4}}, Wait: time.Hour})
		fatalIf(t, !errors.Is(err, errNotWritten), "%v", err)
		s.Fail(nil, false)
		must(t, b.Book(ctx, &BookRequest{Unused: k.Tickets[:1]}))
		n := level(t, b, 0)
		errorIf(t, math.Abs(n-4) > 0.01, "level %v, want 4", n)
	})
	t.Run("A store that returns neither a decision nor an error admits no call", func(t *testing.T) {
		b := Must(NewSharedBucket(StoreFunc(func(context.Context, string, *store.Op) (store.Reply, error) {
			return store.Reply{Limit: -1, State: store.New(0, 1)}, nil
		}), "k", Limit{Capacity: 1, LeakRate: 1}))
		_, err := b.Acquire(ctx, Cost{1})
		_, broken := errors.AsType[*StoreError](err)
		errorIf(t, !broken, "%v", err)
	})
}

var errWhoKnows = errors.New("who knows")

var errNotWritten = errors.New("not written")

// A request that the store computes and fails to write changes no charge of another call.
func TestStore_FailedWriteLeavesCharges(t *testing.T) {
	type request func(b *Bucket, p *Permit, other []Ticket) error
	for name, fails := range map[string]request{
		"another's move": func(b *Bucket, _ *Permit, other []Ticket) error {
			return b.Book(ctx, &BookRequest{Move: other[0], Costs: []Cost{{1}}, Wait: time.Hour})
		},
		"another's return": func(b *Bucket, _ *Permit, other []Ticket) error { return b.Book(ctx, &BookRequest{Unused: other}) },
		"a hold":           func(b *Bucket, p *Permit, _ []Ticket) error { p.Hold(time.Second); return errNotWritten },
	} {
		s := new(FakeStore)
		b := Must(NewSharedBucket(s, "key", Limit{Capacity: 100, LeakRate: 1e-6}))
		k := book(t, b, BookRequest{Costs: []Cost{{4}, {1}}, Wait: time.Hour, Horizon: time.Hour})
		p := k.Tickets[0].Permit()
		s.Fail(errNotWritten, false)
		err := fails(b, &p, k.Tickets[1:])
		errorIf(t, err == nil, "%s did not fail", name)
		s.Fail(nil, false)
		p.Settle(Cost{9})
		n := level(t, b, 0)
		errorIf(t, math.Abs(n-10) > 0.01, "after %s that failed, a call of 4 is settled to 9: level %v, want 10", name, n)
	}
}

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
		bubble(t, name, func(t *testing.T) {
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
				used, _ := b.core.Slots().Crowd()
				errorIf(t, used > 2, "%s: %d calls are in flight", action, used)
				if _, failed := errors.AsType[*StoreError](err); err != nil && !failed && !strings.Contains(err.Error(), "in flight") {
					t.Errorf("%s: %v", action, err)
				} else if took := time.Since(begin); took > time.Minute {
					t.Errorf("%s took %v", action, took)
				} else if t.Logf("%s: %v", action, err); err == nil {
					for _, x := range b.Limits() {
						errorIf(t, x.Capacity != 10 && x.Capacity != 5 && x.Capacity != 2,
							"%s: the limits are %v", action, b.Limits())
					}
				}
			}
		})
	}
}

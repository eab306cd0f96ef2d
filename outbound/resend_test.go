package outbound

import (
	"context"
	"errors"
	"math"
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
			if _, err := b.Acquire(short, Cost{1}); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			for _, err := range []error{b.SetLimits(ctx, PerSecond(1)), b.Resume(ctx)} {
				if !errors.Is(err, errWhoKnows) {
					t.Error(err)
				}
			}
			s.Fail(nil, false)
			if _, err := b.State(ctx); err != nil { // then the bucket knows that the store is available
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			for range 2 {
				if s, err := b.State(ctx); err != nil || math.Abs(s.Level-used) > 0.1 {
					t.Errorf("level %v, %v; want %v", s.Level, err, used)
				}
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
					if err := b.Book(ctx, &BookRequest{}); !errors.Is(err, errWhoKnows) {
						t.Error(err)
					}
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
					if err != nil || math.Abs(all[0].Level-want[0]) > 0.1 || math.Abs(all[1].Level-want[1]) > 0.1 {
						t.Errorf("levels %v and %v, %v; want %v", all[0].Level, all[1].Level, err, want)
					}
				}
			})
		}
	}
}

// The bucket sends a success again that the store has not received.
func TestResend_FailedSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
}

var errWhoKnows = errors.New("who knows")

// A settle that the store has received before the request failed is not sent again.
func TestResend_DeliveredSettleIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		if err := b.Book(ctx, &BookRequest{Costs: []Cost{{1}}, Wait: time.Hour}); !errors.Is(err, errWhoKnows) {
			t.Fatal(err)
		}
		fails.Store(false)
		for range 2 {
			if is, err := b.State(ctx); err != nil || math.Abs(is.Level-150) > 0.1 {
				t.Errorf("level %v, %v; want 150", is.Level, err)
			}
			time.Sleep(time.Second)
		}
	})
}

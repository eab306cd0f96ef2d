package outbound

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A queue waits, so that settles ride on its next booking. Another call gives up while its
// trip is under way.
func TestResend_EndedCallLosesNoSettle(t *testing.T) {
	for _, used := range []float64{40, 500} {
		synctest.Test(t, func(t *testing.T) {
			s := &slowly{Store: store.NewMemory()}
			b := Must(NewSharedBucket(s, "key", Limit{Capacity: 1000, LeakRate: 1e-3}))
			p, err := b.Acquire(ctx, Cost{100})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Waiting(func() {})()
			p.Settle(Cost{used})
			s.fails(errWhoKnows, false)
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
			s.fails(nil, false)
			if _, err := b.State(ctx); err != nil { // then the bucket knows that the store is back
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

// The bucket sends what a call has cost beyond its cost until the store has it, once in
// each outage. Units that would come back are lost.
func TestResend_AddedUnitsOutlastAnOutage(t *testing.T) {
	for _, carried := range []bool{false, true} {
		for _, watched := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := &slowly{Store: store.NewMemory()}
				b := Must(NewSharedBucket(s, "key", Limit{Capacity: 1000, LeakRate: 1e-3}, Limit{Capacity: 1000, LeakRate: 1e-3, Unit: 1}))
				p, err := b.Acquire(ctx, Cost{100, 100})
				if err != nil {
					t.Fatal(err)
				}
				if watched {
					defer b.Waiting(func() {})()
				}
				s.fails(errWhoKnows, carried)
				p.Settle(Cost{500, 20})
				for range 10 {
					if err := b.Book(ctx, &BookRequest{}); !errors.Is(err, errWhoKnows) {
						t.Error(err)
					}
					s.fails(errWhoKnows, false)
				}
				s.fails(nil, false)
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

func TestResend_FailedSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowly{Store: store.NewMemory()}
		b := Must(NewSharedBucket(s, "key", Limit{Capacity: 1000, LeakRate: 1000}))
		call := func(f func(*Permit)) {
			p, err := b.Acquire(ctx, Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			f(&p)
			p.Done()
			time.Sleep(2 * time.Second)
		}
		call(func(p *Permit) { p.Refused(time.Second) })
		call(func(*Permit) { s.fails(errWhoKnows, false) })
		s.fails(nil, false)
		call(func(*Permit) {})
		call(func(p *Permit) { p.Refused(time.Millisecond) })
		if s, err := b.State(ctx); err != nil || s.Speed == 1 {
			t.Errorf("%+v, %v: a refusal after a success slows down", s, err)
		}
	})
}

var errWhoKnows = errors.New("who knows")

// slowly is a store whose trips take a moment. While away is set they fail, with or without
// being carried out.
type slowly struct {
	store.Store
	mu      sync.Mutex // protects what follows
	away    error
	carries bool
}

// fails has all trips from now on fail with err, or none if it is nil.
func (s *slowly) fails(err error, carries bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away, s.carries = err, carries
}

func (s *slowly) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	select {
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
		return store.Reply{}, ctx.Err()
	}
	s.mu.Lock()
	away, carries := s.away, s.carries
	s.mu.Unlock()
	if away != nil && !carries {
		return store.Reply{}, away
	}
	r, err := s.Store.Update(ctx, key, op)
	if away != nil {
		return store.Reply{}, away
	}
	return r, err
}

// delivers is a store that has sent the reports of an operation on a trip of their own, before the one that fails.
type delivers struct {
	store.Store
	fails atomic.Bool
}

func (d *delivers) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if !d.fails.Load() {
		return d.Store.Update(ctx, key, op)
	}
	reports := *op
	reports.Action, reports.Costs = store.Look, nil
	if _, err := d.Store.Update(ctx, key, &reports); err != nil {
		return store.Reply{}, err
	}
	return store.Reply{Reported: true}, errWhoKnows
}

func TestResend_DeliveredSettleIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &delivers{Store: store.NewMemory()}
		b := Must(NewSharedBucket(s, "key", Limit{Capacity: 1000, LeakRate: 1e-6}))
		p, err := b.Acquire(ctx, Cost{100})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Waiting(func() {})() // the settle rides on the booking
		p.Settle(Cost{150})
		s.fails.Store(true)
		if err := b.Book(ctx, &BookRequest{Costs: []Cost{{1}}, Wait: time.Hour}); !errors.Is(err, errWhoKnows) {
			t.Fatal(err)
		}
		s.fails.Store(false)
		for range 2 {
			if is, err := b.State(ctx); err != nil || math.Abs(is.Level-150) > 0.1 {
				t.Errorf("level %v, %v; want 150", is.Level, err)
			}
			time.Sleep(time.Second)
		}
	})
}

package fallback_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// book books on b and returns the tickets.
func (w *worker) book(b *outbound.Bucket, k outbound.Booking) []outbound.Ticket {
	w.Helper()
	if err := b.Book(background, &k); err != nil {
		w.Fatal(err)
	}
	return k.Tickets
}

// The store is charged once with the units that went without it, less those that came back.
func TestTheStoreIsChargedOnceWithUnitsThatWentWithoutIt(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(w *worker)
		want float64
	}{
		"a meter": {func(w *worker) {
			if _, err := w.b.Fillup(background, outbound.Cost{12}); err != nil {
				w.Fatal(err)
			}
		}, 12},
		"bookings, two of them given back": {func(w *worker) {
			cost := outbound.Cost{4}
			tickets := w.book(w.b, outbound.Booking{Costs: []outbound.Cost{cost, cost, cost, cost, cost}})
			if len(tickets) != 5 {
				w.Fatalf("%d tickets", len(tickets))
			}
			w.book(w.b, outbound.Booking{Back: tickets[3:]})
		}, 12},
		"a ticket that is booked again": {func(w *worker) {
			cost := outbound.Cost{12}
			tickets := w.book(w.b, outbound.Booking{Costs: []outbound.Cost{cost}})
			if moved := w.book(w.b, outbound.Booking{Move: tickets[0], Costs: []outbound.Cost{cost}}); len(moved) != 1 {
				w.Fatal("it was not booked again")
			}
		}, 12},
		"a call that has cost more": {func(w *worker) {
			p, err := w.b.Acquire(background, outbound.Cost{5})
			if err != nil {
				w.Fatal(err)
			}
			p.Settle(outbound.Cost{12})
		}, 12},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := leak.NewMemory()
				w := newWorker(t, m, &fallback.Store{Share: 0.5}, slow)
				w.set(true)
				w.take(outbound.Cost{1})
				time.Sleep(3 * time.Hour)
				c.do(w)
				w.reconnect()
				s, err := outbound.Must(outbound.NewSharedBucket(m, "key", slow)).State(background)
				if err != nil || math.Abs(s.Level-c.want) > 0.2 {
					t.Errorf("level %v, %v; want %v", s.Level, err, c.want)
				}
			})
		})
	}
}

// Another worker reached the store all the while and has set other limits.
func TestADebtIsChargedUnderTheLimitsThatWereSetMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := leak.NewMemory()
		w := newWorker(t, m, &fallback.Store{Share: 0.5}, slow)
		other := outbound.Must(outbound.NewSharedBucket(m, "key", slow))
		w.set(true)
		w.take(outbound.Cost{1})
		time.Sleep(3 * time.Hour)
		for range 20 {
			if _, err := w.b.Acquire(background, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := other.SetLimits(background, outbound.Limit{Capacity: 50, LeakRate: 0.02, Name: "new"}); err != nil {
			t.Fatal(err)
		}
		w.reconnect()
		for _, b := range []*outbound.Bucket{other, w.b} {
			if s, err := b.State(background); err != nil || s.Limit.Capacity != 50 || math.Abs(s.Level-20) > 0.3 {
				t.Errorf("%+v, %v; want a level of 20 in 50", s, err)
			}
		}
	})
}

func TestADebtIsChargedUnderABucketsOwnLimitsWhenNoneAreSetAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := leak.NewMemory()
		w := newWorker(t, m, &fallback.Store{Share: 0.5}, slow)
		other := outbound.Must(outbound.NewSharedBucket(m, "key", slow))
		if err := other.SetLimits(background, outbound.Limit{Capacity: 50, LeakRate: 0.01, Name: "set"}); err != nil {
			t.Fatal(err)
		}
		w.take(outbound.Cost{1}) // this call hears of them
		w.set(true)
		w.take(outbound.Cost{1})
		time.Sleep(3 * time.Hour)
		for range 20 {
			if _, err := w.b.Acquire(background, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := other.SetLimits(background); err != nil {
			t.Fatal(err)
		}
		w.reconnect()
		for _, b := range []*outbound.Bucket{w.b, other} {
			if s, err := b.State(background); err != nil || s.Limit.Capacity != slow.Capacity || s.Level < 19 || s.Level > 20 {
				t.Errorf("%+v, %v; want a level of 20 in %v", s, err, slow.Capacity)
			}
		}
	})
}

func TestAChargeGivesUpIfTheLimitsChangeAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fickle{Store: leak.NewMemory()}
		w := newWorker(t, m, &fallback.Store{Share: 0.5}, slow)
		w.set(true)
		w.take(outbound.Cost{1})
		time.Sleep(3 * time.Hour)
		if n := w.take(outbound.Cost{1}); n != 50 {
			t.Fatalf("%d went", n)
		}
		w.set(false)
		time.Sleep(10 * time.Second)
		var failed *outbound.StoreError
		if _, err := w.b.Acquire(background, outbound.Cost{1}); !errors.As(err, &failed) || errors.Is(err, outbound.ErrAway) {
			t.Errorf("while they change: %v", err)
		}
		m.calm = true
		if s, err := w.b.State(background); err != nil || s.Level < 49 {
			t.Errorf("once they do not: %+v, %v", s, err)
		}
	})
}

// fickle is a store whose limits change before each charge.
type fickle struct {
	leak.Store
	stamp int64
	calm  bool
}

func (f *fickle) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	if op.Action == leak.Meter && !f.calm {
		f.stamp++
		return leak.Reply{Stale: true, Limits: []leak.Limit{{Capacity: 100, Rate: 0.01}}, Stamp: f.stamp}, nil
	}
	if f.calm && op.Stamp != 0 {
		return leak.Reply{Stale: true}, nil // no limits are set any more
	}
	return f.Store.Update(ctx, key, op)
}

func TestASlowDownGoesOnWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.5}, outbound.Limit{Capacity: 100, LeakRate: 1})
		for range 2 { // a success, which makes the next refusal slow the key down
			p, err := w.b.Acquire(background, outbound.Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			p.Done()
		}
		p, err := w.b.Acquire(background, outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		p.Refused(time.Second)
		time.Sleep(2 * time.Second)
		before, err := w.b.State(background)
		if err != nil || before.Speed > 0.91 {
			t.Fatalf("speed %v, %v", before.Speed, err)
		}
		w.set(true)
		s, err := w.b.State(background)
		if err != nil || math.Abs(s.Speed-before.Speed) > 1e-3 {
			t.Errorf("speed %v, %v; want %v", s.Speed, err, before.Speed)
		}
		time.Sleep(time.Second)
		if s, err = w.b.State(background); err != nil || s.Speed >= 1 || s.Speed <= before.Speed {
			t.Errorf("a second later speed %v, %v", s.Speed, err)
		}
	})
}

package queue

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// mute is a store that carries the trip out which moves a place, and loses the reply.
type mute struct {
	store.Store
	moves int           // such trips so far
	takes time.Duration // how long the trip takes to fail
	empty bool          // its reply is there, and says nothing
}

func (m *mute) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	moves := op.Action == store.Book && op.Move != nil
	r, err := m.Store.Update(ctx, key, op)
	if !moves || err != nil {
		return r, err
	}
	m.moves++
	time.Sleep(m.takes)
	if m.empty {
		return store.Reply{}, nil
	}
	return store.Reply{}, errAway
}

// 1 000 units go, the next 1 000 wait for 5 s. Then the first come back, the store books the place anew and loses its
// reply. It gives the room of the place as it was to another worker.
func TestQueue_CallFailsIfItsReservationMayHaveMoved(t *testing.T) {
	limit := outbound.Limit{Capacity: 1000, LeakRate: 200}
	for _, c := range []mute{{}, {takes: 10 * time.Second}, {empty: true}} { // 10 s: the place as it was is due during the trip
		synctest.Test(t, func(t *testing.T) {
			m := &mute{Store: store.NewMemory(), takes: c.takes, empty: c.empty}
			b := shared(t, m, limit)
			q := New(b, Config{})
			var h outboundtest.History
			first, err := q.Acquire(bg, outbound.Cost{1000})
			if err != nil {
				t.Fatal(err)
			}
			var broken *outbound.StoreError
			done := make(chan error, 1)
			go func() {
				_, err := q.Acquire(bg, outbound.Cost{1000})
				if err == nil {
					h.Add(time.Now(), 1000)
				}
				done <- err
			}()
			pass(time.Second)
			first.Settle(outbound.Cost{}) // it was not sent, so the history has nothing of it
			first.Done()
			pass(3700 * ms)
			// The store has the room of the first place again.
			other := shared(t, m.Store, limit)
			for range 10 {
				if _, err := other.Acquire(bg, outbound.Cost{100}); err == nil {
					h.Add(time.Now(), 100)
				}
				pass(50 * ms)
			}
			if err := <-done; !errors.As(err, &broken) || !c.empty && !errors.Is(err, errAway) {
				t.Errorf("%+v: %v, want the store's error", c, err)
			}
			if m.moves != 1 {
				t.Errorf("%d places were moved, want 1", m.moves)
			}
			if err := h.Check(limit.Capacity, limit.LeakRate, 0); err != nil {
				t.Error(err)
			}
			if s := q.Stats(); s.Admitted != 1 || s.Refused != 1 {
				t.Errorf("%+v", s)
			}
			pass(time.Minute)
			if _, err := q.Acquire(bg, outbound.Cost{1000}); err != nil {
				t.Errorf("a minute later: %v", err)
			}
		})
	}
}

// Nobody inherits a place that may have moved: neither the call behind one that cancels during the trip, nor the store,
// which would take the place as it was for one that is still booked.
func TestQueue_MovedReservationIsNotInherited(t *testing.T) {
	limit := outbound.Limit{Capacity: 1000, LeakRate: 200}
	for _, closes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := &mute{Store: store.NewMemory(), takes: time.Second}
			q := New(shared(t, m, limit), Config{})
			first, err := q.Acquire(bg, outbound.Cost{1000})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(bg)
			errs := make(chan error, 2)
			for _, ctx := range []context.Context{ctx, bg} {
				go func() {
					_, err := q.Acquire(ctx, outbound.Cost{1000})
					errs <- err
				}()
				pass(10 * ms)
			}
			pass(time.Second)
			settled := time.Now()
			first.Settle(outbound.Cost{})
			first.Done()
			pass(500 * ms) // the trip is under way, which takes a second
			want := errAway
			if cancel(); closes {
				want = ErrClosed
				_ = q.Close()
			}
			if err := <-errs; !errors.Is(err, context.Canceled) && err != ErrClosed {
				t.Error(err)
			}
			if err := <-errs; !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
			pass(2 * time.Second)
			// The place counts from when the settle came, and nothing of it has gone back.
			s, err := shared(t, m.Store, limit).State(bg)
			if want := 1000 - 200*time.Since(settled).Seconds(); err != nil || math.Abs(s.Level-want) > 0.01 {
				t.Errorf("level %v, %v, want %v", s.Level, err, want)
			}
		})
	}
}

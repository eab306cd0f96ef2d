package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A call that comes while nobody waits can give up during its trip. The place that the trip
// books goes back.
func TestQueue_CallCanGiveUpDuringItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		limit := outbound.Limit{Capacity: 1, LeakRate: 0.01}
		q := New(shared(t, &far{Store: m, way: time.Second}, limit), Config{})
		for _, want := range []error{context.DeadlineExceeded, context.Canceled, ErrClosed} {
			ctx, cancel := context.WithTimeout(bg, time.Hour)
			switch want {
			case context.DeadlineExceeded:
				ctx, cancel = context.WithTimeout(bg, 50*ms)
			case context.Canceled:
				time.AfterFunc(50*ms, cancel)
			default:
				time.AfterFunc(50*ms, func() { _ = q.Close() })
			}
			begin := time.Now()
			if _, err := q.Acquire(ctx, outbound.Cost{1}); !errors.Is(err, want) || time.Since(begin) != 50*ms {
				t.Errorf("%v after %v, want %v", err, time.Since(begin), want)
			}
			cancel()
			pass(10 * time.Second)
			if s, err := shared(t, m, limit).State(bg); err != nil || s.Level != 0 {
				t.Errorf("level %v, %v: its place was not given back", s.Level, err)
			}
		}
		if s := q.Stats(); s.Cancelled != 1 || s.Refused != 2 || s.Admitted != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A call that comes alone waits for one trip and no longer.
func TestQueue_SingleCallTakesOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: store.NewMemory(), way: 10 * ms}
		q := New(shared(t, s, outbound.Limit{Capacity: 5, LeakRate: 0.1}), Config{MaxWait: 5 * time.Second})
		begin := time.Now()
		for range 5 {
			if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(begin); took != 100*ms {
			t.Errorf("five calls, one after the other, took %v", took)
		}
		var full *outbound.ThrottledError
		if _, err := q.Acquire(bg, outbound.Cost{1}); !errors.As(err, &full) || full.RetryAfter < 9*time.Second {
			t.Error(err)
		}
		synctest.Wait()
		if n := s.trips.Load(); n > 6 {
			t.Errorf("%d trips for six calls", n)
		}
		if s := q.Stats(); s.Admitted != 5 || s.Waited != 0 || s.Refused != 1 {
			t.Errorf("%+v", s)
		}
	})
}

package queue

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Shutdown refuses new calls and returns when the waiting calls have left, or when its ctx ends.
func TestShutdown_RefusesNewCallsAndDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{})
		all, begin := comeAll(5, bg, q, 1), time.Now()
		ctx, cancel := context.WithTimeout(bg, 2500*ms)
		defer cancel()
		if err := q.Shutdown(ctx); err != context.DeadlineExceeded || time.Since(begin) != 2500*ms {
			t.Errorf("with 2.5 s: %v after %v", err, time.Since(begin))
		}
		if _, err := q.Acquire(bg, one); !errors.Is(err, ErrClosed) || errors.Is(err, outbound.ErrThrottled) {
			t.Errorf("a new call: %v", err)
		}
		for range 2 {
			if err := q.Shutdown(bg); err != nil || time.Since(begin) != 4*time.Second {
				t.Errorf("without a deadline: %v after %v, want nil after 4s", err, time.Since(begin))
			}
		}
		synctest.Wait()
		if n, _ := all.admitted(); n != 5 {
			t.Errorf("%d left, want all 5", n)
		}
	})
}

// Close refuses all calls, and leaves no reservation behind.
func TestClose_RefusesAllAndReturnsReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1})
		q := New(b, Config{})
		all := comeAll(5, bg, q, 1)
		for range 2 {
			if err := q.Close(); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		for _, c := range append(all[1:], come(bg, q, 1)) {
			if !errors.Is(c.ended().err, ErrClosed) {
				t.Error(c.ended().err)
			}
		}
		if s, _ := b.State(bg); q.Len() != 0 || s.Level != 1 {
			t.Errorf("%d wait, level %v; want none, and the unit of the call that left", q.Len(), s.Level)
		}
	})
}

// A call beyond MaxLen is refused with the time until it could leave.
func TestConfig_MaxLenRefusesWithTheRetryTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{MaxLen: 3})
		comeAll(4, bg, q, 1)
		if c := come(bg, q, 1); !errors.Is(c.ended().err, ErrFull) || c.refused().RetryAfter != 4*time.Second {
			t.Errorf("%v", c.ended().err)
		}
		pass(10 * time.Second)
	})
}

// An invalid Queue or Config is an error of each call and of Explain, and charges nothing.
func TestConfig_InvalidIsAnErrorOfEachCall(t *testing.T) {
	b := bucket(t, outbound.PerSecond(1))
	queues := []*Queue{nil, New(nil, Config{})}
	for _, c := range []Config{
		{MaxLen: -1}, {MaxWait: -1}, {Tolerance: -1}, {Tolerance: time.Second},
		{Weight: -1}, {Weight: math.NaN()}, {Weight: math.Inf(1)}, {Weight: math.Inf(-1)}, {Weight: 1e-10}, {Weight: 1e10},
	} {
		queues = append(queues, New(b, c))
	}
	for i, q := range queues {
		_, err := q.Acquire(bg, one)
		if _, e := q.Explain(bg, one); !errors.Is(err, outbound.ErrInvalid) || !errors.Is(e, outbound.ErrInvalid) {
			t.Errorf("queue %d: %v, %v", i, err, e)
		}
	}
	if s, _ := b.State(bg); s.Level != 0 {
		t.Errorf("level %v", s.Level)
	}
}

package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

func contextWithCancel() (context.Context, context.CancelFunc) { return context.WithCancel(bg) }

func TestShutdown_RefusesNewCallsAndDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := line{q: New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{})}
		for i := range 5 {
			l.arrive(bg, i, outbound.Cost{1}, nil)
		}
		begin := time.Now()
		ctx, cancel := context.WithTimeout(bg, 2500*time.Millisecond)
		defer cancel()
		if err := l.q.Shutdown(ctx); err != context.DeadlineExceeded || time.Since(begin) != 2500*time.Millisecond {
			t.Errorf("with 2.5 s: %v after %v", err, time.Since(begin))
		}
		if _, err := l.q.Acquire(bg, outbound.Cost{1}); err != ErrClosed || errors.Is(err, outbound.ErrThrottled) {
			t.Errorf("a newcomer: %v", err)
		}
		if err := l.q.Shutdown(bg); err != nil || time.Since(begin) != 4*time.Second {
			t.Errorf("without a deadline: %v after %v, want nil after 4s", err, time.Since(begin))
		}
		synctest.Wait()
		if len(l.order) != 5 {
			t.Errorf("%d went, want all 5", len(l.order))
		}
		if err := l.q.Shutdown(bg); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

func TestClose_RefusesAllAndReturnsReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1})
		q := New(b, Config{})
		for range 5 {
			go func() {
				if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil && err != ErrClosed {
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if s, _ := b.State(bg); q.Len() != 0 || s.Level != 1 {
			t.Errorf("%d wait, level %v; want nobody, and the unit of the one that went", q.Len(), s.Level)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		if _, err := q.Acquire(bg, outbound.Cost{1}); err != ErrClosed {
			t.Error(err)
		}
	})
}

func TestConfig_MaxLenRefusesWithTheRetryTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := line{q: New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{MaxLen: 3})}
		for i := range 4 {
			l.arrive(bg, i, outbound.Cost{1}, nil)
		}
		_, err := l.q.Acquire(bg, outbound.Cost{1})
		var full *outbound.ThrottledError
		if !errors.Is(err, ErrFull) || !errors.As(err, &full) || full.RetryAfter != 4*time.Second {
			t.Errorf("%v", err)
		}
		pass(10 * time.Second)
	})
}

func TestConfig_InvalidIsAnErrorOfEachCall(t *testing.T) {
	b := bucket(t, outbound.PerSecond(1))
	for _, c := range []Config{{MaxLen: -1}, {MaxWait: -1}, {Tolerance: -1}, {Tolerance: time.Second}} {
		if _, err := New(b, c).Acquire(bg, outbound.Cost{1}); !errors.Is(err, outbound.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := New(nil, Config{}).Acquire(bg, outbound.Cost{1}); !errors.Is(err, outbound.ErrInvalid) {
		t.Errorf("nil bucket: %v", err)
	}
	var q *Queue
	if _, err := q.Acquire(bg, outbound.Cost{1}); !errors.Is(err, outbound.ErrInvalid) {
		t.Errorf("nil queue: %v", err)
	}
	if s, _ := b.State(bg); s.Level != 0 {
		t.Errorf("level %v", s.Level)
	}
}

package queue

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

var bg = context.Background()

// pass lets time pass, and returns when all goroutines that it has woken wait again.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func bucket(t testing.TB, limits ...outbound.Limit) *outbound.Bucket {
	b, err := outbound.NewBucket("test", limits...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestQueue_LeavesAtTheRateInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 2, LeakRate: 10}), Config{})
		begin := time.Now()
		var mu sync.Mutex
		var order []int
		var at []time.Duration
		for i := range 60 {
			go func() {
				p, err := q.Acquire(bg, outbound.Cost{1})
				if err != nil {
					t.Error(err)
				}
				defer p.Done()
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
				at = append(at, time.Since(begin))
			}()
			synctest.Wait()
		}
		pass(10 * time.Second)
		synctest.Wait()
		if len(order) != 60 {
			t.Fatalf("%d calls went, want 60", len(order))
		}
		for i, n := range order {
			want := max(0, time.Duration(i-1)) * 100 * time.Millisecond
			if n != i || at[i] < want || at[i] > want+time.Microsecond {
				t.Errorf("place %d went to call %d at %v, want call %d at %v", i, n, at[i], i, want)
			}
		}
		if s := q.Stats(); s.Late != 0 || s.Admitted != 60 || s.Waited != 58 || s.Waiting != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestQueue_RefusesEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{MaxWait: 3 * time.Second})
		begin := time.Now()
		for range 4 {
			go q.Acquire(bg, outbound.Cost{1})
			synctest.Wait()
		}
		_, err := q.Acquire(bg, outbound.Cost{1})
		var full *outbound.ThrottledError
		if !errors.As(err, &full) || full.RetryAfter != 4*time.Second || full.Err != nil {
			t.Errorf("beyond MaxWait: %v", err)
		}
		ctx, cancel := context.WithTimeout(bg, 2*time.Second)
		defer cancel()
		_, err = q.Acquire(ctx, outbound.Cost{1})
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, outbound.ErrThrottled) || !errors.As(err, &full) || !full.Timeout() {
			t.Errorf("beyond the deadline: %v", err)
		}
		if time.Since(begin) != 0 {
			t.Errorf("refused only after %v", time.Since(begin))
		}
		pass(5 * time.Second)
	})
}

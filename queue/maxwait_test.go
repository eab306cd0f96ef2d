package queue

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A MaxWait of a whole number of intervals admits the call that goes exactly at its end,
// however the intervals are rounded.
func TestMaxWait_AdmitsACallExactlyAtItsEnd(t *testing.T) {
	for _, l := range []outbound.Limit{{Capacity: 1, LeakRate: 10}, {Capacity: 1, LeakRate: 3}, {Capacity: 2, LeakRate: 0.7}, {Capacity: 1, LeakRate: 1e4 / 7}, outbound.PerMinute(17)} {
		for _, memory := range []bool{true, false} {
			for _, intervals := range []float64{1, 3, 70} {
				synctest.Test(t, func(t *testing.T) {
					b := bucket(t, l)
					if !memory {
						b = shared(t, store.NewMemory(), l)
					}
					q := New(b, Config{MaxWait: time.Duration(intervals / l.LeakRate * 1e9)})
					n := int(l.Capacity + intervals)
					went := make(chan error, n)
					for range n {
						go func() {
							_, err := q.Acquire(bg, outbound.Cost{1})
							went <- err
						}()
						synctest.Wait()
					}
					var full *outbound.ThrottledError
					if _, err := q.Acquire(bg, outbound.Cost{1}); !errors.As(err, &full) {
						t.Errorf("%v, %v intervals, in memory %v: one more: %v", l, intervals, memory, err)
					}
					pass(time.Hour)
					for range n {
						if err := <-went; err != nil {
							t.Errorf("%v, %v intervals, in memory %v: %v", l, intervals, memory, err)
						}
					}
				})
			}
		}
	}
}

// A queue that catches up with another worker books places far behind its first. A call that would
// wait longer than its MaxWait for one of those is refused then, and keeps nobody else from it.
func TestMaxWait_HoldsWhileTheQueueCatchesUp(t *testing.T) {
	for _, memory := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			l := outbound.Limit{Capacity: 1, LeakRate: 1}
			b := bucket(t, l)
			if !memory {
				b = shared(t, store.NewMemory(), l)
			}
			const most = 7500 * ms
			q := New(b, Config{MaxWait: most})
			var went, refused atomic.Int32
			for range 8 {
				go func() {
					came := time.Now()
					_, err := q.Acquire(bg, outbound.Cost{1})
					var full *outbound.ThrottledError
					switch waited := time.Since(came); {
					case errors.As(err, &full):
						if refused.Add(1); waited > 2*time.Second || (full.RetryAfter+waited-8*time.Second).Abs() > rounding {
							t.Errorf("in memory %v: refused after %v: %v", memory, waited, err)
						}
					case err != nil || waited > most+rounding:
						t.Errorf("in memory %v: waited %v: %v", memory, waited, err)
					default:
						went.Add(1)
					}
				}()
				synctest.Wait()
			}
			pass(1500 * ms) // the queue has begun its backlog
			other := outbound.BookRequest{Costs: []outbound.Cost{{1}}, Wait: time.Hour, Claim: math.Inf(1)}
			for range 4 {
				if err := b.Book(bg, &other); err != nil {
					t.Fatal(err)
				}
			}
			pass(time.Minute)
			if went.Load() != 4 || refused.Load() != 4 {
				t.Errorf("in memory %v: %d went and %d were refused, want 4 and 4", memory, went.Load(), refused.Load())
			}
		})
	}
}

// A call whose place was lost, because the process was late, gets the next one. If that is after its MaxWait, the
// call is refused at once, and the next in line has the place.
func TestMaxWait_HoldsForALostReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 1500 * ms
		q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{MaxWait: most})
		begin := time.Now()
		type result struct {
			at  time.Duration
			err error
		}
		call := func() <-chan result {
			done := make(chan result, 1)
			go func() {
				_, err := q.Acquire(bg, outbound.Cost{1})
				done <- result{time.Since(begin), err}
			}()
			synctest.Wait()
			return done
		}
		call()
		first := call()
		pass(600 * ms)
		second := call()
		pass(397 * ms) // both have places
		pause(q, 100*ms)
		pass(time.Minute)
		var full *outbound.ThrottledError
		if r := <-first; !errors.As(r.err, &full) || r.at > 1100*ms || full.RetryAfter != 2*time.Second-r.at {
			t.Errorf("the first: %v after %v", r.err, r.at)
		}
		if r := <-second; r.err != nil || r.at != 2*time.Second {
			t.Errorf("the second: %v after %v", r.err, r.at)
		}
	})
}

// A refusal by what the queue knows has the bucket's key and the limit's label, as the bucket's own refusals have.
func TestQueue_RefusalHasTheLabelOfTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.PerMinute(60)), Config{MaxWait: 3 * time.Second / 2})
		for range 2 {
			go q.Acquire(bg, outbound.Cost{1})
		}
		synctest.Wait()
		var full *outbound.ThrottledError
		if _, err := q.Acquire(bg, outbound.Cost{1}); !errors.As(err, &full) || full.Limit != "60 per 1m" || full.Key != "test" || full.RetryAfter == 0 {
			t.Errorf("%v", err)
		}
		pass(2 * time.Second)
	})
}

// The longest possible MaxWait does not overflow.
func TestMaxWait_LongestDoesNotOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.PerSecond(10)), Config{MaxWait: 1<<63 - 1})
		for range 3 {
			if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Error(err)
			}
		}
	})
}

package queue

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// A MaxWait of a whole number of intervals admits the call that goes exactly at its end,
// however the intervals are rounded.
func TestMaxWaitAdmitsACallThatGoesExactlyAtItsEnd(t *testing.T) {
	for _, l := range []outbound.Limit{{Capacity: 1, LeakRate: 10}, {Capacity: 1, LeakRate: 3}, {Capacity: 2, LeakRate: 0.7}, {Capacity: 1, LeakRate: 1e4 / 7}, outbound.PerMinute(17)} {
		for _, memory := range []bool{true, false} {
			for _, intervals := range []float64{1, 3, 70} {
				synctest.Test(t, func(t *testing.T) {
					b := bucket(t, l)
					if !memory {
						b = shared(t, leak.NewMemory(), l)
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

package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Waiting calls leave when a fixed window is over, as many as the next admits, and not when single calls of
// the last one are a window ago.
func TestFixedWindow_AllLeaveWhenItEnds(t *testing.T) {
	const n, window = 10, time.Second + slack
	for _, first := range []time.Duration{0, 90 * ms} { // from one call of the first window to the next
		bothWays(t, []outbound.Limit{outbound.FixedWindow(n, time.Second)}, func(t *testing.T, b *outbound.Bucket) {
			q, begin, all := New(b, Config{}), time.Now(), calls(nil)
			for range n {
				all = append(all, come(bg, q, 1))
				time.Sleep(first)
			}
			all = append(all, comeAll(2*n+1, bg, q, 1)...)
			if in := q.Stats().NextIn; in != window-time.Since(begin) {
				t.Errorf("the first leaves in %v, want %v", in, window-time.Since(begin))
			}
			pass(4 * window)
			for i, c := range all[n:] {
				want := time.Duration(1+i/n) * window
				if d := c.ended().left.Sub(begin) - want; c.ended().err != nil || d < 0 || d > 20*ms {
					t.Errorf("call %d leaves %v after %v: %v", n+i, d, want, c.ended().err)
				}
			}
		})
	}
}

// The queue pauses until its first call can leave. If that one gives up, the next may leave sooner.
func TestFixedWindow_CancelledHeadDelaysNoOther(t *testing.T) {
	bothWays(t, []outbound.Limit{outbound.FixedWindow(10, time.Minute)}, func(t *testing.T, b *outbound.Bucket) {
		admitted(t, b, 8)
		q := New(b, Config{})
		ctx, cancel := context.WithCancel(bg)
		come(ctx, q, 5)
		c := come(bg, q, 1)
		time.Sleep(time.Second)
		cancel()
		if pass(time.Minute); c.ended().err != nil || c.took() != time.Second {
			t.Errorf("the next leaves %v after it came, and the first gave up after 1s: %v", c.took(), c.ended().err)
		}
	})
}

// Calls that come straight to the bucket may be first at the end of a fixed window, because nothing can
// be reserved in the next one. What they leave is used by the queue, at each end.
func TestFixedWindow_QueueUsesWhatOthersLeave(t *testing.T) {
	const n, window = 10, time.Second + slack
	bothWays(t, []outbound.Limit{outbound.FixedWindow(n, time.Second)}, func(t *testing.T, b *outbound.Bucket) {
		begin := time.Now()
		ctx, cancel := context.WithCancel(bg)
		go func() { // 8 of 10 in each window
			for ctx.Err() == nil {
				_, _ = b.Acquire(bg, outbound.Cost{8}) // it fails if the queue is first
				time.Sleep(window)
			}
		}()
		synctest.Wait()
		all := comeAll(7, bg, New(b, Config{}), 1)
		time.Sleep(10 * window)
		cancel()
		pass(window)
		for i, c := range all {
			if at, most := c.ended().left.Sub(begin), time.Duration(i/2)*window; c.ended().err != nil || at > most || at%window != 0 {
				t.Errorf("call %d leaves after %v, want an end of a window up to %v: %v", i, at, most, c.ended().err)
			}
		}
	})
}

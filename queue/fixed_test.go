package queue

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// The calls of a line go when a fixed window is over, all that it has room for, and not when single calls of
// the last one are a window ago. A bucket that is shared books their places, of which none counts on that.
func TestFixedWindow_AllLeaveWhenItEnds(t *testing.T) {
	const n, window = 10, time.Second + slack
	for name, of := range buckets(outbound.FixedWindow(n, time.Second)) {
		for _, first := range []time.Duration{0, 90 * ms} { // from one call of the first window to the next
			synctest.Test(t, func(t *testing.T) {
				b, begin := of(), time.Now()
				q := New(b, Config{})
				var sent departures
				call := func() {
					p, err := q.Acquire(bg, outbound.Cost{1})
					if err != nil {
						t.Error(err)
					}
					sent.went()
					p.Done()
				}
				for range n {
					go call()
					synctest.Wait()
					time.Sleep(first)
				}
				for range 2*n + 1 {
					go call()
				}
				synctest.Wait()
				if in := q.Stats().NextIn; in != window-time.Since(begin) {
					t.Errorf("%s: the first goes in %v, want %v", name, in, window-time.Since(begin))
				}
				time.Sleep(4 * window)
				synctest.Wait()
				slices.SortFunc(sent.at, time.Time.Compare)
				for i, at := range sent.at[n:] {
					want := begin.Add(time.Duration(1+i/n) * window)
					if d := at.Sub(want); d < 0 || d > 20*ms {
						t.Errorf("%s: call %d goes %v after %v", name, n+i, at.Sub(want), want.Sub(begin))
					}
				}
				if len(sent.at) != 3*n+1 {
					t.Errorf("%s: %d have gone", name, len(sent.at))
				}
			})
		}
	}
}

// The line pauses until its first call can go. If that one gives up, the next may go sooner.
func TestFixedWindow_CancelledHeadDelaysNoOther(t *testing.T) {
	for name, of := range buckets(outbound.FixedWindow(10, time.Minute)) {
		synctest.Test(t, func(t *testing.T) {
			b := of()
			if _, err := b.Acquire(bg, outbound.Cost{8}); err != nil {
				t.Fatal(err)
			}
			q := New(b, Config{})
			ctx, cancel := context.WithCancel(bg)
			go q.Acquire(ctx, outbound.Cost{5})
			synctest.Wait()
			var went, begin time.Time
			go func() {
				if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
					t.Error(err)
				}
				went = time.Now()
			}()
			time.Sleep(time.Second)
			begin = time.Now()
			cancel()
			time.Sleep(time.Minute)
			synctest.Wait()
			if in := went.Sub(begin); in != 0 {
				t.Errorf("%s: the next goes %v after the first has given up", name, in)
			}
		})
	}
}

// Calls that come straight to the bucket may be first at the end of a fixed window, because nobody
// can reserve in the next one. What they leave goes to the line, at each end.
func TestFixedWindow_QueueUsesWhatOthersLeave(t *testing.T) {
	const n, window = 10, time.Second + slack
	for name, of := range buckets(outbound.FixedWindow(n, time.Second)) {
		synctest.Test(t, func(t *testing.T) {
			b, begin := of(), time.Now()
			ctx, cancel := context.WithCancel(bg)
			call := func() { // 8 of 10 in each window
				for ctx.Err() == nil {
					_, _ = b.Acquire(bg, outbound.Cost{8}) // it fails if the line is first
					time.Sleep(window)
				}
			}
			go call()
			synctest.Wait()
			q := New(b, Config{})
			var sent departures
			for range 7 {
				go func() {
					if _, err := q.Acquire(bg, outbound.Cost{1}); err == nil {
						sent.went()
					}
				}()
			}
			time.Sleep(10 * window)
			cancel()
			time.Sleep(window) // call ends
			synctest.Wait()
			slices.SortFunc(sent.at, time.Time.Compare)
			for i, at := range sent.at {
				if most := time.Duration(i/2) * window; at.Sub(begin) > most || at.Sub(begin)%window != 0 {
					t.Errorf("%s: call %d goes after %v, want an end of a window up to %v", name, i, at.Sub(begin), most)
				}
			}
			if len(sent.at) != 7 {
				t.Errorf("%s: %d have gone", name, len(sent.at))
			}
		})
	}
}

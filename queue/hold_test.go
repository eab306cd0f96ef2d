package queue

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// Calls that wait for a window leave when its units come back, also if the API asks for a pause of
// nearly so long meanwhile: in all processes, and with a leaky limit next to the window.
func TestQueue_WindowAgesInHold(t *testing.T) {
	const n = 10
	window := outbound.Window(n, time.Hour)
	for name, limits := range map[string][]outbound.Limit{"alone": {window}, "next to a leaky limit": {outbound.PerSecond(10), window}} {
		for shared, processes := range map[bool]int{false: 1, true: 3} {
			synctest.Test(t, func(t *testing.T) {
				memory := store.NewMemory()
				queues := make([]*Queue, processes)
				for i := range queues {
					b, err := outbound.NewBucket("key", limits...)
					if shared {
						b, err = outbound.NewSharedBucket(memory, "key", limits...)
					}
					if err != nil {
						t.Fatal(err)
					}
					queues[i] = New(b, Config{})
					defer queues[i].Close()
				}
				start := time.Now()
				permits := make([]outbound.Permit, n)
				for i := range permits {
					p, err := queues[i%processes].Acquire(bg, outbound.Cost{1})
					if err != nil {
						t.Fatal(err)
					}
					permits[i] = p
				}
				left := make(chan time.Duration, n)
				for i := range n {
					go func() {
						p, err := queues[i%processes].Acquire(bg, outbound.Cost{1})
						if err != nil {
							t.Error(err)
						}
						left <- time.Since(start)
						p.Done()
					}()
				}
				time.Sleep(time.Minute)
				permits[0].Refused(55 * time.Minute)
				for range n {
					// A refusal slows the clock: the last four minutes take longer.
					if at := <-left; at < time.Hour || at > 62*time.Minute {
						t.Errorf("%s, shared %v: a call left after %v", name, shared, at)
					}
				}
			})
		}
	}
}

// A call that waited when a hold came, and is refused for it, says so, as a new call does.
func TestQueue_RefusalInHold(t *testing.T) {
	for shared := range map[bool]int{false: 0, true: 1} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("key", outbound.PerMinute(60)))
			if shared {
				b = outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "key", outbound.PerMinute(60)))
			}
			q := New(b, Config{MaxWait: 20 * time.Second})
			defer q.Close()
			permit, err := q.Acquire(bg, outbound.Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			const n = 5
			errs := make(chan error, n+1)
			for range n {
				go func() {
					_, err := q.Acquire(bg, outbound.Cost{1})
					errs <- err
				}()
			}
			time.Sleep(100 * ms)
			permit.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: time.Minute, Reason: "rate"})
			time.Sleep(100 * ms)
			_, err = q.Acquire(bg, outbound.Cost{1})
			errs <- err
			pass(0)
			if len(errs) != n+1 { // the one with a reservation as well
				t.Errorf("shared %v: %d of %d calls are refused in the hold", shared, len(errs), n+1)
			}
			for i := range n + 1 {
				full, ok := errors.AsType[*outbound.ThrottledError](<-errs)
				if !ok || !full.Held || full.Reason != "rate" || full.RetryAfter < 50*time.Second {
					t.Errorf("shared %v: call %d got %+v", shared, i, full)
				}
			}
		})
	}
}

package queue_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// A call that its deadline ends is rate limited: its error is a ThrottledError and also
// context.DeadlineExceeded, whether the queue or the context ends it first. A call that its caller
// cancels gets the context's error alone.
func TestQueue_DeadlineAndCancelDiffer(t *testing.T) {
	for name, limits := range map[string][]outbound.Limit{
		"in flight and a rate": {outbound.PerSecond(1000), outbound.InFlight(1)},
		"a rate":               {outbound.PerHour(1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := queue.New(outbound.Must(outbound.NewBucket("api", limits...)), queue.Config{})
				first, err := q.Acquire(t.Context(), outbound.Cost{1})
				if err != nil {
					t.Fatal(err)
				}
				var calls sync.WaitGroup
				for i := range 200 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					if i%2 == 0 {
						time.AfterFunc(time.Second/2, cancel)
					}
					calls.Go(func() {
						defer cancel()
						_, err := q.Acquire(ctx, outbound.Cost{1})
						throttled, late := errors.Is(err, outbound.ErrThrottled), errors.Is(err, context.DeadlineExceeded)
						if i%2 == 1 && !(throttled && late) {
							t.Errorf("after the deadline: %v, want a ThrottledError that is DeadlineExceeded", err)
						}
						if i%2 == 0 && err != context.Canceled && !(throttled && late) { // a far reservation is refused early
							t.Errorf("after the cancel: %v, want context.Canceled", err)
						}
					})
				}
				calls.Wait()
				first.Done()
				if s := q.Stats(); s.Refused+s.Cancelled != 200 || s.Refused < 100 || s.Waiting != 0 {
					t.Errorf("stats %+v, want 200 calls refused or cancelled", s)
				}
				if s, err := q.Bucket().State(t.Context()); err != nil || s.Level > 1 {
					t.Errorf("level %v, %v: a call that did not leave was charged", s.Level, err)
				}
			})
		})
	}
}

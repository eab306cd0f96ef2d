package queue

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A job system polls every 5 s. It has 1 000 jobs for an API of 10 per second, and puts a
// job back when it is refused.
func TestQueue_AsLongAsThePollIntervalSavesAttempts(t *testing.T) {
	const jobs, poll = 1000, 5 * time.Second
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: 10}), Config{MaxWait: poll})
		attempts, begin := 0, time.Now()
		for left := jobs; left > 0; {
			refused := make(chan struct{}, left)
			for range left {
				attempts++
				go func() {
					p, err := q.Acquire(bg, outbound.Cost{1})
					defer p.Done()
					var full *outbound.ThrottledError
					if errors.As(err, &full) && full.RetryAfter > 0 {
						refused <- struct{}{}
					} else if err != nil {
						t.Error(err)
					}
				}()
			}
			synctest.Wait()
			left = len(refused)
			if left > 0 {
				pass(poll)
			}
		}
		for q.Len() > 0 {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(begin); attempts != 10_481 || took > 100*time.Second {
			t.Errorf("%d attempts in %v, want 10481 in 99.9s", attempts, took)
		}
	})
}

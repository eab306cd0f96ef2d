package queue

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// A call that comes while the queue cannot foretell when it goes, because a trip is to tell first what has come back,
// is refused after that trip, and not when its turn comes. Who was told that it can make it, stays.
func TestACallThatNobodyForetoldIsRefusedAfterTheTrip(t *testing.T) {
	limit := outbound.Limit{Capacity: 1, LeakRate: 1}
	for name, c := range map[string]struct {
		bucket func(t *testing.T) *outbound.Bucket
		comes  func(q *Queue, join func())
	}{
		"before it": {
			func(t *testing.T) *outbound.Bucket { return bucket(t, limit) },
			func(q *Queue, join func()) {
				q.mu.Lock()
				q.changed = true
				q.mu.Unlock()
				join()
				q.onChange()
			},
		},
		"meanwhile": {
			func(t *testing.T) *outbound.Bucket {
				return shared(t, &far{Store: leak.NewMemory(), way: 20 * ms}, limit)
			},
			func(q *Queue, join func()) {
				q.onChange()
				synctest.Wait()
				if !q.pumping || !q.returns {
					t.Fatal("there is no trip")
				}
				join()
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := New(c.bucket(t), Config{MaxWait: 10 * time.Second})
				for range 20 { // one after the other, so that each is foretold but the first
					go func() { _, _ = q.Acquire(bg, outbound.Cost{1}) }()
					pass(40 * ms)
				}
				told := q.Len()
				refused := make(chan error, 1)
				c.comes(q, func() {
					go func() {
						_, err := q.Acquire(bg, outbound.Cost{1})
						refused <- err
					}()
					synctest.Wait()
					if q.Len() != told+1 {
						t.Errorf("%d wait, want %d", q.Len(), told+1)
					}
				})
				pass(100 * ms)
				var full *outbound.ThrottledError
				select {
				case err := <-refused:
					if !errors.As(err, &full) || full.RetryAfter <= 10*time.Second || full.RetryAfter > 11*time.Second {
						t.Errorf("the call was told %v", err)
					}
				default:
					t.Error("the call still waits")
				}
				if q.Len() != told {
					t.Errorf("%d wait, want %d", q.Len(), told)
				}
				pass(time.Minute)
			})
		})
	}
}

package outbound

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// A call that is refused for its deadline gets a ThrottledError that is context.DeadlineExceeded, wherever the deadline
// finds it. A call that is cancelled gets its ctx's own error.
func TestBucket_AcquireAfterADeadline(t *testing.T) {
	for name, of := range map[string]func() (*Bucket, error){
		"one limit":  func() (*Bucket, error) { return NewBucket("k", PerSecond(1)) },
		"two limits": func() (*Bucket, error) { return NewBucket("k", PerSecond(1), PerHour(100)) },
		"shared":     func() (*Bucket, error) { return NewSharedBucket(store.NewMemory(), "k", PerSecond(1)) },
		"slow":       func() (*Bucket, error) { return NewSharedBucket(&FakeStore{Way: time.Hour}, "k", PerSecond(1)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(of())
			late, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			gone, end := context.WithCancel(t.Context())
			time.AfterFunc(2*time.Second, end)
			if name != "slow" { // else they end during the trip
				time.Sleep(3 * time.Second)
			}
			var full *ThrottledError
			if _, err := b.Acquire(late, Cost{1}); !errors.As(err, &full) || !errors.Is(err, context.DeadlineExceeded) || full.Key != "k" {
				t.Errorf("%s: after the deadline: %v", name, err)
			}
			if _, err := b.Acquire(gone, Cost{1}); err != context.Canceled {
				t.Errorf("%s: after a cancel: %v", name, err)
			}
		})
	}
}

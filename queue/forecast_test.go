package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// A window that is above its brim, because it was lowered, comes back as a whole. Who can wait
// for that is not refused, and who cannot is refused at once.
func TestACallWaitsForAWindowThatIsAboveItsBrim(t *testing.T) {
	for _, memory := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.Window(100, time.Minute))
			if !memory {
				b = shared(t, store.NewMemory(), outbound.Window(100, time.Minute))
			}
			if _, err := b.Acquire(bg, outbound.Cost{100}); err != nil {
				t.Fatal(err)
			}
			if err := b.SetLimits(bg, outbound.Window(10, time.Minute)); err != nil {
				t.Fatal(err)
			}
			q, begin := New(b, Config{}), time.Now()
			ask := func(wait time.Duration) (time.Duration, error) {
				ctx, cancel := context.WithTimeout(bg, wait)
				defer cancel()
				_, err := q.Acquire(ctx, outbound.Cost{1})
				return time.Since(begin), err
			}
			for range 9 {
				go func() {
					if after, err := ask(2 * time.Minute); err != nil || after > 62*time.Second {
						t.Errorf("in memory %v: after %v: %v", memory, after, err)
					}
				}()
			}
			time.Sleep(time.Second)
			if after, err := ask(100 * time.Second); err != nil || after > 62*time.Second {
				t.Errorf("in memory %v: the last of ten, after %v: %v", memory, after, err)
			}
			for range 10 {
				go ask(2 * time.Minute)
			}
			synctest.Wait()
			begin = time.Now()
			if after, err := ask(30 * time.Second); err == nil || after > time.Second {
				t.Errorf("in memory %v: hopeless, after %v: %v", memory, after, err)
			}
			pass(3 * time.Minute)
		})
	}
}

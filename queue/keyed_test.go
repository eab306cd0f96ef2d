package queue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// Queues of more tenants than a Keyed holds, all around one busy bucket, make room for each
// other. A queue in which a call waits stays, and no call leaves above the limit.
func TestKeyed_QueuesAroundABusyBucketMakeRoom(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 10, LeakRate: 1000})
		made := map[int]int{}
		tenants := &outbound.Keyed[int]{New: func(tenant int) (outbound.Limiter, error) {
			made[tenant]++
			return New(b, Config{}), nil
		}}
		admitted(t, b, 10)
		begin := time.Now()
		for tenant := range 11_000 {
			p := admitted(t, tenants.For(tenant), 1)
			p.Done()
		}
		if took := time.Since(begin); took < 11*time.Second || took > 12*time.Second {
			t.Errorf("11,000 calls at 1,000 per second took %v", took)
		}
		if n := tenants.Len(); n > 10_000 {
			t.Errorf("%d queues", n)
		}
		if err := b.Hold(bg, time.Hour); err != nil {
			t.Fatal(err)
		}
		c := come(bg, tenants.For(-1), 1)
		for tenant := range 20_000 {
			if err := tenants.Use(20_000+tenant, func(outbound.Limiter) error { return nil }); err != nil {
				t.Fatalf("tenant %d: %v", tenant, err)
			}
		}
		_ = tenants.Use(-1, func(l outbound.Limiter) error {
			if n := l.(*Queue).Len(); n != 1 || made[-1] != 1 {
				t.Errorf("%d calls wait in the tenant's queue, which was made %d times", n, made[-1])
			}
			return nil
		})
		if pass(2 * time.Hour); !c.admitted() {
			t.Error(c.ended().err)
		}
	})
}

// A queue around a bucket that was made for its tenant alone stays until the bucket is idle:
// otherwise the tenant would have its whole capacity again.
func TestKeyed_QueueAroundItsOwnBucketStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenants := &outbound.Keyed[string]{Max: 2, New: func(tenant string) (outbound.Limiter, error) {
			b, err := outbound.NewBucket(tenant, outbound.PerHour(2).Burst(2))
			return New(b, Config{MaxWait: time.Second}), err
		}}
		for _, tenant := range []string{"a", "b", "a", "b"} {
			p := admitted(t, tenants.For(tenant), 1)
			p.Done()
		}
		time.Sleep(10 * time.Minute)
		for range 10 {
			for _, tenant := range []string{"c", "a", "b"} {
				if _, err := tenants.Acquire(bg, tenant, one); err == nil {
					t.Fatalf("%s: a call above the limit, or a third queue", tenant)
				}
			}
		}
		time.Sleep(2 * time.Hour)
		admitted(t, tenants.For("c"), 1)
	})
}

package watch

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// A hold of a bucket that a name does not stand for any more is no hold of the new one.
func TestAdd_ReplacedBucketsHoldEnds(t *testing.T) {
	for name, again := range map[string]func(*Board){
		"Add":      func(b *Board) { b.Add("api", bucket(t, outbound.PerSecond(1))) },
		"AddKeyed": func(b *Board) { AddKeyed(b, "api", tenants(t, 5, outbound.PerSecond(1)), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var b Board
				old := bucket(t, outbound.PerSecond(1))
				b.Add("api", old)
				if err := old.Hold(bg, time.Hour); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				time.Sleep(time.Minute)
				again(&b)
				time.Sleep(time.Minute)
				if got := only(t, &b).HeldTime; got != time.Minute {
					t.Errorf("held for %v in all, want a minute", got)
				}
				if b.shown[0].meter.until != 0 {
					t.Error("the hold is in force")
				}
			})
		})
	}
}

// If several goroutines add a name at the same time, the last one counts. The events of the other
// buckets are ignored.
func TestAdd_ConcurrentAddsObserveOneBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		buckets := make([]*outbound.Bucket, 20)
		var all sync.WaitGroup
		for i := range buckets {
			buckets[i] = bucket(t, outbound.PerSecond(1))
			all.Go(func() { b.Add("api", buckets[i]) })
		}
		all.Wait()
		for _, one := range buckets {
			if err := one.Hold(bg, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		shown := bucketIn(b.shown[0].limiter)
		if err := shown.Resume(bg); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := b.Snapshot(bg, Query{}); len(s.Events) != 2 || s.Events[0].Kind != "resumed" {
			t.Errorf("%+v", s.Events)
		}
	})
}

// Under the race detector this fails if an action looks at a name while somebody adds it.
func TestAdd_ActionDuringAdd(t *testing.T) {
	var b Board
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { b.Add("api", bucket(t, outbound.PerSecond(1))) })
		all.Go(func() { AddKeyed(&b, "api", tenants(t, 5, outbound.PerSecond(1)), nil) })
		all.Go(func() { b.bucketOf("api", "") })
		all.Go(func() { b.Snapshot(bg, Query{}) })
	}
	all.Wait()
	if l := only(t, &b); l.Name != "api" {
		t.Errorf("%+v", l)
	}
}

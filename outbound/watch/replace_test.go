package watch

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// A hold of a bucket that a name does not stand for any more is no hold of the new one.
func TestTheHoldOfAFormerBucketIsOver(t *testing.T) {
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
				if b.shown[0].held.holds(now()) {
					t.Error("the hold is in force")
				}
			})
		})
	}
}

// Of several who add a name at the same time the last counts, and the others' buckets are not heard of.
func TestANameThatManyAddAtOnceHearsOfOne(t *testing.T) {
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

// lossy is a limiter that tells how many places it has lost.
type lossy struct {
	outbound.Limiter
	late uint64
}

func (l lossy) Stats() queue.Stats { return queue.Stats{Late: l.late} }

// Places that were lost stay counted when the name stands for another queue.
func TestPlacesThatFormerQueuesHaveLostStayCounted(t *testing.T) {
	var b Board
	for i, want := range []uint64{5, 5 + 7, 5 + 7 + 1} {
		b.Add("api", lossy{outbound.Unlimited{}, []uint64{5, 7, 1}[i]})
		if got := only(t, &b).Late; got != want {
			t.Errorf("%d places, want %d", got, want)
		}
	}
	b.Add("api", bucket(t, outbound.PerSecond(1)))
	if l := only(t, &b); l.Queued || l.Late != 13 {
		t.Errorf("%+v", l)
	}
}

// Under the race detector this fails if an action looks at a name while somebody adds it.
func TestSomebodyActsWhileANameIsAdded(t *testing.T) {
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

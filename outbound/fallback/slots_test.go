package fallback_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// cutStore is a store that is unavailable while it is told to be.
type cutStore struct {
	*store.Memory
	away chan struct{} // it has an element while the store is away
}

func (c cutStore) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if len(c.away) > 0 {
		return store.Reply{}, store.ErrUnavailable
	}
	return c.Memory.Update(ctx, key, op)
}

// A lease after the store's last answer each process has its share of the slots, rounded down, however
// many buckets of the key it has. When the store is back, what is in flight counts there.
func TestStore_SharesSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, remote := context.Background(), cutStore{store.NewMemory(), make(chan struct{}, 1)}
		f := &fallback.Store{Store: remote, Share: 0.5}
		limit := outbound.InFlight(5)
		a, b := outbound.Must(outbound.NewSharedBucket(f, "k", limit)), outbound.Must(outbound.NewSharedBucket(f, "k", limit))
		acquire := func(of *outbound.Bucket) (outbound.Permit, error) { return of.Acquire(ctx, outbound.Cost{1}) }
		first, err := acquire(a)
		if err != nil {
			t.Fatal(err)
		}
		remote.away <- struct{}{}
		for range 5 {
			if _, err := acquire(b); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("within a lease: %v", err)
			}
			time.Sleep(5 * time.Second)
		}
		time.Sleep(6 * time.Second)
		second, err := acquire(b)
		if err != nil {
			t.Fatalf("a lease after the last answer: %v", err)
		}
		for i, of := range []*outbound.Bucket{a, b} {
			if _, err := acquire(of); !errors.Is(err, outbound.ErrThrottled) {
				t.Errorf("bucket %d, a third call in a share of two: %v", i, err)
			}
		}
		<-remote.away // nothing is granted for a third of a lease: others might hold slots too
		time.Sleep(20 * time.Second)
		other := outbound.Must(outbound.NewSharedBucket(remote, "k", limit))
		for range 3 {
			if _, err := acquire(other); err != nil {
				t.Errorf("one of three slots that are left: %v", err)
			}
		}
		if _, err := acquire(other); !errors.Is(err, outbound.ErrThrottled) {
			t.Errorf("a sixth call of five: %v", err)
		}
		first.Done()
		second.Done()
	})
}

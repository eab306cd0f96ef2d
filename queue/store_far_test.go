package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// far is a store at a distance that sometimes cannot be reached. Its replies tell when they
// were true, and how long replies normally take.
type far struct {
	store.Store
	way      time.Duration             // there, and the same back
	jitter   float64                   // a part of each way, added or taken at random
	first    int                       // the first trip takes as long as so many, because it opens a connection
	late     func(n int) time.Duration // added to the way back of the n-th reply; nil: nothing
	silent   bool                      // its replies tell neither
	unheard  bool                      // its replies do not tell how long they take
	unclaims bool                      // it does not know of claims
	trips    atomic.Int64
	away     atomic.Bool
	hangs    time.Duration // how long it takes to fail
}

var errAway = fmt.Errorf("%w: connection refused", store.ErrUnavailable)

func (f *far) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	n := f.trips.Add(1)
	for range 2 * max(0, f.first-1) {
		if n == 1 {
			f.walk(0)
		}
	}
	f.walk(0)
	if f.away.Load() {
		time.Sleep(f.hangs)
		return store.Reply{}, errAway
	}
	if f.unclaims {
		op.Claim = 0
	}
	when := time.Now()
	r, err := f.Store.Update(ctx, key, op)
	if !f.silent {
		r.When, r.Heard = when, when.Add(f.way+time.Duration(float64(f.way)*f.jitter))
	}
	if f.unheard {
		r.Heard = time.Time{}
	}
	if f.late != nil {
		f.walk(f.late(int(n)))
	} else {
		f.walk(0)
	}
	return r, err
}

func (f *far) walk(more time.Duration) {
	time.Sleep(more + time.Duration(float64(f.way)*(1+f.jitter*(2*rand.Float64()-1))))
}

// shared returns a bucket in a store.
func shared(t *testing.T, s store.Store, limits ...outbound.Limit) *outbound.Bucket {
	b, err := outbound.NewSharedBucket(s, "k", limits...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

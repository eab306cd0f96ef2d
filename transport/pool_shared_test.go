package transport_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// far is a store whose replies take a while.
type far struct {
	store.Store
	trip time.Duration
}

func (f far) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	time.Sleep(f.trip / 2)
	r, err := f.Store.Update(ctx, key, op)
	time.Sleep(f.trip / 2)
	return r, err
}

// Pools of two processes over buckets in one store use all members, keep their limits, and move what
// waits at a held one.
func TestPool_SharedBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := perKey(60)
		s := store.NewMemory()
		var buckets []*outbound.Bucket
		process := func() *transport.Pool {
			p := &transport.Pool{}
			for i := range 5 {
				name := fmt.Sprint("key ", i)
				b := outbound.Must(outbound.NewSharedBucket(far{s, 4 * time.Millisecond}, name, outbound.PerMinute(60)))
				buckets = append(buckets, b)
				p.Members = append(p.Members, &transport.Transport{Limiter: queue.New(b, queue.Config{}), Base: keyed{name, api}})
			}
			return p
		}
		pools := []*transport.Pool{process(), process()}
		time.AfterFunc(500*time.Millisecond, func() {
			if err := buckets[2].Hold(context.Background(), time.Minute); err != nil {
				t.Error(err)
			}
		})
		answered := make(chan []time.Duration)
		for _, p := range pools {
			go func() { answered <- sent(t, p, 150) }()
		}
		all := append(<-answered, <-answered...)
		slices.Sort(all)
		// Four members send 4 a second until the hold is over at 60.5 s, and five send 5.
		if ideal := 71 * time.Second; all[297] > ideal*11/10 {
			t.Errorf("p99 %v, ideal %v", all[297], ideal)
		}
		if r := api.Report(); r.Refused > 0 {
			t.Errorf("%d refused", r.Refused)
		}
		time.Sleep(time.Second) // the last requests to the store end
	})
}

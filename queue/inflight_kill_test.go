package queue_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// mortal is a process's store, until the process is killed.
type mortal struct {
	store.Store
	killed atomic.Bool
}

func (m *mortal) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	if m.killed.Load() {
		return store.Reply{}, store.ErrUnavailable
	}
	time.Sleep(time.Millisecond)
	return m.Store.Update(ctx, key, op)
}

// Fifty calls in flight, a wait of 5 s, a lease of 30 s, three processes, and one is killed: never more
// than fifty are in flight, its slots are in use again within 30 s, and no call waits in vain.
func TestInFlight_AKilledProcessGivesItsSlotsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots = 50
		shared := store.NewMemory()
		ctx, cancel := context.WithCancel(t.Context())
		var inFlight [3]atomic.Int64
		var refused atomic.Int64
		var processes [3]*mortal
		for i := range processes {
			m := &mortal{Store: shared}
			processes[i] = m
			q := queue.New(outbound.Must(outbound.NewSharedBucket(m, "erp", outbound.InFlight(slots))), queue.Config{MaxWait: 5 * time.Second})
			for range 40 {
				go func() {
					for {
						p, err := q.Acquire(ctx, outbound.Cost{1})
						if m.killed.Load() || ctx.Err() != nil {
							return // never to end
						}
						if err != nil {
							refused.Add(1)
							continue
						}
						inFlight[i].Add(1)
						time.Sleep(time.Second)
						inFlight[i].Add(-1)
						p.Done()
					}
				}()
			}
		}
		use := func() (sum int64) {
			for i, m := range processes {
				if !m.killed.Load() {
					sum += inFlight[i].Load()
				}
			}
			return sum
		}
		watch := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(7 * time.Millisecond) {
				if n := use(); n > slots {
					t.Fatalf("%d calls in flight", n)
				}
			}
		}
		watch(20 * time.Second)
		for i := range inFlight {
			if n := inFlight[i].Load(); n < 12 || n > 21 {
				t.Errorf("process %d has %d of %d slots", i, n, slots)
			}
		}
		processes[2].killed.Store(true)
		watch(30 * time.Second)
		if n := use(); n < slots-4 {
			t.Errorf("%d of %d slots are in use a lease after the end of a process", n, slots)
		}
		watch(10 * time.Second)
		if n := refused.Load(); n > 0 {
			t.Errorf("%d calls were refused", n)
		}
		cancel()
		time.Sleep(time.Minute)
	})
}

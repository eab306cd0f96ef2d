package queue

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// When slowing down turns out not to help, the bucket's clock is at full speed again in one
// step, and places come nearer than their workers have planned. No two calls go together, and
// each worker loses one place at most.
func TestSlowDown_UndoneBunchesNoCalls(t *testing.T) {
	const workers = 200
	for _, rate := range []float64{1, 10} {
		if raced && rate > 1 {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			m := store.NewMemory()
			queues := make([]*Queue, workers)
			var h outboundtest.History
			var mu sync.Mutex
			r := rand.New(rand.NewPCG(1, 2))
			var went []time.Time
			var ended atomic.Bool
			stores := make([]*far, workers)
			for i := range queues {
				stores[i] = &far{Store: m, way: ms, jitter: 0.05}
				queues[i] = New(shared(t, stores[i], outbound.Limit{Capacity: 1, LeakRate: rate}), Config{})
				call := func() {
					p, err := queues[i].Acquire(bg, outbound.Cost{1})
					if err != nil {
						t.Error(err)
						return
					}
					now := time.Now()
					h.Add(now, 1)
					mu.Lock()
					went = append(went, now)
					refused := r.Float64() < 0.05
					mu.Unlock()
					time.Sleep(30 * ms)
					if refused {
						p.Refused(0)
						time.Sleep(time.Second)
					}
					p.Done()
				}
				for range 2 {
					go func() {
						for !ended.Load() {
							call()
						}
					}()
				}
			}
			// A window is a hundred calls at full speed.
			window := time.Duration(100/rate) * time.Second
			undone, slowest, after := 0, 1.0, 0
			for k := 0; k < 110 && (undone == 0 || k < undone+20); k++ {
				pass(window)
				s, err := queues[0].bucket.State(bg)
				if err != nil {
					t.Fatal(err)
				}
				if s.Speed < 1 {
					slowest = min(slowest, s.Speed)
				} else if slowest < 0.5 && undone == 0 {
					undone = k
				}
				mu.Lock()
				if undone > 0 && k > undone {
					after += len(went)
				}
				went = nil
				mu.Unlock()
			}
			late := uint64(0)
			for i := range queues {
				late += queues[i].Stats().Late
			}
			use := float64(after) / 1900
			t.Logf("%v/s: undone in window %d at speed %.3f, then %.3f of the rate; %d places were heard of too late", rate, undone, slowest, use, late)
			// A worker may hear of it only after its next place has passed, and then loses
			// that place.
			if undone == 0 || use < 0.93-workers/1900. {
				t.Errorf("%v/s: undone in window %d, then %.3f of the rate", rate, undone, use)
			}
			ended.Store(true)
			pass(time.Duration(workers*4/rate) * time.Second)
			if err := h.Check(1, rate, 5*ms.Seconds()*1.05*rate); err != nil {
				t.Error(err)
			}
		})
	}
}

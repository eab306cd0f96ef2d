package outbound

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// State returns the same as States, whatever has happened to the bucket, and allocates nothing for a
// bucket with one leaky limit that nothing holds.
func TestBucket_StateIsTheFirstOfStates(t *testing.T) {
	for _, l := range []Limit{PerSecond(3), PerMinute(30).Burst(7).Of(2, "rows"), {Capacity: 0.5, LeakRate: 0.1}, {Capacity: 1e9, LeakRate: 1e6}} {
		synctest.Test(t, func(t *testing.T) {
			r, b := rand.New(rand.NewPCG(7, uint64(l.Capacity))), Must(NewBucket("key", l))
			for range 300 {
				var c Cost
				c[l.Unit] = l.Capacity * r.Float64()
				c[0] = max(c[0], 0.1)
				p, err := b.Acquire(t.Context(), c)
				switch r.IntN(30) {
				case 0:
					p.Refused(time.Duration(r.IntN(1e9)))
				case 1:
					p.Settle(Cost{})
				case 2:
					_ = b.Resume(t.Context())
				case 3:
					_ = b.Pause(t.Context(), 1+time.Duration(r.IntN(1e9)))
				}
				if err == nil {
					p.Done()
				}
				time.Sleep(time.Duration(r.IntN(1e9)) * time.Duration(r.IntN(3)))
				one, err := b.State(t.Context())
				all, err2 := b.States(t.Context())
				fatalIf(t, err != nil || err2 != nil || one != all[0], "%v %v\n%+v\n%+v", err, err2, one, all)
			}
		})
	}
	b := Must(NewBucket("key", PerSecond(10)))
	mustAcquire(t, b).Done()
	n := testing.AllocsPerRun(100, func() { _, _ = b.State(ctx) })
	errorIf(t, n > 0, "%v allocations", n)
}

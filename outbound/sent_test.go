package outbound

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// What a late call costs beyond its cost is added to it, and a second report of the same call adds nothing.
func TestSent_SettleAddsWhatACallCostsMore(t *testing.T) {
	for _, c := range []struct {
		times      int
		used, want float64
	}{{1, 100, 100}, {1, 500, 500}, {1, 40, 100}, {2, 100, 100}, {2, 500, 500}} {
		for _, queued := range []bool{false, true} {
			bothWays(t, func(t *testing.T, b *Bucket) {
				p := admit(t, b, 1, 100)
				time.Sleep(60 * time.Millisecond)
				if queued {
					defer b.Waiting(func() {})()
				}
				for range c.times {
					p.Answered(Answer{Kind: AnswerSent, Wait: 60 * time.Millisecond})
				}
				p.Settle(Cost{1, c.used})
				p.Done()
				must(t, b.Book(ctx, new(BookRequest))) // brings what was postponed
				if l := states(t, b); l[0].Level != 1 || l[1].Level != c.want {
					t.Errorf("%d reports, queued %v, used %v: levels %v and %v; want 1 and %v", c.times, queued, c.used, l[0].Level, l[1].Level, c.want)
				}
			}, Window(10, time.Minute), Window(10000, time.Minute).Of(1, "tokens"))
		}
	}
}

// No other call gets the units of a late call while these move to the time at which it was sent.
func TestSent_UnitsMoveInOneStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := store.NewMemory()
		other := Must(NewSharedBucket(memory, "key", Window(1, time.Minute)))
		b := Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			defer func() {
				if _, err := other.Acquire(ctx, Cost{1}); err == nil && len(op.Reports) > 0 {
					t.Error("a call was admitted in the window of a late one")
				}
			}()
			return memory.Update(ctx, key, op)
		}), "key", Window(1, time.Minute)))
		p := mustAcquire(t, b)
		time.Sleep(60 * time.Millisecond)
		p.Answered(Answer{Kind: AnswerSent, Wait: 60 * time.Millisecond})
	})
}

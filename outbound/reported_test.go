package outbound

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// half is a store that fails once after it has carried the reports out, and counts the settles that it hears of.
type half struct {
	*leak.Memory
	settles int
	tells   bool // that the reports were carried out
}

func (h *half) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	for _, r := range op.Reports {
		if r.Kind == leak.Settled {
			if h.settles++; h.settles == 1 {
				return leak.Reply{Reported: h.tells}, ErrAway
			}
		}
	}
	return h.Memory.Update(ctx, key, op)
}

// A call has cost more than it was booked for, and the store fails. It hears of the cost again, unless it says that it
// has heard.
func TestReportsOfAFailedStepThatWereCarriedOutGoOnce(t *testing.T) {
	for tells, want := range map[bool]int{false: 2, true: 1} {
		synctest.Test(t, func(t *testing.T) {
			h := &half{Memory: leak.NewMemory(), tells: tells}
			b := Must(NewSharedBucket(h, "k", Limit{Capacity: 10, LeakRate: 1e-6}))
			p, err := b.Acquire(context.Background(), Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			p.Settle(Cost{2})
			for range 3 {
				if _, err := b.Acquire(context.Background(), Cost{1}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			if h.settles != want {
				t.Errorf("%v: the store has heard of %d settles, want %d", tells, h.settles, want)
			}
		})
	}
}

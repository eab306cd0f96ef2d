package outboundtest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// distant is a store with a long way there and back.
type distant struct {
	leak.Store
	way time.Duration
}

func (d distant) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	select {
	case <-ctx.Done():
		return leak.Reply{}, ctx.Err()
	case <-time.After(d.way):
	}
	r, err := d.Store.Update(ctx, key, op)
	time.Sleep(d.way)
	return r, err
}

func TestAStoreThatIsFarAwayPassesTheExam(t *testing.T) {
	for sentence, check := range StoreCases() {
		t.Run(sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { check(t, distant{leak.NewMemory(), 200 * time.Millisecond}) })
		})
	}
}

package outboundtest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// distant is a store that is far away.
type distant struct {
	outbound.Store
	way time.Duration
}

func (d distant) Update(ctx context.Context, key string, op *outbound.Op) (outbound.Result, error) {
	select {
	case <-ctx.Done():
		return outbound.Result{}, ctx.Err()
	case <-time.After(d.way):
	}
	r, err := d.Store.Update(ctx, key, op)
	time.Sleep(d.way)
	return r, err
}

func TestAStoreThatIsFarAwayPassesTheExam(t *testing.T) {
	for sentence, check := range StoreCases() {
		t.Run(sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { check(t, distant{outbound.NewMemory(), 200 * time.Millisecond}) })
		})
	}
}

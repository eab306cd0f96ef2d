package outbound

import (
	"context"
	"errors"
	"testing"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// mute is a store that answers nothing, and no error.
type mute struct{ leak.Store }

func (mute) Update(context.Context, string, *leak.Op) (leak.Reply, error) {
	return leak.Reply{Limit: -1, State: leak.New(0)}, nil
}

// A store that tells nothing of a call admits it not, and is no reason to panic.
func TestAStoreThatAnswersNothingIsAnError(t *testing.T) {
	b := Must(NewSharedBucket(mute{}, "k", Limit{Capacity: 1, LeakRate: 1}))
	var broken *StoreError
	if _, err := b.Acquire(ctx, Cost{1}); !errors.As(err, &broken) {
		t.Errorf("Acquire: %v", err)
	}
}

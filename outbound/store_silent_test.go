package outbound

import (
	"context"
	"errors"
	"testing"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// mute is a store that answers nothing, and no error.
type mute struct{ store.Store }

func (mute) Update(context.Context, string, *store.Op) (store.Reply, error) {
	return store.Reply{Limit: -1, State: store.New(0, 1)}, nil
}

// A store that tells nothing of a call admits it not, and is no reason to panic.
func TestStore_SilentOneIsAnError(t *testing.T) {
	b := Must(NewSharedBucket(mute{}, "k", Limit{Capacity: 1, LeakRate: 1}))
	var broken *StoreError
	if _, err := b.Acquire(ctx, Cost{1}); !errors.As(err, &broken) {
		t.Errorf("Acquire: %v", err)
	}
}

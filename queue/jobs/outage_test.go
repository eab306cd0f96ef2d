package jobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// silent is a store that answers nothing, and no error.
type silent struct{ store.Store }

func (silent) Update(context.Context, string, *store.Op) (store.Reply, error) {
	return store.Reply{State: store.New(0, 1)}, nil
}

// A store that books nothing and refuses nothing is as good as away.
func TestOutage_SilentStoreFailsNoJob(t *testing.T) {
	l := New(shared(t, silent{}, "api", perSecond...), Config{})
	var broken *outbound.StoreError
	if later := sentBack(t, l, "", one); !errors.As(later.Err, &broken) || later.In < time.Second {
		t.Errorf("it is sent back: %+v", later)
	}
	if _, err := l.Book(bg, one); !errors.As(err, &broken) {
		t.Errorf("Book: %v", err)
	}
}

package fallback

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// While a key is away, no call waits for the store, even if it hangs. While the key is charged, a
// call can give up.
func TestStore_NoCallWaitsForAStoreThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{Share: 0.5}, leaky(40, 20))
		p.hangs = 2 * time.Second
		p.cutOff()
		begin := time.Now()
		for range 1000 {
			p.must(cost(1))
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("1000 calls, one each millisecond, took %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.f.Update(ctx, p.key, &store.Op{Limits: p.limits}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		p.set(nil)
		time.Sleep(3 * time.Second)
	})
}

// More than maxKeys keys that are away are refused.
func TestStore_KeepsBoundedlyManyKeys(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newProcess(t, store.NewMemory(), &Store{Share: 0.5}, leaky(2, 1))
		p.set(errCut)
		for i := range maxKeys {
			p.key = fmt.Sprint(i)
			p.must(store.Op{})
		}
		p.key = "more"
		if _, err := p.do(store.Op{}); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("key %d: %v", maxKeys+1, err)
		}
		p.mend()
	})
}

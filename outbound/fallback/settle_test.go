package fallback_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// A call that the store admitted before an outage lowers no debt when it settles to nothing during
// the outage: the store is charged for all that left meanwhile.
func TestStore_SettleOfEarlierCallLowersNoDebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.5}, slow)
		earlier, err := w.b.Acquire(background, outbound.Cost{30})
		if err != nil {
			t.Fatal(err)
		}
		w.set(true)
		_, _ = w.b.Acquire(background, outbound.Cost{1}) // the worker learns of the outage
		time.Sleep(24 * time.Hour)
		if _, err := w.b.Acquire(background, outbound.Cost{40}); err != nil {
			t.Fatal(err)
		}
		earlier.Settle(outbound.Cost{})
		w.level(90)
		w.reconnect()
		if s, err := w.b.State(background); err != nil || math.Abs(s.Level-40) > 1 {
			t.Errorf("after the outage the level is %v, %v; want 40", s.Level, err)
		}
	})
}

package fallback_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/fallback"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// All workers may be late at the same time, each as late as by the whole limit.
func TestAShareMakesNoCallLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.01}, outbound.Limit{Capacity: 100, LeakRate: 100})
		for _, cut := range []bool{false, true} {
			w.set(cut)
			var k outbound.Booking
			if err := w.b.Book(background, &k); err != nil {
				t.Fatal(err)
			}
			if is := k.Clock.Tolerance(0); is != 5*time.Millisecond {
				t.Errorf("away %v: %v", cut, is)
			}
		}
	})
}

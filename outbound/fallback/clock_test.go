package fallback_test

import (
	"errors"
	"strings"
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

// A call that is larger than the share fails with the store's error, now or later, and goes once the store is back.
func TestWhatIsLargerThanTheShareIsToldSo(t *testing.T) {
	for _, limit := range []outbound.Limit{outbound.Window(4, 2500*time.Millisecond), {Capacity: 8, LeakRate: 2}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorker(t, leak.NewMemory(), &fallback.Store{Share: 0.25}, limit)
			w.set(true)
			_, _ = w.b.State(background)
			time.Sleep(time.Minute)
			if ok, err := w.b.AbleToAccept(background, outbound.Cost{3}); ok || err != nil {
				t.Errorf("%v: able to accept %v, %v", limit, ok, err)
			}
			if _, err := w.b.Acquire(background, outbound.Cost{3}); !errors.Is(err, errCut) {
				t.Errorf("%v: %v", limit, err)
			}
			var k outbound.Booking
			if err := w.b.Book(background, &k); err != nil {
				t.Fatal(err)
			}
			if at, _, err := k.Clock.Earliest(&outbound.Cost{3}, new(outbound.Cost)); err != nil || time.Until(at) > 0 {
				t.Errorf("%v: earliest in %v, %v", limit, time.Until(at), err)
			}
			for n, want := range map[float64]string{3: "no room for 3 while the store is away", 9: "never room for 9"} {
				e, err := w.b.Explain(background, outbound.Cost{n})
				if err != nil || !strings.Contains(e.String(), want) {
					t.Errorf("%v: %v, %v; want %q", limit, e, err, want)
				}
			}
		})
	}
}

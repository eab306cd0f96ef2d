package store

import (
	"testing"
	"time"
)

// opens checks that the key admits a call at a time, and none a millisecond earlier.
func (k *key) opens(at float64) {
	k.Helper()
	if r := k.book(at-0.001, 0, Units{1}); len(r.Charges) > 0 {
		k.Errorf("a call is booked before %v s", at)
	}
	if r := k.book(at, 0, Units{1}); len(r.Charges) == 0 {
		k.Errorf("no call is booked at %v s, wait %v", at, r.Wait)
	}
}

// Units that a settle adds to a fixed window count until a window after the settle.
func TestFixed_SettleThatAdds(t *testing.T) {
	k := newKey(t, fixedWindow(2, 10*time.Second))
	c := k.book(3600, 0, Units{1}).Charges[0]
	k.report(3605, Report{Kind: Settled, Charge: &c, Used: Units{2}})
	k.opens(3615)
}

// When the length of a full fixed window changes, it frees a window of the new length after its call.
func TestFixed_ChangeOfLengthMovesItsEnd(t *testing.T) {
	for _, to := range []time.Duration{4 * time.Second, 20 * time.Second} {
		k := newKey(t, named(fixedWindow(2, 10*time.Second)))
		k.book(3600, 0, Units{1}, Units{1})
		k.replace(3600, named(fixedWindow(2, to)))
		k.opens(3600 + to.Seconds())
	}
}

// An API's window ends up to 10 ms before the limit's. A call at the end of it could begin the
// API's next one.
func TestFixed_NoCallLeavesInItsLastMoments(t *testing.T) {
	const n, window = 2, 10*time.Second + spread
	for _, early := range []time.Duration{1, spread, 2 * spread} {
		k := newKey(t, fixedWindow(n, window))
		k.book(0, 0, Units{1})
		if r := k.book((window - early).Seconds(), 0, Units{1}); !r.Refused || r.Wait != early {
			t.Errorf("%v before the end: refused %v, wait %v", early, r.Refused, r.Wait)
		}
		if r := k.book(window.Seconds(), 0, Units{1}, Units{1}, Units{1}); len(r.Charges) != n {
			t.Errorf("%d leave in the next window, want %d", len(r.Charges), n)
		}
	}
}

// The first call of {2 per 1 s} is returned: the API's window begins with the second.
func TestFixed_ReturnedFirstCallMovesIt(t *testing.T) {
	k := newKey(t, fixedWindow(2, time.Second))
	first := k.book(0, 0, Units{1}).Charges[0]
	k.book(0.5, 0, Units{1})
	k.report(0.5, Report{Kind: Settled, Charge: &first})
	if r := k.book(1, 0, Units{1}, Units{1}); len(r.Charges) != 1 || r.Wait != time.Second {
		t.Errorf("%d calls of 2 are booked, wait %v; want 1 and 1s", len(r.Charges), r.Wait)
	}
}

package outbound

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// bothPaths runs a test with a bucket of capacity 10 whose permits hold their charge, and with others
// whose permits are calls.
func bothPaths(t *testing.T, test func(*testing.T, *Bucket)) {
	for name, limits := range map[string][]Limit{
		"one limit":  {{Capacity: 10, LeakRate: 1}},
		"two limits": {{Capacity: 10, LeakRate: 1}, {Capacity: 10, LeakRate: 1, Name: "other"}},
		"in flight":  {{Capacity: 10, LeakRate: 1}, InFlight(5)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, Must(NewBucket("permit", limits...))) })
		})
	}
}

// Settle returns what a call has not used.
func TestSettle_ReturnsBeforeDone(t *testing.T) {
	bothPaths(t, func(t *testing.T, b *Bucket) {
		p := admit(t, b, 10)
		p.Settle(Cost{4})
		admit(t, b, 6)
		refused(t, b, Cost{1})
	})
}

// Only the first Settle counts, before or after Done.
func TestSettle_CountsOnceAfterDone(t *testing.T) {
	bothPaths(t, func(t *testing.T, b *Bucket) {
		p := admit(t, b, 10)
		p.Done()
		p.Settle(Cost{4})
		p.Settle(Cost{})
		p.Done()
		p.Settle(Cost{})
		admit(t, b, 6)
		refused(t, b, Cost{1})
	})
}

// Settle adds what a call has used beyond its cost, also after Done.
func TestSettle_AddsAfterDone(t *testing.T) {
	bothPaths(t, func(t *testing.T, b *Bucket) {
		p := admit(t, b, 1)
		p.Done()
		p.Settle(Cost{12})
		if full := refused(t, b, Cost{1}); full.RetryAfter.Round(time.Microsecond) != 3*time.Second {
			t.Errorf("%v, want 3s until 12 have leaked to 9", full)
		}
	})
}

// Refused and Hold count after Done, too.
func TestPermit_RefusedAndHoldCountAfterDone(t *testing.T) {
	for name, hold := range map[string]func(*Permit){
		"Refused": func(p *Permit) { p.Refused(time.Minute) },
		"Hold":    func(p *Permit) { p.Hold(time.Minute) },
	} {
		bothPaths(t, func(t *testing.T, b *Bucket) {
			p := admit(t, b, 1)
			p.Done()
			hold(&p)
			if full := refused(t, b, Cost{1}); !full.Held || full.RetryAfter < time.Minute {
				t.Errorf("%s: %v, want a hold of a minute", name, full)
			}
		})
	}
}

// The level leaks during a hold, because nothing is booked behind the refused call.
func TestHold_RefusedCallThatIsSettledIsNotBooked(t *testing.T) {
	bothPaths(t, func(t *testing.T, b *Bucket) {
		p := admit(t, b, 1)
		p.Settle(Cost{1})
		p.Settle(Cost{}) // only the first one counts
		p.Refused(time.Minute)
		time.Sleep(time.Minute)
		if s, err := b.State(ctx); err != nil || s.Level != 9 {
			t.Errorf("a level of %v after the hold, want 9: room for one such call (%v)", s.Level, err)
		}
	})
}

// The call of a returned ticket settles and holds nothing, and a call that is done is not returned.
func TestTicket_ReturnedOneSettlesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("ticket", Limit{Capacity: 10, LeakRate: 1}))
		k := BookRequest{Costs: []Cost{{10}}}
		must(t, b.Book(ctx, &k))
		must(t, b.Book(ctx, &BookRequest{Unused: k.Tickets}))
		admit(t, b, 8)
		p := k.Tickets[0].Permit()
		p.Settle(Cost{})
		p.Settle(Cost{20})
		p.Refused(time.Hour)
		p.Hold(time.Hour)
		p.Done()
		admit(t, b, 2)
		refused(t, b, Cost{1})

		time.Sleep(10 * time.Second)
		k = BookRequest{Costs: []Cost{{10}}}
		must(t, b.Book(ctx, &k))
		p = k.Tickets[0].Permit()
		p.Done()
		must(t, b.Book(ctx, &BookRequest{Unused: k.Tickets}))
		refused(t, b, Cost{1})
	})
}

type silent struct{ *Permit }

func (silent) Done() {}

// Pending reports whether Done has something to free.
func TestPermit_Pending(t *testing.T) {
	ours := Permit{}
	pinned := Permit{pin: new(atomic.Int64)}
	pinned.pin.Store(1)
	slot := admit(t, Must(NewBucket("slot", InFlight(1))), 1)
	twoLimits := admit(t, Must(NewBucket("two", PerSecond(1), PerHour(9).Of(0, "hour"))), 1)
	fast := admit(t, Must(NewBucket("one", PerSecond(1))), 1)
	foreign := NewPermit(silent{&ours})
	for _, c := range []struct {
		name   string
		permit *Permit
		want   bool
	}{
		{"nil", nil, false}, {"zero", &Permit{}, false}, {"of a word", &fast, false}, {"of two limits", &twoLimits, false},
		{"of a limit on calls at once", &slot, true}, {"pinned", &pinned, true}, {"foreign", &foreign, true},
	} {
		if got := c.permit.Pending(); got != c.want {
			t.Errorf("a permit %s: Pending() = %v", c.name, got)
		}
		c.permit.Done()
		if c.permit.Pending() {
			t.Errorf("a permit %s is pending after Done", c.name)
		}
	}
}

// A call waits only for the limits of units that it costs.
func TestAcquire_WaitsOnlyForLimitsOfItsUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("k", Limit{Capacity: 1, LeakRate: 1. / 3600, Name: "reports"}, Limit{Capacity: 100, LeakRate: 10, Unit: 1, Name: "rows"}))
		p, err := b.Acquire(ctx, Cost{1, 1})
		must(t, err)
		p.Settle(Cost{5, 1}) // far above the capacity
		if ok, err := b.AbleToAccept(ctx, Cost{Free, 50}); !ok || err != nil {
			t.Errorf("able to accept rows: %v, %v", ok, err)
		}
		_, err = b.Acquire(ctx, Cost{Free, 50})
		must(t, err)
		refused(t, b, Cost{1, 1})
	})
}

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
		bubble(t, name, func(t *testing.T) { test(t, Must(NewBucket("permit", limits...))) })
	}
}

// A call settles its cost once, and holds the bucket, before its Done and after it.
func TestPermit_SettlesOnceAndHoldsAfterDone(t *testing.T) {
	for name, does := range map[string]func(t *testing.T, b *Bucket){
		"Settle returns what a call has not used": func(t *testing.T, b *Bucket) {
			p := admit(t, b, 10)
			p.Settle(Cost{4})
			admit(t, b, 6)
			refused(t, b, Cost{1})
		},
		"only the first Settle counts, before or after Done": func(t *testing.T, b *Bucket) {
			p := admit(t, b, 10)
			p.Done()
			p.Settle(Cost{4})
			p.Settle(Cost{})
			p.Done()
			p.Settle(Cost{})
			admit(t, b, 6)
			refused(t, b, Cost{1})
		},
		"Settle adds what a call has used beyond its cost, also after Done": func(t *testing.T, b *Bucket) {
			p := admit(t, b, 1)
			p.Done()
			p.Settle(Cost{12})
			if full := refused(t, b, Cost{1}); full.RetryAfter.Round(time.Microsecond) != 3*time.Second {
				t.Errorf("%v, want 3s until 12 have leaked to 9", full)
			}
		},
		"Refused and Hold count after Done": func(t *testing.T, b *Bucket) {
			p := admit(t, b, 1)
			p.Done()
			for n, hold := range []func(time.Duration){p.Refused, p.Hold} {
				d := time.Duration(n+1) * time.Minute
				hold(d)
				full := refused(t, b, Cost{1})
				errorIf(t, !full.Held || full.RetryAfter < d, "%v, want a hold of %v", full, d)
			}
		},
		"the level leaks during a hold: nothing is booked behind the refused call": func(t *testing.T, b *Bucket) {
			p := admit(t, b, 1)
			p.Settle(Cost{1})
			p.Settle(Cost{}) // only the first one counts
			p.Refused(time.Minute)
			time.Sleep(time.Minute)
			if s, err := b.State(ctx); err != nil || s.Level != 9 {
				t.Errorf("a level of %v after the hold, want 9: room for one such call (%v)", s.Level, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { bothPaths(t, does) })
	}
}

// A permit is of its own call.
func TestPermit_TicketsAndUnits(t *testing.T) {
	bubble(t, "The call of a returned ticket settles and holds nothing, and a call that is done is not returned", func(t *testing.T) {
		b := Must(NewBucket("ticket", Limit{Capacity: 10, LeakRate: 1}))
		k := book(t, b, BookRequest{Costs: []Cost{{10}}})
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
		k = book(t, b, BookRequest{Costs: []Cost{{10}}})
		p = k.Tickets[0].Permit()
		p.Done()
		must(t, b.Book(ctx, &BookRequest{Unused: k.Tickets}))
		refused(t, b, Cost{1})
	})
	t.Run("Pending reports whether Done has something to free", func(t *testing.T) {
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
			equal(t, c.permit.Pending(), c.want, "a permit %s: Pending", c.name)
			c.permit.Done()
			errorIf(t, c.permit.Pending(), "a permit %s is pending after Done", c.name)
		}
	})
	bubble(t, "A call waits only for the limits of units that it costs", func(t *testing.T) {
		b := Must(NewBucket("k", Limit{Capacity: 1, LeakRate: 1. / 3600, Name: "reports"}, Limit{Capacity: 100, LeakRate: 10, Unit: 1, Name: "rows"}))
		p := admit(t, b, 1, 1)
		p.Settle(Cost{5, 1}) // far above the capacity
		ok, err := b.AbleToAccept(ctx, Cost{Free, 50})
		errorIf(t, !ok || err != nil, "able to accept rows: %v, %v", ok, err)
		admit(t, b, Free, 50)
		refused(t, b, Cost{1, 1})
	})
}

type silent struct{ *Permit }

func (silent) Done() {}

// The State of a permit next to a calendar asks for the periods of the call's time: those of another one allocate,
// and displace them.
func TestPermit_StateKeepsTheCalendarsPeriods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour) // a bubble begins at midnight, when no call leaves
		b := Must(NewBucket("b", Limit{Capacity: 1e6, LeakRate: 1e6}, Daily(1e12, time.UTC)))
		call := func() {
			p := admit(t, b, 1)
			if s := p.State(); s.Limit.LeakRate != 1e6 || s.EmptyIn <= 0 || s.NextIn != 0 {
				t.Errorf("%+v", s)
			}
			p.Done()
		}
		for range 2 * lately { // the first ones make the objects
			call()
		}
		if n := testing.AllocsPerRun(100, call); n > 1 && !raced {
			t.Errorf("%v objects", n)
		}
	})
}

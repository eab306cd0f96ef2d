package outbound

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/internal/core"
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
			s := p.State()
			if s.Limit.LeakRate != 1e6 || s.EmptyIn <= 0 || s.NextIn != 0 { // errorIf would allocate
				t.Errorf("%+v", s)
			}
			p.Done()
		}
		for range 2 * core.Lately { // the first ones make the objects
			call()
		}
		n := testing.AllocsPerRun(100, call)
		errorIf(t, n > 1 && !raced, "%v objects", n)
	})
}

// fewCalls has the next calls use the objects of the latest n again. If shared is true, all
// processors have one ring, for a test with one goroutine.
func fewCalls(t *testing.T, n int, shared bool) {
	made, one := core.Rings.New, core.RingOf(n)
	core.Rings = sync.Pool{New: func() any {
		if shared {
			return one
		}
		return core.RingOf(n)
	}}
	t.Cleanup(func() { core.Rings = sync.Pool{New: made} })
}

// several are limits of which no word keeps the state.
func several() []Limit {
	return []Limit{{Capacity: 1000, LeakRate: 0.001}, {Capacity: 1000, LeakRate: 0.001, Name: "other"}, Window(1000, time.Hour)}
}

// decided returns a bucket that decides directly, as from its second call on.
func decided(t *testing.T) *Bucket {
	b := Must(NewBucket("several", several()...))
	p := mustAcquire(t, b)
	p.Settle(Cost{})
	p.Done()
	return b
}

// again makes calls until one uses the object of a permit's call.
func again(t *testing.T, b *Bucket, p *Permit) *Permit {
	t.Helper()
	for range 10 {
		q := mustAcquire(t, b)
		if q.in.Call == p.in.Call {
			return q
		}
		q.Settle(Cost{})
		q.Done()
	}
	t.Fatal("the object was not used again")
	return nil
}

// A permit whose call was forgotten does nothing to the call that uses its object.
func TestPermit_ForgottenCallIsNoOther(t *testing.T) {
	fewCalls(t, 2, true)
	synctest.Test(t, func(t *testing.T) {
		b := decided(t)
		p := mustAcquire(t, b)
		p.Done()
		was, other := *p, decided(t)
		q := again(t, other, p)
		for _, late := range []*Permit{p, &was} {
			equal(t, late.State(), (State{}), "state of a forgotten call")
			late.Settle(Cost{map[bool]float64{true: 500}[late == p]})
			late.Settle(Cost{700})
			equal(t, late.State(), (State{}), "state of a forgotten call")
			late.in.Flags &^= core.Done
			late.Done()
		}
		one, two := level(t, b, 2), level(t, other, 2)
		errorIf(t, one != 500 || two != 1, "levels %g and %g, want 500 by one of the Settles, and 1", one, two)
		q.Settle(Cost{})
		equal(t, level(t, other, 2), 0, "level after the settle of the call itself")
		p.Refused(time.Minute)
		admit(t, other, 1)
		full := refused(t, b, Cost{1})
		errorIf(t, !full.Held || full.RetryAfter.Round(time.Second) != time.Minute, "%v, want a hold of a minute", full)
		n := p.bucket()
		errorIf(t, n != &b.core, "the permit is of another bucket")
	})
}

// A late answer to a call that is not forgotten is as one to any call.
func TestPermit_LateAnswerFindsItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("late", several()...))
		all := make([]*Permit, 100)
		for i := range all {
			all[i] = mustAcquire(t, b)
			all[i].Done()
		}
		for i, p := range all {
			p.Settle(Cost{float64(i % 3)})
			p.Settle(Cost{500})
		}
		if n := level(t, b, 2); n != 33+2*33 { // 34 of 0, 33 of 1, 33 of 2
			t.Errorf("level %g after late settles, want 99", n)
		}
	})
}

// A call of several units, or of more than one, is never forgotten: a Settle returns what it has not
// used, however many calls have ended since. Other calls make room by a Settle before their end.
func TestPermit_LateSettleOfTokensCounts(t *testing.T) {
	fewCalls(t, 2, true)
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("tokens", Limit{Capacity: 1000, LeakRate: 0.001}, Limit{Capacity: 1e5, LeakRate: 0.001, Unit: 1}))
		other := decided(t)
		admit(t, b, 1, 1) // the next ones are decided directly
		p, q := admit(t, b, 1, 4000), admit(t, b, 1, 10)
		p.Done()
		q.Done()
		for range 100 {
			o := mustAcquire(t, other)
			o.Settle(Cost{})
			o.Done()
		}
		p.Settle(Cost{1, 500})
		q.Settle(Cost{1, 50_000})
		equal(t, level(t, b, 1), 50_501, "level")
	})
}

// Late answers from other goroutines meet the calls that use their objects, and touch none of them.
func TestPermit_LateAnswersFromOthers(t *testing.T) {
	fewCalls(t, 3, false)
	b := Must(NewBucket("others", Limit{Capacity: 1e6, LeakRate: 1}, Limit{Capacity: 1e6, LeakRate: 1, Name: "other"}, Window(1e6, time.Hour)))
	late := make(chan Permit, 64)
	var callers, liars sync.WaitGroup
	for range 4 {
		liars.Go(func() {
			for p := range late {
				p.Settle(Cost{1, 5}) // as it was charged: no limit counts the other unit
				p.Hold(-1)
				_ = p.State()
				p.Done()
			}
		})
		callers.Go(func() {
			for i := range 2000 {
				p := mustAcquire(t, b)
				if i%2 == 0 {
					p.Settle(Cost{})
				}
				p.Done()
				late <- *p
			}
		})
	}
	callers.Wait()
	close(late)
	liars.Wait()
	equal(t, level(t, b, 2), 4000, "level after 8000 calls of which half have left")
}

// A call by several limits, or by a window, needs no memory of its own.
func TestAcquire_SeveralLimitsAllocateNothing(t *testing.T) {
	if raced {
		t.Skip("with the race detector, a pool forgets some")
	}
	wide := Limit{Capacity: 1e9, LeakRate: 1e9}
	for _, limits := range [][]Limit{{wide, wide.Of(0, "second"), wide.Of(0, "third")}, {Window(1_000_000, time.Hour)}} {
		b := Must(NewBucket("memory", limits...))
		one := func() {
			p := admit(t, b, 1)
			p.Settle(Cost{1})
			p.Answered(Answer{Kind: AnswerRemaining, Wait: time.Hour, Remaining: Cost{1e10, -1, -1, -1}})
			p.Done()
		}
		if n := testing.AllocsPerRun(8*core.Lately, one); n > 0 { // rounded down
			t.Errorf("%v: %v allocations a call", limits, n)
		}
	}
}

package outbound

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fewCalls has the next calls use the objects of the latest n again. If shared is true, all
// processors have one ring, for a test with one goroutine.
func fewCalls(t *testing.T, n int, shared bool) {
	made, one := retirees.New, &retired{calls: make([]*call, n)}
	retirees = sync.Pool{New: func() any {
		if shared {
			return one
		}
		return &retired{calls: make([]*call, n)}
	}}
	t.Cleanup(func() { retirees = sync.Pool{New: made} })
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
		if q.call == p.call {
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
			late.flags &^= flagDone
			late.Done()
		}
		one, two := level(t, b, 2), level(t, other, 2)
		errorIf(t, one != 500 || two != 1, "levels %g and %g, want 500 by one of the Settles, and 1", one, two)
		q.Settle(Cost{})
		equal(t, level(t, other, 2), 0, "level after the settle of the call itself")
		p.Refused(time.Minute)
		admit(t, other, 1)
		if full := refused(t, b, Cost{1}); !full.Held || full.RetryAfter.Round(time.Second) != time.Minute {
			t.Errorf("%v, want a hold of a minute", full)
		}
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
		if n := testing.AllocsPerRun(8*lately, one); n > 0 { // rounded down
			t.Errorf("%v: %v allocations a call", limits, n)
		}
	}
}

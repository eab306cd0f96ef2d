package outbound

import (
	"math"
	"slices"
	"testing"
	"time"
)

// answers are those that a listener was notified of.
type answers []Answer

func (a *answers) Answered(x Answer) { *a = append(*a, x) }

func (a *answers) expect(t *testing.T, want ...Answer) {
	t.Helper()
	errorIf(t, !slices.Equal(*a, want), "heard %+v, want %+v", *a, want)
	*a = nil
}

// Each listener is notified of each answer, which has its effect as well. Done has no more to free.
func TestListen_ReportsEachAnswer(t *testing.T) {
	one := Limit{Capacity: 10, LeakRate: 1}
	for name, limits := range map[string][]Limit{"word": {one}, "call": {one, one.Of(1, "other")}} {
		for _, wrapped := range []bool{false, true} {
			bubble(t, name, func(t *testing.T) {
				b := Must(NewBucket("b", limits...))
				p := mustAcquire(t, b)
				var first, second answers
				p.Listen(nil)
				p.Listen(&first)
				p.Listen(&second)
				errorIf(t, p.Pending(), "Done has something to free")
				if wrapped {
					inner := *p
					*p = NewPermit(&inner)
				}
				quota := Answer{Kind: AnswerQuota, Budget: Budget{Policy: "core", Limit: 60, Remaining: 5, Reset: time.Minute}}
				p.Answered(quota)
				s := states(t, b)[0]
				errorIf(t, s.HeldFor != 0 || s.Level != 1, "a quota changed the bucket: %+v", s)
				p.Refused(3 * time.Second)
				s = states(t, b)[0]
				errorIf(t, s.HeldFor != 3*time.Second, "held for %v", s.HeldFor)
				p.Done()
				all := []Answer{quota, {Kind: AnswerRefused, Wait: 3 * time.Second, Reason: "rate"}}
				first.expect(t, all...)
				second.expect(t, all...)
			})
		}
	}
	var none *Permit
	none.Listen(new(answers))
	zero := Permit{}
	var heard answers
	zero.Listen(&heard)
	zero.Hold(time.Second)
	heard.expect(t, Answer{Kind: AnswerHold, Wait: time.Second})
}

// used is what a listener was notified of, and is an answer's listener, too.
type used struct {
	answers
	costs []Cost
}

func (u *used) Settled(c Cost) { u.costs = append(u.costs, c) }

// Listeners are notified of the first valid Settle, before or after Done, whatever its effect is.
func TestListen_ReportsTheFirstSettle(t *testing.T) {
	one := Limit{Capacity: 10, LeakRate: 1}
	for _, limits := range [][]Limit{{one}, {one, one.Of(1, "other")}, nil} {
		for _, real := range []Cost{{1, 1}, {1, 3}, {}} {
			p := &Permit{}
			if limits != nil {
				p = mustAcquire(t, Must(NewBucket("b", limits...)))
			}
			var first, second used
			p.Listen(&first)
			p.Listen(new(answers))
			p.Listen(&second)
			p.Settle(Cost{math.NaN()})
			p.Settle(Cost{1e13})
			p.Done()
			p.Settle(real)
			p.Settle(Cost{7})
			errorIf(t, !slices.Equal(first.costs, []Cost{real}) || !slices.Equal(second.costs, first.costs),
				"%v: heard %v and %v, want %v", limits, first.costs, second.costs, real)
		}
	}
}

// A listener costs no allocation.
func TestListen_AllocatesNothing(t *testing.T) {
	b := Must(NewBucket("b", Limit{Capacity: 1e9, LeakRate: 1e9}))
	l := new(answers)
	if n := testing.AllocsPerRun(100, func() {
		p, _ := b.Acquire(ctx, Cost{1})
		p.Listen(l)
		p.Done()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

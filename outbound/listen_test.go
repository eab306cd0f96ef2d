package outbound

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// answers are what a listener has heard.
type answers []Answer

func (a *answers) Answered(x Answer) { *a = append(*a, x) }

func (a *answers) expect(t *testing.T, want ...Answer) {
	t.Helper()
	if !slices.Equal(*a, want) {
		t.Errorf("heard %+v, want %+v", *a, want)
	}
	*a = nil
}

// What a listener hears has its effect as well, and the permit has no more to free.
func TestListen_ReportsEachAnswer(t *testing.T) {
	one := Limit{Capacity: 10, LeakRate: 1}
	for name, limits := range map[string][]Limit{"cell": {one}, "call": {one, one.Of(1, "other")}} {
		for _, wrapped := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := Must(NewBucket("b", limits...))
					p := mustAcquire(t, b)
					var first, second answers
					p.Listen(nil)
					p.Listen(&first)
					p.Listen(&second)
					if p.Pending() {
						t.Error("Done has something to free")
					}
					if wrapped {
						inner := *p
						*p = NewPermit(&inner)
					}
					told := Answer{Kind: AnswerQuota, Budget: Budget{Policy: "core", Limit: 60, Remaining: 5, Reset: time.Minute}}
					p.Answered(told)
					if s, _ := b.State(ctx); s.HeldFor != 0 || s.Level != 1 {
						t.Errorf("what the API tells changed the bucket: %+v", s)
					}
					p.Refused(3 * time.Second)
					if s, _ := b.State(ctx); s.HeldFor != 3*time.Second {
						t.Errorf("held for %v", s.HeldFor)
					}
					p.Done()
					all := []Answer{told, {Kind: AnswerRefused, Wait: 3 * time.Second, Reason: "rate"}}
					first.expect(t, all...)
					second.expect(t, all...)
				})
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

// What a quota looks like is an event, and neither a success nor the end of one.
func TestObserve_ReportsQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		budget := Budget{Policy: "core", Unit: "requests", Limit: 60, Remaining: 59, Reset: time.Hour, Window: time.Hour}
		p := mustAcquire(t, Observe(Must(NewBucket("b", PerSecond(1))), "api", h.hear))
		p.Answered(Answer{Kind: AnswerQuota, Budget: budget})
		p.Done()
		if len(h.events) != 3 || h.events[1].Budget == nil || *h.events[1].Budget != budget {
			t.Fatalf("%+v", h.events)
		}
		expect(t, &h, Event{Kind: EventAdmitted, Cost: Cost{1}}, Event{Kind: EventQuota, Cost: Cost{1}, Budget: h.events[1].Budget},
			Event{Kind: EventEnded, Cost: Cost{1}, Succeeded: true})
	})
}

// The contexts of later events have the call's values and do not end.
func TestObserve_CtxOfLaterEventsDoesNotEnd(t *testing.T) {
	outer, cancel := context.WithTimeout(context.WithValue(ctx, heardKey{}, "trace"), time.Hour)
	ended := 0
	l := Observe(Must(NewBucket("b", Limit{Capacity: 1e9, LeakRate: 1e9})), "api", func(ctx context.Context, e Event) {
		if e.Kind != EventEnded {
			return
		}
		ended++
		if _, has := ctx.Deadline(); has || ctx.Err() != nil || ctx.Done() != nil || ctx.Value(heardKey{}) != "trace" {
			t.Error("the context of the end ends, or has lost the values")
		}
	})
	if n := testing.AllocsPerRun(100, func() {
		p, err := l.Acquire(outer, Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		p.Done()
	}); n != 1 {
		t.Errorf("%v allocations, want 1", n)
	}
	p, _ := l.Acquire(outer, Cost{1})
	cancel()
	p.Done()
	if ended == 0 {
		t.Error("no end was told")
	}
}

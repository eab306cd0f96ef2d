package outbound

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// around is a foreign Call around a permit, with methods of its own.
type around struct {
	p    *Permit
	last Answer
}

func (a *around) Settle(used Cost)    { a.p.Settle(used) }
func (a *around) Answered(now Answer) { a.last = now; a.p.Answered(now) }
func (a *around) Done()               { a.p.Done() }

// within is a foreign Call that embeds a permit, and overrides a method.
type within struct{ *Permit }

func (w within) Done() { w.Permit.Done() }

// A refusal slows the clock only after a success: before any it says nothing. So a call
// without an answer is to leave it unslowed, whichever way its permit goes.
func TestPermit_CallWithoutAnswerIsNoSuccess(t *testing.T) {
	one := Limit{Capacity: 10, LeakRate: 1}
	buckets := map[string]func() *Bucket{
		"one limit":          func() *Bucket { return Must(NewBucket("k", one)) },
		"two limits":         func() *Bucket { return Must(NewBucket("k", one, one.Of(1, "other"))) },
		"beside an InFlight": func() *Bucket { return Must(NewBucket("k", one, InFlight(5))) },
		"shared":             func() *Bucket { return Must(NewSharedBucket(store.NewMemory(), "k", one)) },
	}
	wrapped := func(l Limiter, wrap func(*Permit) Call) Limiter {
		return limiterFunc(func(ctx context.Context, c Cost) (Permit, error) {
			p, err := l.Acquire(ctx, c)
			return NewPermit(wrap(&p)), err
		})
	}
	observe := func(l Limiter) Limiter { return Observe(l, "n", func(context.Context, Event) {}) }
	keyed := func(l Limiter) Limiter {
		k := &Keyed[string]{New: func(string) (Limiter, error) { return l, nil }}
		return k.For("key")
	}
	embedded := func(l Limiter) Limiter { return wrapped(l, func(p *Permit) Call { return within{p} }) }
	ways := map[string]func(Limiter) Limiter{
		"direct":          func(l Limiter) Limiter { return l },
		"observed":        observe,
		"keyed":           keyed,
		"keyed twice":     func(l Limiter) Limiter { return keyed(keyed(l)) },
		"a permit":        func(l Limiter) Limiter { return wrapped(l, func(p *Permit) Call { return p }) },
		"an embedded one": embedded,
		"a call by hand":  func(l Limiter) Limiter { return wrapped(l, func(p *Permit) Call { return &around{p: p} }) },
		"all of them":     func(l Limiter) Limiter { return keyed(observe(embedded(observe(keyed(l))))) },
		"a job's permit": func(l Limiter) Limiter {
			return wrapped(l, func(p *Permit) Call {
				return PermitFrom(&jobContext{Context: ctx, job: shared{guarded: guarded{permit: *p}}})
			})
		},
	}
	ends := map[string]struct {
		end    func(*Permit)
		slowed bool
	}{
		"failed":             {(*Permit).Failed, false},
		"no answer":          {func(p *Permit) { p.Answered(Answer{}); p.Done() }, false},
		"no answer, settled": {func(p *Permit) { p.Settle(Cost{2}); p.Failed() }, false},
		"a hold as well":     {func(p *Permit) { p.Hold(time.Second); p.Failed() }, false},
		"never went out":     {func(p *Permit) { p.Settle(Cost{}); p.Done() }, false},
		"done":               {(*Permit).Done, true},
		"held":               {func(p *Permit) { p.Hold(time.Second); p.Done() }, true},
		"too late":           {func(p *Permit) { p.Done(); p.Failed() }, true},
	}
	for kind, bucket := range buckets {
		for way, wrap := range ways {
			for name, c := range ends {
				synctest.Test(t, func(t *testing.T) {
					b := bucket()
					l := wrap(b)
					refused := func() {
						p := mustAcquire(t, l)
						p.Refused(time.Second)
						p.Done()
						time.Sleep(time.Minute)
					}
					refused()
					c.end(mustAcquire(t, l))
					time.Sleep(time.Minute)
					refused()
					if s := states(t, b)[0]; (s.Speed < 1) != c.slowed {
						t.Errorf("%s, %s, %s: speed %v, slowed: want %v", kind, way, name, s.Speed, c.slowed)
					}
				})
			}
		}
	}
}

// Everything that an answer says reaches the bucket whichever way its permit goes.
func TestAnswer_ReachesTheBucketWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 1}))
		a := around{p: mustAcquire(t, b)}
		l := Observe(limiterFunc(func(context.Context, Cost) (Permit, error) { return NewPermit(&a), nil }), "n", func(context.Context, Event) {})
		p := mustAcquire(t, l)
		for _, answer := range []Answer{
			{Kind: AnswerRefused, Wait: -1, MaxWait: time.Second, Reason: "quota"},
			{Kind: AnswerHold, Wait: time.Second, Reason: "rate"},
			{Kind: AnswerRemaining, Wait: 3 * time.Second, Remaining: Cost{1, -1, 2, -1}},
			{},
			{Kind: "whim", Wait: time.Hour, Remaining: Cost{1}},
		} {
			if p.Answered(answer); a.last != answer {
				t.Errorf("%+v came as %+v", answer, a.last)
			}
		}
		if s := states(t, b)[0]; s.HeldFor > 5*time.Second {
			t.Errorf("an answer of an unknown kind holds for %v", s.HeldFor)
		}
		(*Permit)(nil).Answered(Answer{Kind: AnswerRefused})
		new(Permit).Answered(Answer{Kind: AnswerRefused})
	})
}

func TestObserve_CallWithoutAnswerHasNotSucceeded(t *testing.T) {
	var h heard
	l := Observe(Unlimited{}, "n", h.hear)
	for _, succeeded := range []bool{false, true} {
		p := mustAcquire(t, l)
		h.events = nil
		if !succeeded {
			p.Answered(Answer{})
		}
		p.Done()
		p.Failed() // has ended
		if len(h.events) != 1 || h.events[0].Kind != EventEnded || h.events[0].Succeeded != succeeded {
			t.Errorf("succeeded %v: heard %+v", succeeded, h.events)
		}
	}
}

package outbound

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// heard keeps events, and their ctx's value of heardKey.
type heard struct {
	mu     sync.Mutex
	events []Event
	values []any
	errs   []error
}

type heardKey struct{}

func (h *heard) hear(ctx context.Context, e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
	h.values = append(h.values, ctx.Value(heardKey{}))
	h.errs = append(h.errs, ctx.Err())
}

func (h *heard) kinds() (all []string) {
	for _, e := range h.events {
		all = append(all, e.Kind)
	}
	return all
}

func expect(t *testing.T, h *heard, want ...Event) {
	t.Helper()
	fatalIf(t, len(h.events) != len(want), "got %v, want %d events", h.kinds(), len(want))
	for i, e := range h.events {
		w := want[i]
		if w.Name == "" {
			w.Name = "api"
		}
		if w.Err != nil && errors.Is(e.Err, w.Err) {
			w.Err = e.Err
		}
		errorIf(t, e != w, "event %d: %+v\nwant %+v", i, e, w)
	}
	h.events = nil
}

// Each call is reported: admitted, refused or failed, then what is reported to its permit, and its end.
func TestObserve_ReportsWhatBecomesOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		b := Must(NewBucket("secret", Limit{Capacity: 10, LeakRate: 1}))
		l := Observe(b, "api", h.hear)
		c := Cost{6}

		p := admit(t, l, 6)
		expect(t, &h, Event{Kind: EventAdmitted, Cost: c})

		full := refused(t, l, c)
		expect(t, &h, Event{Kind: EventRefused, Cost: c, Limit: "10 burst, 1/s", Err: full})
		errorIf(t, full.RetryAfter != 2*time.Second, "refused with %v", full)

		_, err := l.Acquire(ctx, Cost{11})
		expect(t, &h, Event{Kind: EventFailed, Cost: Cost{11}, Err: ErrTooLarge})
		errorIf(t, !errors.Is(err, ErrTooLarge), "%v", err)

		for _, bad := range []float64{math.Inf(1), -1, 1e13} {
			p.Settle(Cost{bad})
			expect(t, &h, Event{Kind: EventSettled, Cost: c, Used: Cost{bad}, Err: ErrInvalid})
		}
		p.Settle(Cost{math.NaN()})
		errorIf(t, len(h.events) != 1 || h.events[0].Err != ErrInvalid, "settled to NaN: %+v", h.events)
		h.events = nil
		p.Settle(Cost{2})
		p.Settle(Cost{3}) // not the first
		expect(t, &h, Event{Kind: EventSettled, Cost: c, Used: Cost{2}})
		equal(t, level(t, b, 0), 2, "level")

		budget := Budget{Policy: "core", Unit: "requests", Limit: 60, Remaining: 59, Reset: time.Hour, Window: time.Hour}
		p.Answered(Answer{Kind: AnswerQuota, Budget: budget})
		fatalIf(t, len(h.events) != 1 || h.events[0].Budget == nil || *h.events[0].Budget != budget, "%+v", h.events)
		expect(t, &h, Event{Kind: EventQuota, Cost: c, Budget: h.events[0].Budget})

		p.Hold(-1)
		p.Hold(time.Second)
		expect(t, &h, Event{Kind: EventHeld, Cost: c, Err: ErrInvalid}, Event{Kind: EventHeld, Cost: c, Hold: time.Second})
		time.Sleep(3 * time.Second)
		p.Done()
		p.Done()
		expect(t, &h, Event{Kind: EventEnded, Cost: c, Took: 3 * time.Second, Succeeded: true})

		p = admit(t, l, 1)
		p.Refused(-1)
		p.Done()
		p.Refused(time.Minute) // an answer that is understood late
		expect(t, &h, Event{Kind: EventAdmitted, Cost: Cost{1}},
			Event{Kind: EventHeld, Cost: Cost{1}, Rejected: true, Reason: "rate", Err: ErrInvalid},
			Event{Kind: EventEnded, Cost: Cost{1}},
			Event{Kind: EventHeld, Cost: Cost{1}, Rejected: true, Reason: "rate", Hold: time.Minute})
		s := states(t, b)[0]
		errorIf(t, s.HeldFor != time.Minute, "held for %v, want a minute", s.HeldFor)
	})
}

// Whether what remains holds the bucket depends on all of its calls, so the bucket's observers are notified of it.
func TestObserve_LeavesWhatRemainsToTheBucket(t *testing.T) {
	eachBucket(t, func(t *testing.T, b, _ *Bucket) {
		var h heard
		var c changeLog
		defer b.Observe(c.add)()
		p := mustAcquire(t, Observe(b, "api", h.hear))
		h.events = nil
		for range 2 {
			p.Answered(Answer{Kind: AnswerRemaining, Remaining: Cost{0, -1, -1, -1}, Wait: time.Hour})
		}
		c.expect(t, b, "nothing remains", Event{Kind: EventHeld, Hold: time.Hour, Reason: "exhausted"})
		expect(t, &h)
	})
}

// ownAnswered is a foreign Call around a permit.
type ownAnswered struct {
	*Permit
	heard int
}

func (o *ownAnswered) Answered(Answer) { o.heard++ }

// An event has what is known of its call.
func TestObserve_Events(t *testing.T) {
	bubble(t, "A foreign Call receives answers by its own method", func(t *testing.T) {
		var h heard
		b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 1}))
		own := ownAnswered{Permit: mustAcquire(t, b)}
		l := Observe(limiterFunc(func(context.Context, Cost) (Permit, error) { return NewPermit(&own), nil }), "api", h.hear)
		mustAcquire(t, l).Answered(Answer{Kind: AnswerRemaining, Wait: time.Minute})
		expect(t, &h, Event{Kind: EventAdmitted, Cost: Cost{1}})
		s := states(t, b)[0]
		errorIf(t, own.heard != 1 || s.HeldFor != 0, "its own heard %d times, held for %v", own.heard, s.HeldFor)
	})
	t.Run("An observer does not count a call without an answer as a success", func(t *testing.T) {
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
			errorIf(t, len(h.events) != 1 || h.events[0].Kind != EventEnded || h.events[0].Succeeded != succeeded,
				"succeeded %v: heard %+v", succeeded, h.events)
		}
	})
	bubble(t, "An event has the time that the call has waited, and the values of its ctx", func(t *testing.T) {
		var h heard
		outer, cancel := context.WithTimeout(context.WithValue(ctx, heardKey{}, "trace"), 5*time.Second)
		defer cancel()
		l := Observe(limiterFunc(func(ctx context.Context, c Cost) (Permit, error) {
			select {
			case <-ctx.Done():
				return Permit{}, ctx.Err()
			case <-time.After(time.Duration(c[0]) * time.Second):
				return Permit{}, nil
			}
		}), "api", h.hear)

		p, err := l.Acquire(outer, Cost{2})
		must(t, err)
		_, err = l.Acquire(outer, Cost{60}) // gives up after 3 s
		p.Settle(Cost{})
		p.Done()
		expect(t, &h,
			Event{Kind: EventAdmitted, Cost: Cost{2}, Wait: 2 * time.Second},
			Event{Kind: EventFailed, Cost: Cost{60}, Wait: 3 * time.Second, Err: err},
			Event{Kind: EventSettled, Cost: Cost{2}}, Event{Kind: EventEnded, Cost: Cost{2}, Took: 3 * time.Second})
		errorIf(t, !slices.Equal(h.values, slices.Repeat([]any{"trace"}, 4)), "values of ctx: %v", h.values)
		errorIf(t, h.errs[0] != nil || h.errs[1] != context.DeadlineExceeded || h.errs[2] != nil || h.errs[3] != nil,
			"errors of ctx: %v", h.errs)
	})
	t.Run("A decision that a bucket makes immediately has a wait of zero, without another reading of the clock", func(t *testing.T) {
		var events []Event
		b := Must(NewBucket("b", Limit{Capacity: 1, LeakRate: 1e-3}))
		l := Observe(b, "api", func(_ context.Context, e Event) { events = append(events, e) })
		before := now()
		p := mustAcquire(t, l)
		refused(t, l, Cost{1})
		p.Done()
		end := now()
		fatalIf(t, len(events) != 3 || events[0].Kind != EventAdmitted || events[1].Kind != EventRefused || events[2].Kind != EventEnded,
			"%+v", events)
		errorIf(t, events[0].Wait != 0 || events[1].Wait != 0, "waited %v and %v", events[0].Wait, events[1].Wait)
		took := events[2].Took
		errorIf(t, took <= 0 || took > end-before, "took %v, of %v", took, end-before)
	})
	t.Run("The ctx of a later event has the values of the call's ctx, and does not end", func(t *testing.T) {
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
			p, _ := l.Acquire(outer, Cost{1})
			p.Done()
		}); n != 1 {
			t.Errorf("%v allocations, want 1", n)
		}
		p, _ := l.Acquire(outer, Cost{1})
		cancel()
		p.Done()
		errorIf(t, ended == 0, "no end was reported")
	})
	t.Run("An event says in words what it has, and nothing else", func(t *testing.T) {
		for want, e := range map[string]Event{
			"held: hold 1m, rejected, reason rate":                                                  {Kind: EventHeld, Hold: time.Minute, Rejected: true, Reason: "rate"},
			`admitted: "github", cost [1 200 0 0], wait 101ms`:                                      {Kind: EventAdmitted, Name: "github", Cost: Cost{1, 200}, Wait: 101 * time.Millisecond},
			`refused: limit "10 per 1s", outbound: rate limited: "k" is over the limit "10 per 1s"`: {Kind: EventRefused, Limit: "10 per 1s", Err: &ThrottledError{Key: "k", Limit: "10 per 1s"}},
			"quota: budget 12 of 5000 core":                                                         {Kind: EventQuota, Budget: &Budget{Policy: "core", Limit: 5000, Remaining: 12}},
			"limits: limits 10 per 1s -> 5 per 1s, version 2":                                       {Kind: EventLimits, Before: "10 per 1s", Limits: "5 per 1s, version 2"},
			"released": {Kind: EventReleased},
		} {
			equal(t, e.String(), want, "the text")
		}
	})
}

// A function that observes may do anything, and the limiter stays what it is.
func TestObserve_Functions(t *testing.T) {
	bubble(t, "A function that panics at the admission of a call ends the call, which costs nothing", func(t *testing.T) {
		for how, end := range map[string]func(){"panic": func() { panic("f") }, "goexit": runtime.Goexit} {
			b := Must(NewBucket("b", Limit{Capacity: 4, LeakRate: 1}, InFlight(1)))
			slow := limiterFunc(func(ctx context.Context, c Cost) (Permit, error) {
				time.Sleep(time.Second)
				return b.Acquire(ctx, c)
			})
			ending(func() {
				_, _ = Observe(slow, "api", func(_ context.Context, e Event) {
					if e.Kind == EventAdmitted {
						end()
					}
				}).Acquire(ctx, Cost{3})
			})
			equal(t, levels(t, b), [2]float64{0, 0}, "%s: levels", how)
		}
	})
	bubble(t, "A report has its effect also if the function panics at it", func(t *testing.T) {
		b := Must(NewBucket("b", Limit{Capacity: 4, LeakRate: 1}, InFlight(1)))
		p := mustAcquire(t, Observe(b, "api", func(_ context.Context, e Event) {
			if e.Kind != EventAdmitted {
				panic(e.Kind)
			}
		}))
		for want, report := range map[string]func(){
			EventSettled: func() { p.Settle(Cost{3}) }, EventHeld: func() { p.Hold(time.Second) }, EventEnded: p.Done,
		} {
			func() {
				defer func() { equal[any](t, recover(), want, "the panic") }()
				report()
			}()
		}
		if all := states(t, b); all[0].Level < 3 || all[0].HeldFor != time.Second || all[1].Level != 0 {
			t.Errorf("a report had no effect: %+v", all)
		}
	})
	bubble(t, "An observed limiter is idle when the limiter is, and never if that has no Idle", func(t *testing.T) {
		hear := func(context.Context, Event) {}
		b := Must(NewBucket("b", Limit{Capacity: 1, LeakRate: 1}))
		i := Observe(b, "api", hear).(idler)
		mustAcquire(t, b).Done()
		errorIf(t, i.Idle(), "idle while it is full")
		time.Sleep(2 * time.Second)
		errorIf(t, !i.Idle(), "not idle when it is empty")
		for _, l := range []Limiter{limiterFunc(nil), nil} {
			errorIf(t, Observe(l, "api", hear).(idler).Idle(), "a %T without Idle is idle", l)
		}
	})
	t.Run("A limiter without a function to report to is the limiter itself. A nil Limiter is an error of each call, and reported", func(t *testing.T) {
		b := Must(NewBucket("b", PerSecond(1)))
		equal(t, Observe(b, "api", nil), Limiter(b), "Observe with nil")
		var h heard
		errorIs(t, errOf(Observe(nil, "api", h.hear).Acquire(ctx, Cost{1})), ErrInvalid, "a call of nil")
		expect(t, &h, Event{Kind: EventFailed, Cost: Cost{1}, Err: ErrInvalid})
	})
	bubble(t, "The function is called with no lock held, so it may use the bucket", func(t *testing.T) {
		b := Must(NewBucket("b", Limit{Capacity: 4, LeakRate: 1}, InFlight(2)))
		heard := map[string]int{}
		l := Observe(b, "api", func(ctx context.Context, e Event) {
			heard[e.Kind]++
			_, unexplained := b.Explain(ctx, e.Cost)
			errorIs(t, errors.Join(unexplained, b.Resume(ctx), b.Hold(ctx, time.Millisecond)), nil, "at %v", e.Kind)
		})
		p := mustAcquire(t, l)
		p.Settle(Cost{2})
		p.Refused(time.Second)
		p.Done()
		refused(t, l, Cost{1})
		for _, k := range []string{EventAdmitted, EventRefused, EventSettled, EventHeld, EventEnded} {
			errorIf(t, heard[k] != 1, "%v was reported %d times", k, heard[k])
		}
	})
}

// BenchmarkObserve is a call with its Done, without an observer and with an empty one:
//
//	go test -run - -bench Observe -count 5 ./outbound
func BenchmarkObserve(b *testing.B) {
	bucket := Must(NewBucket("bench", Limit{Capacity: 1e9, LeakRate: 1e9}))
	for name, l := range map[string]Limiter{"bare": bucket, "observed": Observe(bucket, "bench", func(context.Context, Event) {})} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p, err := l.Acquire(ctx, Cost{1})
				if err != nil {
					b.Fatal(err)
				}
				p.Done()
			}
		})
	}
}

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

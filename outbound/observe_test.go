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

// heard notes events, and their ctx's value of heardKey.
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
	if len(h.events) != len(want) {
		t.Fatalf("heard %v, want %d events", h.kinds(), len(want))
	}
	for i, e := range h.events {
		w := want[i]
		if w.Name == "" {
			w.Name = "api"
		}
		if w.Err != nil && errors.Is(e.Err, w.Err) {
			w.Err = e.Err
		}
		if e != w {
			t.Errorf("event %d: %+v\nwant %+v", i, e, w)
		}
	}
	h.events = nil
}

func TestObserve_NilFunctionIsNoLimiter(t *testing.T) {
	b := Must(NewBucket("b", PerSecond(1)))
	if l := Observe(b, "api", nil); l != Limiter(b) {
		t.Errorf("Observe with nil returned %T", l)
	}
}

func TestObserve_ReportsWhatBecomesOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		b := Must(NewBucket("secret", Limit{Capacity: 10, LeakRate: 1}))
		l := Observe(b, "api", h.hear)
		c := Cost{6}

		p, err := l.Acquire(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, &h, Event{Kind: EventAdmitted, Cost: c})

		_, err = l.Acquire(ctx, c)
		expect(t, &h, Event{Kind: EventRefused, Cost: c, Limit: "10 burst, 1/s", Err: err})
		var full *ThrottledError
		if !errors.As(err, &full) || full.RetryAfter != 2*time.Second {
			t.Errorf("refused with %v", err)
		}

		_, err = l.Acquire(ctx, Cost{11})
		expect(t, &h, Event{Kind: EventFailed, Cost: Cost{11}, Err: ErrTooLarge})
		if !errors.Is(err, ErrTooLarge) {
			t.Error(err)
		}

		for _, bad := range []float64{math.Inf(1), -1, 1e13} {
			p.Settle(Cost{bad})
			expect(t, &h, Event{Kind: EventSettled, Cost: c, Used: Cost{bad}, Err: ErrInvalid})
		}
		p.Settle(Cost{math.NaN()})
		if len(h.events) != 1 || h.events[0].Err != ErrInvalid {
			t.Errorf("settled to NaN: %+v", h.events)
		}
		h.events = nil
		p.Settle(Cost{2})
		p.Settle(Cost{3}) // not the first
		expect(t, &h, Event{Kind: EventSettled, Cost: c, Used: Cost{2}})
		if s, _ := b.State(ctx); s.Level != 2 {
			t.Errorf("level %v, want 2", s.Level)
		}

		p.Hold(-1)
		p.Hold(time.Second)
		expect(t, &h, Event{Kind: EventHeld, Cost: c, Err: ErrInvalid}, Event{Kind: EventHeld, Cost: c, Hold: time.Second})
		time.Sleep(3 * time.Second)
		p.Done()
		p.Done()
		expect(t, &h, Event{Kind: EventEnded, Cost: c, Took: 3 * time.Second, Succeeded: true})

		p, err = l.Acquire(ctx, Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		p.Refused(-1)
		p.Done()
		p.Refused(time.Minute) // an answer that is understood late
		expect(t, &h, Event{Kind: EventAdmitted, Cost: Cost{1}},
			Event{Kind: EventHeld, Cost: Cost{1}, Rejected: true, Reason: "rate", Err: ErrInvalid},
			Event{Kind: EventEnded, Cost: Cost{1}},
			Event{Kind: EventHeld, Cost: Cost{1}, Rejected: true, Reason: "rate", Hold: time.Minute})
		if s, _ := b.State(ctx); s.HeldFor != time.Minute {
			t.Errorf("held for %v, want a minute", s.HeldFor)
		}
	})
}

// Whether what remains holds the bucket depends on all of its calls: the bucket's observers hear of it.
func TestObserve_LeavesWhatRemainsToTheBucket(t *testing.T) {
	eachBucket(t, func(t *testing.T, b, _ *Bucket) {
		var h heard
		var c changes
		defer b.Observe(c.hear)()
		p := mustAcquire(t, Observe(b, "api", h.hear))
		h.events = nil
		for range 2 {
			p.Answered(Answer{Kind: AnswerRemaining, Remaining: Cost{0, -1, -1, -1}, Wait: time.Hour})
		}
		c.expect(t, b, "nothing remains", Event{Kind: EventHeld, Hold: time.Hour, Reason: "exhausted"})
		expect(t, &h)
	})
}

// A foreign Call around a permit is asked by its own Answered.
type ownAnswered struct {
	*Permit
	heard int
}

func (o *ownAnswered) Answered(Answer) { o.heard++ }

func TestObserve_PassesAnswersToForeignCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		b := Must(NewBucket("k", Limit{Capacity: 10, LeakRate: 1}))
		own := ownAnswered{Permit: mustAcquire(t, b)}
		l := Observe(limiterFunc(func(context.Context, Cost) (Permit, error) { return NewPermit(&own), nil }), "api", h.hear)
		mustAcquire(t, l).Answered(Answer{Kind: AnswerRemaining, Wait: time.Minute})
		expect(t, &h, Event{Kind: EventAdmitted, Cost: Cost{1}})
		if s, _ := b.State(ctx); own.heard != 1 || s.HeldFor != 0 {
			t.Errorf("its own heard %d times, held for %v", own.heard, s.HeldFor)
		}
	})
}

func TestObserve_ReportsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Acquire(outer, Cost{60}) // gives up after 3 s
		p.Settle(Cost{})
		p.Done()
		expect(t, &h,
			Event{Kind: EventAdmitted, Cost: Cost{2}, Wait: 2 * time.Second},
			Event{Kind: EventFailed, Cost: Cost{60}, Wait: 3 * time.Second, Err: err},
			Event{Kind: EventSettled, Cost: Cost{2}}, Event{Kind: EventEnded, Cost: Cost{2}, Took: 3 * time.Second})
		if !slices.Equal(h.values, slices.Repeat([]any{"trace"}, 4)) {
			t.Errorf("values of ctx: %v", h.values)
		}
		if h.errs[0] != nil || h.errs[1] != context.DeadlineExceeded || h.errs[2] != nil || h.errs[3] != nil {
			t.Errorf("errors of ctx: %v", h.errs)
		}
	})
}

func TestObserve_PanicAtAdmissionChargesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, at := range []string{EventAdmitted} {
			for how, end := range map[string]func(){"panic": func() { panic("f") }, "goexit": runtime.Goexit} {
				b := Must(NewBucket("b", Limit{Capacity: 4, LeakRate: 1}, InFlight(1)))
				slow := limiterFunc(func(ctx context.Context, c Cost) (Permit, error) {
					time.Sleep(time.Second)
					return b.Acquire(ctx, c)
				})
				ending(func() {
					_, _ = Observe(slow, "api", func(_ context.Context, e Event) {
						if e.Kind == at {
							end()
						}
					}).Acquire(ctx, Cost{3})
				})
				if all, _ := b.States(ctx); all[0].Level != 0 || all[1].Level != 0 {
					t.Errorf("%s at %v: level %v, %v in progress", how, at, all[0].Level, all[1].Level)
				}
			}
		}
	})
}

func TestObserve_LaterPanicLosesNoReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
				defer func() {
					if v := recover(); v != want {
						t.Errorf("recovered %v, want %v", v, want)
					}
				}()
				report()
			}()
		}
		if all, _ := b.States(ctx); all[0].Level < 3 || all[0].HeldFor != time.Second || all[1].Level != 0 {
			t.Errorf("the bucket has not heard all: %+v", all)
		}
	})
}

// The waits of all events add up to the time that calls have waited.
func TestObserve_WaitsAddUpToTheTimeWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sum time.Duration
		l := Observe(limiterFunc(func(_ context.Context, c Cost) (Permit, error) {
			time.Sleep(time.Duration(c[0]) * 100 * time.Microsecond)
			return Permit{}, nil
		}), "api", func(_ context.Context, e Event) {
			sum += e.Wait
		})
		begin := time.Now()
		for _, n := range []float64{1, 9, 10, 300} {
			p, err := l.Acquire(ctx, Cost{n})
			if err != nil {
				t.Fatal(err)
			}
			p.Done()
		}
		if sum != time.Since(begin) {
			t.Errorf("waited %v, and the sum is %v", time.Since(begin), sum)
		}
	})
}

func TestObserve_IdleIsThatOfTheLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hear := func(context.Context, Event) {}
		b := Must(NewBucket("b", Limit{Capacity: 1, LeakRate: 1}))
		i, ok := Observe(b, "api", hear).(interface{ Idle() bool })
		if !ok {
			t.Fatal("an observed bucket has no Idle")
		}
		mustAcquire(t, b).Done()
		if i.Idle() {
			t.Error("idle while it is full")
		}
		time.Sleep(2 * time.Second)
		if !i.Idle() {
			t.Error("not idle when it is empty")
		}
		for _, l := range []Limiter{limiterFunc(nil), nil} {
			if Observe(l, "api", hear).(idler).Idle() {
				t.Errorf("a %T is idle, though nobody knows", l)
			}
		}
	})
}

func TestObserve_NilLimiterIsAnError(t *testing.T) {
	var h heard
	_, err := Observe(nil, "api", h.hear).Acquire(ctx, Cost{1})
	if !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	expect(t, &h, Event{Kind: EventFailed, Cost: Cost{1}, Err: ErrInvalid})
}

// f is called with no lock held, so it may use the bucket that it hears of.
func TestObserve_FunctionMayUseTheBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("b", Limit{Capacity: 4, LeakRate: 1}, InFlight(2)))
		heard := map[string]int{}
		l := Observe(b, "api", func(ctx context.Context, e Event) {
			heard[e.Kind]++
			_, unexplained := b.Explain(ctx, e.Cost)
			if err := errors.Join(unexplained, b.Resume(ctx), b.Hold(ctx, time.Millisecond)); err != nil {
				t.Errorf("at %v: %v", e.Kind, err)
			}
		})
		p := mustAcquire(t, l)
		p.Settle(Cost{2})
		p.Refused(time.Second)
		p.Done()
		if _, err := l.Acquire(ctx, Cost{1}); err == nil {
			t.Error("a held call goes")
		}
		for _, k := range []string{EventAdmitted, EventRefused, EventSettled, EventHeld, EventEnded} {
			if heard[k] != 1 {
				t.Errorf("%v was told %d times", k, heard[k])
			}
		}
	})
}

// What a bucket decides at one moment is told with that moment, so that nobody reads the clock once more for it.
func TestObserve_ImmediateDecisionWaitsZero(t *testing.T) {
	var events []Event
	b := Must(NewBucket("b", Limit{Capacity: 1, LeakRate: 1e-3}))
	l := Observe(b, "api", func(_ context.Context, e Event) { events = append(events, e) })
	before := now()
	p := mustAcquire(t, l)
	if _, err := l.Acquire(ctx, Cost{1}); !errors.Is(err, ErrThrottled) {
		t.Fatal(err)
	}
	p.Done()
	end := now()
	if len(events) != 3 || events[0].Kind != EventAdmitted || events[1].Kind != EventRefused || events[2].Kind != EventEnded {
		t.Fatalf("%+v", events)
	}
	if events[0].Wait != 0 || events[1].Wait != 0 {
		t.Errorf("waited %v and %v", events[0].Wait, events[1].Wait)
	}
	if took := events[2].Took; took <= 0 || took > end-before {
		t.Errorf("took %v, of %v", took, end-before)
	}
}

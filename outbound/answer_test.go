package outbound

import (
	"context"
	"errors"
	"math"
	"reflect"
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

// A refusal slows the bucket only after a success, and a call without an answer is none, whichever limiters its permit
// passes through.
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
		return (&Keyed[string]{New: func(string) (Limiter, error) { return l, nil }}).For("key")
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
				return PermitFrom(&jobContext{runs: runs{Context: ctx}, job: shared{guarded: guarded{permit: *p}}})
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

// An answer has its whole effect on the bucket, whatever came before.
func TestAnswer_HasItsEffectOnTheBucket(t *testing.T) {
	bubble(t, "Everything in an answer reaches the bucket, whichever limiters the permit passes through", func(t *testing.T) {
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
			p.Answered(answer)
			errorIf(t, a.last != answer, "%+v came as %+v", answer, a.last)
		}
		s := states(t, b)[0]
		errorIf(t, s.HeldFor > 5*time.Second, "an answer of an unknown kind holds for %v", s.HeldFor)
		(*Permit)(nil).Answered(Answer{Kind: AnswerRefused})
		new(Permit).Answered(Answer{Kind: AnswerRefused})
	})
	bubble(t, "The longest reset does not overflow, and a Resume ends its hold", func(t *testing.T) {
		for name, b := range buckets(t) {
			p, err := b.Acquire(ctx, Cost{1, 1, 0, 1})
			if name == "held" {
				continue
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			p.Answered(Answer{Kind: AnswerRemaining, Remaining: Cost{0, nan, nan, -inf}, Wait: math.MaxInt64})
			for _, s := range states(t, b) {
				errorIf(t, s.HeldFor < 100*365*24*time.Hour || s.Reason != "exhausted",
					"%s: held for %v by %q", name, s.HeldFor, s.Reason)
			}
			must(t, b.Resume(ctx))
			time.Sleep(time.Minute)
			errorIs(t, errOf(b.Acquire(ctx, Cost{1, 1, 0, 1})), nil, "%s, after Resume", name)
		}
	})
	bubble(t, "A refusal during several holds has the reason of the longest", func(t *testing.T) {
		for kind, b := range buckets(t) {
			if kind == "held" {
				continue
			}
			p := admit(t, b, 1, 1, 0, 1)
			want := func(r string) {
				t.Helper()
				full := refused(t, b, Cost{1, 1, 0, 1})
				errorIf(t, full.Reason != r, "%s: %v, want the reason %q", kind, full, r)
			}
			p.Answered(Answer{Kind: AnswerRefused, Wait: time.Minute, Reason: "quota"})
			want("quota")
			p.Answered(Answer{Kind: AnswerHold, Wait: time.Second, Reason: "concurrency"}) // shorter: it changes nothing
			want("quota")
			p.Answered(Answer{Kind: AnswerHold, Wait: time.Hour, Reason: "whim"})
			want("")
			must(t, b.Hold(ctx, 2*time.Hour))
			want("") // the operator's hold
		}
	})
	bubble(t, "The first success after a hold is sent to the store immediately: until then every refusal doubles the hold", func(t *testing.T) {
		store := new(FakeStore)
		limit := Limit{Capacity: 10, LeakRate: 10}
		one, other := Must(NewSharedBucket(store, "api", limit)), Must(NewSharedBucket(store, "api", limit))
		mustAcquire(t, one).Refused(0)
		time.Sleep(time.Minute)
		p, q, r := mustAcquire(t, one), mustAcquire(t, one), mustAcquire(t, other)
		trips := store.Requests.Load()
		p.Done()
		q.Done()
		equal(t, store.Requests.Load()-trips, 1, "the trips of two successes")
		r.Refused(0)
		if s := states(t, other)[0]; s.Speed != 0.9 || s.HeldFor != time.Second {
			t.Errorf("a refusal after a success: held for %v at speed %v, want 1s and 0.9", s.HeldFor, s.Speed)
		}
		states(t, one) // which learns of the hold
		time.Sleep(time.Minute)
		mustAcquire(t, other).Done()
		trips = store.Requests.Load()
		mustAcquire(t, one).Done() // known already
		n := store.Requests.Load() - trips
		errorIf(t, n != 1, "a success that was known has made %d trips beside the booking's", n-1)
		p = mustAcquire(t, one)
		p.Refused(0)
		time.Sleep(time.Minute)
		p, q, trips = mustAcquire(t, one), mustAcquire(t, one), store.Requests.Load()+2
		store.Back = 10 * time.Millisecond
		go one.States(ctx) // whose reply is of before the success
		time.Sleep(time.Millisecond)
		go p.Done()
		time.Sleep(9500 * time.Microsecond) // it has arrived, and that of the success has not
		q.Done()
		equal(t, store.Requests.Load()-trips, 0, "trips of a success that is on its way")
		time.Sleep(time.Second)
	})
	bubble(t, "A bucket remembers a refusal for an hour, and that its number of calls in flight was halved", func(t *testing.T) {
		own, memory := Must(NewBucket("own", PerSecond(10))), new(FakeStore)
		shared := Must(NewSharedBucket(memory, "shared", PerSecond(10)))
		adaptive := Must(NewBucket("adaptive", InFlight(64).Adaptive()))
		mustAcquire(t, own).Refused(0)
		mustAcquire(t, shared).Refused(0)
		p := mustAcquire(t, adaptive)
		p.Answered(Answer{Kind: AnswerHold, Wait: time.Second, Reason: "concurrency"})
		p.Done()
		for range 2 {
			time.Sleep(29 * time.Minute)
			errorIf(t, own.Idle() || memory.Lasts("shared") <= now() || adaptive.Idle(), "forgotten within an hour")
		}
		time.Sleep(2*time.Minute + time.Second)
		errorIf(t, !own.Idle() || memory.Lasts("shared") > now() || !adaptive.Idle(), "not forgotten after an hour")
	})
	bubble(t, "No other call gets the units of a late call while these move to the time at which it was sent", func(t *testing.T) {
		memory := store.NewMemory()
		other := Must(NewSharedBucket(memory, "key", Window(1, time.Minute)))
		b := Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			defer func() {
				_, err := other.Acquire(ctx, Cost{1})
				errorIf(t, err == nil && len(op.Reports) > 0, "a call was admitted in the window of a late one")
			}()
			return memory.Update(ctx, key, op)
		}), "key", Window(1, time.Minute)))
		p := mustAcquire(t, b)
		time.Sleep(60 * time.Millisecond)
		p.Answered(Answer{Kind: AnswerSent, Wait: 60 * time.Millisecond})
	})
	bubble(t, "Late calls count from when they are sent in one burst, of an hour at most, and not again for 50 times as long", func(t *testing.T) {
		begin, b, other := time.Now().Add(time.Second), Must(NewBucket("k", Window(100, time.Minute))), Must(NewBucket("other", Window(100, time.Minute)))
		for _, c := range []struct {
			at, late time.Duration
			counts   bool
		}{
			{0, 100 * time.Millisecond, true}, {100 * time.Millisecond, 100 * time.Millisecond, true}, {120 * time.Millisecond, time.Second, false},
			{4999 * time.Millisecond, 100 * time.Millisecond, false}, {5 * time.Second, 3 * time.Hour, true},
			{time.Hour, time.Second, true}, {time.Hour + 6*time.Second, time.Second, false}, {50 * time.Hour, time.Second, false}, {50*time.Hour + 5*time.Second, time.Second, true},
		} {
			p := admit(t, b, 1)
			time.Sleep(time.Until(begin.Add(c.at)))
			p.Answered(Answer{Kind: AnswerSent, Wait: c.late})
			admit(t, other, 1)
			if is, now := states(t, b)[0].EmptyIn, states(t, other)[0].EmptyIn; (is > now-5*time.Millisecond) != c.counts {
				t.Errorf("sent %v late, %v after the first: counts for %v, a call of now for %v", c.late, c.at, is, now)
			}
		}
	})
	inBoth(t, "The refusal of a call whose ticket is older than a hold counts as the next refusal", func(t *testing.T, b *Bucket) {
		p := admit(t, b, 1)
		k := book(t, b, BookRequest{Costs: []Cost{{1}}, Wait: time.Minute})
		ticket := k.Tickets[0]
		p.Refused(0) // held, with the ticket out
		time.Sleep(time.Minute)
		ready, _ := clockOf(t, b).Ready(ticket, time.Now())
		fatalIf(t, !ready, "shared %v: not ready", b.Shared())
		q := ticket.Permit()
		q.Refused(0) // no call has succeeded between: twice as long
		s := states(t, b)[0]
		errorIf(t, s.HeldFor != 2*time.Second, "shared %v: held for %v, want 2s", b.Shared(), s.HeldFor)
	}, PerSecond(1))
	inBoth(t, "A reservation from before a late call was reported is void: it did not know of the call", func(t *testing.T, b *Bucket) {
		p, k := admit(t, b, 1), BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}
		must(t, b.Book(ctx, &k))
		ticket := k.Tickets[0]
		time.Sleep(60 * time.Millisecond)
		p.Answered(Answer{Kind: AnswerSent, Wait: 60 * time.Millisecond})
		for _, unused := range [][]Ticket{nil, {ticket}} { // then another one holds
			k.Costs, k.Unused = k.Costs[:len(unused)], unused
			must(t, b.Book(ctx, &k))
			errorIf(t, k.Clock.Holds(ticket), "the reservation holds")
		}
		if due := k.Clock.Due(k.Tickets[0]); !k.Clock.Holds(k.Tickets[0]) || time.Until(due) < time.Second {
			t.Errorf("the next one is due in %v", time.Until(due))
		}
	}, Window(1, time.Second))
}

// unknown is what remains where an answer does not say it.
var unknown = Cost{-1, -1, -1, -1}

// A report of a number that is no number, or of a time that is over before a call can wait for it, changes nothing.
func TestAnswerRemaining_InvalidChangesNothing(t *testing.T) {
	type said struct {
		left  Cost
		reset time.Duration
	}
	var all []said
	for _, n := range append(noNumbers, huge...) {
		all = append(all, said{Cost{n, n, n, n}, time.Hour})
	}
	for _, d := range append(noSpans, 0) {
		all = append(all, said{Cost{}, d})
	}
	for _, d := range []time.Duration{1, time.Second, 2 * time.Second} { // it is over before a call has waited
		all = append(all, said{Cost{}, d})
	}
	all = append(all, said{unknown, time.Hour}, said{Cost{-1, -1, 0, -1}, time.Hour}) // no limit counts unit 2
	synctest.Test(t, func(t *testing.T) {
		for name, b := range buckets(t) {
			p, err := b.Acquire(ctx, Cost{1, 1, 0, 1})
			fatalIf(t, err != nil && name != "held", "%s: %v", name, err)
			before := states(t, b)
			for _, s := range all {
				p.Answered(Answer{Kind: AnswerRemaining, Remaining: s.left, Wait: s.reset})
				if after := states(t, b); !reflect.DeepEqual(before, after) {
					t.Errorf("%v left until %v of the bucket %s has changed\n%+v to\n%+v", s.left, s.reset, name, before, after)
				}
			}
		}
		new(Permit).Answered(Answer{Kind: AnswerRemaining, Wait: time.Hour})
		(*Permit)(nil).Answered(Answer{Kind: AnswerRemaining, Wait: time.Hour})
	})
}

// An answer holds the bucket if the calls since may have used up what remained of a unit.
func TestAnswerRemaining_CountsEachUnit(t *testing.T) {
	limits := []Limit{{Capacity: 100, LeakRate: 1e-4}, {Capacity: 10, LeakRate: 1, Name: "short"}, {Capacity: 1000, LeakRate: 1e-3, Unit: 1}}
	for name, c := range map[string]struct {
		calls int // since the one that is answered, with 10 of unit 1 each
		left  Cost
		held  bool
	}{
		"enough of both":           {2, Cost{3, 30}, false},
		"nothing is reported":      {2, unknown, false},
		"unit 0 is used up":        {3, Cost{3, 1000}, true},
		"unit 1 is used up":        {3, Cost{-1, 30}, true},
		"unit 1 is nearly used up": {3, Cost{-1, 30.1}, false},
		"nothing remained at once": {0, Cost{-1, 0}, true},
		"another unit":             {3, Cost{-1, -1, 0, 0}, false},
	} {
		bothWays(t, func(t *testing.T, b *Bucket) {
			p := admit(t, b, 1, 10)
			for range c.calls {
				admit(t, b, 1, 10)
			}
			p.Answered(Answer{Kind: AnswerRemaining, Remaining: c.left, Wait: time.Hour})
			var full *ThrottledError
			_, err := b.Acquire(ctx, Cost{1, 10})
			held := errors.As(err, &full) && full.Held
			errorIf(t, held != c.held || held && full.Reason != "exhausted", "%s, shared %v: %v", name, b.Shared(), err)
		}, limits...)
	}
}

// Answers may come in any order: an old one reports more than remains, a new one less.
func TestAnswerRemaining_InAnyOrder(t *testing.T) {
	for name, order := range map[string][]int{"in order": {0, 1, 2}, "reversed": {2, 1, 0}, "mixed": {1, 2, 0}} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("api", Limit{Capacity: 10, LeakRate: 1e-4}))
			var p [3]Permit
			for i := range p {
				p[i] = admit(t, b, 1)
			}
			for _, held := range []bool{false, true} { // one more call remains than have left, then none
				for _, i := range order {
					p[i].Answered(Answer{Kind: AnswerRemaining, Remaining: Cost{float64(3 - i)}, Wait: time.Hour})
					s := states(t, b)[0]
					errorIf(t, (s.HeldFor > 0) != held, "%s: held by answer %d: %v, want %v", name, i, !held, held)
				}
				if !held {
					admit(t, b, 1)
				}
			}
		})
	}
}

// A store keeps the number of a reason, which another process turns into the word again. So a number never changes.
func TestAnswer_ReasonsKeepTheirNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for number, word := range []string{"", "rate", "quota", "concurrency", "exhausted"} {
			m, sent := store.NewMemory(), -1
			one := Must(NewSharedBucket(StoreFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
				if len(op.Reports) > 0 {
					sent = int(op.Reports[0].Reason)
				}
				return m.Update(ctx, key, op)
			}), "k", PerSecond(1)))
			other := Must(NewSharedBucket(m, "k", PerSecond(1)))
			here := Must(NewBucket("k", PerSecond(1)))
			for _, b := range []*Bucket{one, here} {
				p := mustAcquire(t, b)
				p.Answered(Answer{Kind: AnswerHold, Wait: time.Minute, Reason: word})
			}
			errorIf(t, sent != number, "the number of %q is %d, want %d", word, sent, number)
			for kind, b := range map[string]*Bucket{"shared": other, "in memory": here} {
				full := refused(t, b, Cost{1})
				errorIf(t, full.Reason != word, "%s: %v, want the reason %q", kind, full, word)
			}
		}
	})
}

// What a late call costs beyond its cost is added to it, and a second report of the same call adds nothing.
func TestSent_SettleAddsWhatACallCostsMore(t *testing.T) {
	for _, c := range []struct {
		times      int
		used, want float64
	}{{1, 100, 100}, {1, 500, 500}, {1, 40, 100}, {2, 100, 100}, {2, 500, 500}} {
		for _, queued := range []bool{false, true} {
			bothWays(t, func(t *testing.T, b *Bucket) {
				p := admit(t, b, 1, 100)
				time.Sleep(60 * time.Millisecond)
				if queued {
					defer b.Waiting(func() {})()
				}
				for range c.times {
					p.Answered(Answer{Kind: AnswerSent, Wait: 60 * time.Millisecond})
				}
				p.Settle(Cost{1, c.used})
				p.Done()
				must(t, b.Book(ctx, new(BookRequest))) // brings what was postponed
				equal(t, levels(t, b), [2]float64{1, c.want}, "%d reports, queued %v, used %v: levels", c.times, queued, c.used)
			}, Window(10, time.Minute), Window(10000, time.Minute).Of(1, "tokens"))
		}
	}
}

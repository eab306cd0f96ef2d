package outbound

import (
	"errors"
	"math"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

var notTold = Cost{-1, -1, -1, -1}

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
	for _, d := range []time.Duration{1, time.Second, 2 * time.Second} { // it is there before anybody has waited
		all = append(all, said{Cost{}, d})
	}
	all = append(all, said{notTold, time.Hour}, said{Cost{-1, -1, 0, -1}, time.Hour}) // nobody counts unit 2
	synctest.Test(t, func(t *testing.T) {
		for name, b := range buckets(t) {
			p, err := b.Acquire(ctx, Cost{1, 1, 0, 1})
			if err != nil && name != "held" {
				t.Fatalf("%s: %v", name, err)
			}
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

// The longest reset that there is neither overflows nor shuts the bucket for good.
func TestAnswerRemaining_EndlessResetHoldsUntilResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, b := range buckets(t) {
			p, err := b.Acquire(ctx, Cost{1, 1, 0, 1})
			if name == "held" {
				continue
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			p.Answered(Answer{Kind: AnswerRemaining, Remaining: Cost{0, nan, nan, -inf}, Wait: math.MaxInt64})
			for _, s := range states(t, b) {
				if s.HeldFor < 100*365*24*time.Hour || s.Reason != "exhausted" {
					t.Errorf("%s: held for %v by %q", name, s.HeldFor, s.Reason)
				}
			}
			if err := b.Resume(ctx); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if _, err := b.Acquire(ctx, Cost{1, 1, 0, 1}); err != nil {
				t.Errorf("%s, after Resume: %v", name, err)
			}
		}
	})
}

func TestAnswerRemaining_CountsEachUnit(t *testing.T) {
	limits := []Limit{{Capacity: 100, LeakRate: 1e-4}, {Capacity: 10, LeakRate: 1, Name: "short"}, {Capacity: 1000, LeakRate: 1e-3, Unit: 1}}
	for name, c := range map[string]struct {
		calls int // since the one that is answered, with 10 of unit 1 each
		left  Cost
		held  bool
	}{
		"enough of both":           {2, Cost{3, 30}, false},
		"nothing is told":          {2, notTold, false},
		"unit 0 is used up":        {3, Cost{3, 1000}, true},
		"unit 1 is used up":        {3, Cost{-1, 30}, true},
		"unit 1 is nearly used up": {3, Cost{-1, 30.1}, false},
		"nothing remained at once": {0, Cost{-1, 0}, true},
		"another unit":             {3, Cost{-1, -1, 0, 0}, false},
	} {
		for kind, newBucket := range map[string]func() *Bucket{
			"of its own": func() *Bucket { return Must(NewBucket("api", limits...)) },
			"shared":     func() *Bucket { return Must(NewSharedBucket(store.NewMemory(), "api", limits...)) },
		} {
			synctest.Test(t, func(t *testing.T) {
				b := newBucket()
				p, err := b.Acquire(ctx, Cost{1, 10})
				if err != nil {
					t.Fatal(err)
				}
				for range c.calls {
					if _, err := b.Acquire(ctx, Cost{1, 10}); err != nil {
						t.Fatal(err)
					}
				}
				p.Answered(Answer{Kind: AnswerRemaining, Remaining: c.left, Wait: time.Hour})
				var full *ThrottledError
				_, err = b.Acquire(ctx, Cost{1, 10})
				if held := errors.As(err, &full) && full.Held; held != c.held {
					t.Errorf("%s, bucket %s: %v", name, kind, err)
				}
				if c.held && full.Reason != "exhausted" {
					t.Errorf("%s, bucket %s: the reason is %q", name, kind, full.Reason)
				}
			})
		}
	}
}

// Answers overtake each other: an old one tells more than there is, a new one less.
func TestAnswerRemaining_InAnyOrder(t *testing.T) {
	for name, order := range map[string][]int{"in order": {0, 1, 2}, "reversed": {2, 1, 0}, "mixed": {1, 2, 0}} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("api", Limit{Capacity: 10, LeakRate: 1e-4}))
			var p [3]Permit
			for i := range p {
				p[i], _ = b.Acquire(ctx, Cost{1})
			}
			for _, i := range order {
				p[i].Answered(Answer{Kind: AnswerRemaining, Remaining: Cost{float64(3 - i)}, Wait: time.Hour}) // one more call than have left
				if s := states(t, b)[0]; s.HeldFor > 0 {
					t.Errorf("%s: held by answer %d", name, i)
				}
			}
			if _, err := b.Acquire(ctx, Cost{1}); err != nil {
				t.Fatal(err)
			}
			for _, i := range order {
				p[i].Answered(Answer{Kind: AnswerRemaining, Remaining: Cost{float64(3 - i)}, Wait: time.Hour})
				if s := states(t, b)[0]; s.HeldFor == 0 {
					t.Errorf("%s: not held by answer %d, although nothing remains", name, i)
				}
			}
		})
	}
}

func TestAnswer_ReasonIsThatOfTheLongestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for kind, b := range buckets(t) {
			if kind == "held" {
				continue
			}
			p, err := b.Acquire(ctx, Cost{1, 1, 0, 1})
			if err != nil {
				t.Fatal(err)
			}
			want := func(r string) {
				t.Helper()
				var full *ThrottledError
				if _, err := b.Acquire(ctx, Cost{1, 1, 0, 1}); !errors.As(err, &full) || full.Reason != r {
					t.Errorf("%s: %v, want the reason %q", kind, err, r)
				}
			}
			p.Answered(Answer{Kind: AnswerRefused, Wait: time.Minute, Reason: "quota"})
			want("quota")
			p.Answered(Answer{Kind: AnswerHold, Wait: time.Second, Reason: "concurrency"}) // shorter: it changes nothing
			want("quota")
			p.Answered(Answer{Kind: AnswerHold, Wait: time.Hour, Reason: "whim"})
			want("")
			if err := b.Hold(ctx, 2*time.Hour); err != nil {
				t.Fatal(err)
			}
			want("") // the operator's
		}
	})
}

// A worker's next turn may be far away: until the store hears of a success, every
// refusal doubles the hold.
func TestDone_FirstSuccessAfterAHoldIsSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(FakeStore)
		limit := Limit{Capacity: 10, LeakRate: 10}
		one, other := Must(NewSharedBucket(store, "api", limit)), Must(NewSharedBucket(store, "api", limit))
		acquire := func(b *Bucket) Permit {
			p, err := b.Acquire(ctx, Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		p := acquire(one)
		p.Refused(0)
		time.Sleep(time.Minute)
		p, q, r := acquire(one), acquire(one), acquire(other)
		trips := store.Requests.Load()
		p.Done()
		q.Done()
		if n := store.Requests.Load() - trips; n != 1 {
			t.Errorf("two successes have made %d trips, want 1", n)
		}
		r.Refused(0)
		if s := states(t, other)[0]; s.Speed != 0.9 || s.HeldFor != time.Second {
			t.Errorf("a refusal after a success: held for %v at speed %v, want 1s and 0.9", s.HeldFor, s.Speed)
		}
		time.Sleep(time.Minute)
		s := acquire(other)
		s.Done()
		trips = store.Requests.Load()
		u := acquire(one)
		u.Done() // known already
		if n := store.Requests.Load() - trips; n != 1 {
			t.Errorf("a success that was known has made %d trips beside the booking's", n-1)
		}
	})
}

func TestTicket_KnowsOfLaterHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for kind, b := range map[string]*Bucket{
			"of its own": Must(NewBucket("api", PerSecond(1))),
			"shared":     Must(NewSharedBucket(store.NewMemory(), "api", PerSecond(1))),
		} {
			p, err := b.Acquire(ctx, Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			k := BookRequest{Costs: []Cost{{1}}, Wait: time.Minute}
			if err := b.Book(ctx, &k); err != nil || len(k.Tickets) != 1 {
				t.Fatalf("%s: %v", kind, err)
			}
			ticket := k.Tickets[0]
			p.Refused(0) // held, with the ticket out
			time.Sleep(time.Minute)
			listen := BookRequest{}
			if err := b.Book(ctx, &listen); err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			if ready, _ := listen.Clock.Ready(ticket, time.Now()); !ready {
				t.Fatalf("%s: not ready", kind)
			}
			q := ticket.Permit()
			q.Refused(0) // no call has succeeded between: twice as long
			if s := states(t, b)[0]; s.HeldFor != 2*time.Second {
				t.Errorf("%s: held for %v, want 2s", kind, s.HeldFor)
			}
		}
	})
}

func TestIdle_NotForAnHourAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, memory := Must(NewBucket("own", PerSecond(10))), new(FakeStore)
		shared := Must(NewSharedBucket(memory, "shared", PerSecond(10)))
		for _, b := range []*Bucket{own, shared} {
			p, err := b.Acquire(ctx, Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			p.Refused(0)
		}
		for range 2 {
			time.Sleep(29 * time.Minute)
			if own.Idle() || memory.Lasts("shared") <= now() {
				t.Error("forgotten within an hour")
			}
		}
		time.Sleep(2*time.Minute + time.Second)
		if !own.Idle() || memory.Lasts("shared") > now() {
			t.Error("not forgotten after an hour")
		}
	})
}

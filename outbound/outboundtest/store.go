package outboundtest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/leak"
)

// TestStore is the exam that every [leak.Store] passes. Each case quotes the sentence of
// the contract that it checks. newStore returns a store that is ready; it need not be
// empty, because the cases use keys of their own. If each call of newStore returns
// another store on the same state, some cases use four of them, as four workers do. Slow
// stores pass as well as fast ones. The cases of calendars need a store that knows the Unix
// time: see [leak.Op.ApplyAt]. No case sleeps for more than a second, unless a hook does.
func TestStore(t *testing.T, newStore func(t *testing.T) leak.Store, hooks ...StoreHooks) {
	var h StoreHooks
	for _, more := range hooks {
		h = h.with(more)
	}
	for _, c := range storeCases() {
		t.Run(c.sentence, func(t *testing.T) {
			t.Parallel()
			if c.breaks && h.Break == nil {
				t.Skip("there is no hook that breaks the store")
			}
			e := &exam{tester: t, hooks: h, sentence: c.sentence}
			for range max(1, c.workers) {
				e.stores = append(e.stores, newStore(t))
			}
			e.store = e.stores[0]
			c.check(e)
		})
	}
}

// StoreHooks do to a store what the exam cannot do from outside. Each is optional; the
// exam skips the cases that need it.
type StoreHooks struct {
	// Break makes the server behind s, or whatever keeps its state, answer s no more
	// until mend is called. It is best if the server hangs, and second best if it is
	// down. Other stores go on.
	Break func(s leak.Store) (mend func())
	// Reopen returns a store that knows only what s has saved. The exam uses it in place
	// of s.
	Reopen func(s leak.Store) leak.Store
}

func (h StoreHooks) with(more StoreHooks) StoreHooks {
	if more.Break != nil {
		h.Break = more.Break
	}
	if more.Reopen != nil {
		h.Reopen = more.Reopen
	}
	return h
}

// StoreCases yields the cases of [TestStore] one by one, but for those that need a hook of
// [StoreHooks]. With them a store that has the clock of this process can be examined in a
// bubble of testing/synctest.
func StoreCases() iter.Seq2[string, func(t *testing.T, s leak.Store)] {
	return func(yield func(string, func(*testing.T, leak.Store)) bool) {
		for _, c := range storeCases() {
			if c.breaks {
				continue
			}
			ok := yield(c.sentence, func(t *testing.T, s leak.Store) {
				c.check(&exam{tester: t, store: s, stores: []leak.Store{s}, sentence: c.sentence})
			})
			if !ok {
				return
			}
		}
	}
}

// storeCases are all cases, those of windows and calendars at the end.
func storeCases() []storeCase { return append(leakyCases(), windowCases()...) }

func leakyCases() []storeCase {
	return []storeCase{
		{sentence: "at most the capacity goes at once, however many ask", check: (*exam).capacity},
		{sentence: "a bucket that was idle admits its capacity and no more", check: (*exam).idle},
		{sentence: "levels leak at the leak rate", check: (*exam).leaks},
		{sentence: "a cost above a capacity can never go", check: (*exam).tooLarge},
		{sentence: "all limits are filled together or none is", check: (*exam).together},
		{sentence: "a settle gives back only units that are there and not promised to others", check: (*exam).settles},
		{sentence: "a cost above what was acquired is added", check: (*exam).settlesMore},
		{sentence: "the meter fills to the brim but never below what is booked", check: (*exam).meters},
		{sentence: "nothing goes while a hold lasts, and a shorter one changes nothing", check: (*exam).holds},
		{sentence: "after a hold one call goes and then they drip", check: (*exam).dripsAfterHold},
		{sentence: "resume ends a hold, and places that were booked are void", check: (*exam).resumes},
		{sentence: "order of booking is order of departure", check: (*exam).books},
		{sentence: "no place is due before it was asked for", check: (*exam).after},
		{sentence: "a worker behind the lead catches up, at most 100 ms at a time or as far again as its first place", check: (*exam).claims},
		{sentence: "the latest booking is undone as if it had never been", check: (*exam).unbooks},
		{sentence: "refusals of one episode count once, and the clock slows only after a success", check: (*exam).refusals},
		{sentence: "a refusal without a success in between doubles the hold", check: (*exam).doubles},
		{sentence: "a hold is doubled no further than the report says", check: (*exam).doublesAtMost},
		{sentence: "nothing goes until the reset when what remained was used since", check: (*exam).remains},
		{sentence: "limits that were set win for all, and levels stay", check: (*exam).replaces},
		{sentence: "buckets made with different limits are each held to their own", check: (*exam).disagree},
		{sentence: "keys of any bytes are keys of their own", check: (*exam).keys},
		{sentence: "long waits are told without overflow", check: (*exam).longWaits},
		{sentence: "nothing is charged when ctx is done", check: (*exam).cancelled},
		{sentence: "in any interval at most the capacity and what leaks meanwhile goes, however many ask", check: (*exam).rate, workers: 4},
		{sentence: "the store keeps all that the next step needs", check: (*exam).history},
		{sentence: "a step by other limits than are in force does nothing", check: (*exam).stale},
		{sentence: "Update changes nothing of op", check: (*exam).keepsOp},
		{sentence: "a key is not forgotten before Expire", check: (*exam).expires},
		{sentence: "a key is not forgotten before Expire of a step that does nothing", check: (*exam).expiresStale},
		{sentence: "limits that were set outlive the levels", check: (*exam).keepsLimits},
		{sentence: "when Update has returned, the store does not look at op", check: (*exam).leaves},
		{sentence: "When is the time at which the state was true", check: (*exam).tells},
		{sentence: "Update ends although ctx has no end", check: (*exam).ends, breaks: true},
		{sentence: "a step that failed has changed no call", check: (*exam).failedMove, breaks: true},
	}
}

type storeCase struct {
	sentence string
	check    func(*exam)
	workers  int  // stores that it uses
	breaks   bool // it needs the hook Break
}

// exam is one case under way.
type exam struct {
	tester
	store    leak.Store
	stores   []leak.Store // of several workers, the first being store
	hooks    StoreHooks
	sentence string
}

// tester is what a case needs of a *testing.T.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

var bg = context.Background()

func (e *exam) failf(format string, args ...any) {
	e.Helper()
	e.Errorf("the contract says %q: %s", e.sentence, fmt.Sprintf(format, args...))
}

func (e *exam) key() string { return fmt.Sprintf("exam:%x", rand.Uint64()) }

// share returns another bucket of the same key.
func (e *exam) share(key string, limits ...outbound.Limit) *outbound.Bucket {
	e.Helper()
	store := e.store
	if limits[0].LeakRate <= slow(1).LeakRate {
		store = punctual{store}
	}
	b, err := outbound.NewSharedBucket(store, key, limits...)
	if err != nil {
		e.Fatal(err)
	}
	return b
}

// punctual is a store whose answers are never late, however busy the machine is. A bucket
// charges a call once more if its answer is late, and in a slow limit that stays.
type punctual struct{ leak.Store }

func (p punctual) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	r, err := p.Store.Update(ctx, key, op)
	r.When, r.Heard = time.Time{}, time.Time{}
	return r, err
}

func (e *exam) bucket(limits ...outbound.Limit) *outbound.Bucket {
	e.Helper()
	return e.share(e.key(), limits...)
}

// slow leaks a thousandth of a unit in 36 s: nothing, in an exam.
func slow(capacity float64) outbound.Limit {
	return outbound.Limit{Capacity: capacity, LeakRate: 1. / 36000}
}

func (e *exam) admit(b *outbound.Bucket, c outbound.Cost) outbound.Permit {
	e.Helper()
	p, err := b.Acquire(bg, c)
	if err != nil {
		e.failf("%v was refused: %v", c, err)
	}
	return p
}

func (e *exam) refuse(b *outbound.Bucket, c outbound.Cost) *outbound.ThrottledError {
	e.Helper()
	_, err := b.Acquire(bg, c)
	var full *outbound.ThrottledError
	if !errors.As(err, &full) {
		e.failf("%v was answered with %v, want a refusal", c, err)
		return &outbound.ThrottledError{}
	}
	return full
}

func (e *exam) levels(b *outbound.Bucket, want ...float64) {
	e.Helper()
	all, err := b.States(bg)
	if err != nil || len(all) != len(want) {
		e.failf("%d levels, %v; want %v", len(all), err, want)
		return
	}
	for i, s := range all {
		if math.Abs(s.Level-want[i]) > 0.01 {
			e.failf("limit %d has level %v, want %v", i, s.Level, want[i])
		}
	}
}

func (e *exam) capacity() {
	key := e.key()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		b := e.share(key, slow(100))
		wg.Go(func() {
			for range 20 {
				if _, err := b.Acquire(bg, outbound.Cost{1}); err == nil {
					admitted.Add(1)
				} else if !errors.Is(err, outbound.ErrThrottled) {
					e.failf("%v", err)
				}
			}
		})
	}
	wg.Wait()
	if n := admitted.Load(); n != 100 {
		e.failf("%d of 1000 calls went, want 100", n)
	}
}

func (e *exam) idle() {
	b := e.bucket(outbound.Limit{Capacity: 5, LeakRate: 1000})
	e.admit(b, outbound.Cost{5})
	time.Sleep(50 * time.Millisecond)
	all, err := b.States(bg)
	if err != nil || all[0].Level != 0 {
		e.failf("after ten times the time to drain: %+v, %v", all, err)
	}
	_, err = b.Acquire(bg, outbound.Cost{5.01})
	if !errors.Is(err, outbound.ErrTooLarge) {
		e.failf("more than the capacity: %v", err)
	}
}

func (e *exam) leaks() {
	b := e.bucket(outbound.Limit{Capacity: 100, LeakRate: 10})
	before := time.Now()
	e.admit(b, outbound.Cost{100})
	filled := time.Now()
	time.Sleep(100 * time.Millisecond)
	asked := time.Now()
	s, err := b.State(bg)
	most, least := 100-10*asked.Sub(filled).Seconds(), 100-10*time.Since(before).Seconds()
	if err != nil || s.Level > most+0.1 || s.Level < least-0.1 {
		e.failf("level %v, want %v to %v (%v)", s.Level, least, most, err)
	}
}

func (e *exam) tooLarge() {
	b := e.bucket(slow(10), outbound.PerMinute(100).Of(1, "tokens"))
	_, err := b.Acquire(bg, outbound.Cost{11, 1})
	if !errors.Is(err, outbound.ErrTooLarge) || errors.Is(err, outbound.ErrThrottled) {
		e.failf("%v", err)
	}
	_, err = b.Acquire(bg, outbound.Cost{1, 50})
	if !errors.Is(err, outbound.ErrTooLarge) || !strings.Contains(fmt.Sprint(err), "Burst(50)") {
		e.failf("%v", err)
	}
	e.levels(b, 0, 0)
}

func (e *exam) together() {
	b := e.bucket(slow(10), slow(5).Of(1, "b"), slow(100).Of(2, "c"))
	e.admit(b, outbound.Cost{1, 5, 10})
	if full := e.refuse(b, outbound.Cost{1, 1, 1}); full.Limit != "b" {
		e.failf("refused by %q, want b", full.Limit)
	}
	e.levels(b, 1, 5, 10)
	e.admit(b, outbound.Cost{1, 0, 1})
	e.levels(b, 2, 5, 11)
}

func (e *exam) settles() {
	b := e.bucket(slow(10))
	first, second := e.admit(b, outbound.Cost{6}), e.admit(b, outbound.Cost{4})
	first.Settle(outbound.Cost{2})
	e.levels(b, 6)
	first.Settle(outbound.Cost{0})
	e.levels(b, 6)
	e.admit(b, outbound.Cost{4})
	second.Settle(outbound.Cost{})
	e.levels(b, 6)
	first.Done()
	second.Done()
	// Units that have run out do not come back.
	quick := e.bucket(outbound.Limit{Capacity: 10, LeakRate: 1000})
	p := e.admit(quick, outbound.Cost{10})
	time.Sleep(30 * time.Millisecond)
	p.Settle(outbound.Cost{})
	if s, err := quick.State(bg); err != nil || s.Level != 0 {
		e.failf("level %v after a late return, %v", s.Level, err)
	}
}

func (e *exam) settlesMore() {
	b := e.bucket(slow(10))
	p := e.admit(b, outbound.Cost{4})
	p.Settle(outbound.Cost{25})
	e.levels(b, 25)
	if full := e.refuse(b, outbound.Cost{1}); full.RetryAfter < 16*36000*time.Second-time.Minute {
		e.failf("told to come back after %v", full.RetryAfter)
	}
}

func (e *exam) meters() {
	b := e.bucket(slow(3))
	for i, want := range []struct {
		fill, level float64
		full        bool
	}{{1, 1, false}, {1.5, 2.5, false}, {2, 3, true}, {1000, 3, true}} {
		if s, err := b.Fillup(bg, outbound.Cost{want.fill}); err != nil || math.Abs(s.Level-want.level) > 0.01 || s.Full != want.full {
			e.failf("fill %d: %+v, %v", i, s, err)
		}
	}
	if s, err := b.State(bg); err != nil || s.Full {
		e.failf("full in a reply that filled nothing: %+v, %v", s, err)
	}
	booking := outbound.Booking{Costs: []outbound.Cost{{2}}, Wait: math.MaxInt64}
	if err := b.Book(bg, &booking); err != nil {
		e.failf("%v", err)
	}
	if s, err := b.Fillup(bg, outbound.Cost{1}); err != nil || math.Abs(s.Level-5) > 0.01 {
		e.failf("beside a booking: %+v, %v", s, err)
	}
}

package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/shadow"
	"github.com/dripfeed/dripfeed/outbound/store"
)

var (
	ctx      = context.Background()
	nan, inf = math.NaN(), math.Inf(1)
	refusal  = outbound.Answer{Kind: outbound.AnswerRefused, Wait: time.Hour}
)

const mostRequests = 256

// storeFunc is a store as a function.
type storeFunc func(ctx context.Context, key string, op *store.Op) (store.Reply, error)

func (f storeFunc) Update(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
	return f(ctx, key, op)
}

// verdicts keeps what a shadow reports.
type verdicts struct {
	mu  sync.Mutex
	all []shadow.Verdict
}

func (v *verdicts) report(_ context.Context, is shadow.Verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = append(v.all, is)
}

func (v *verdicts) list() []shadow.Verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.all)
}

// last returns how many verdicts there are, and the latest.
func (v *verdicts) last() (n int, is shadow.Verdict) {
	if all := v.list(); len(all) > 0 {
		return len(all), all[len(all)-1]
	}
	return 0, is
}

// shadowCall makes a call that the API answers so.
func shadowCall(t *testing.T, l outbound.Limiter, answers ...outbound.Answer) {
	t.Helper()
	begin := time.Now()
	p, err := l.Acquire(ctx, outbound.Cost{1})
	for _, a := range answers {
		p.Answered(a)
	}
	p.Done()
	p.Done()
	took := time.Since(begin)
	errorIf(t, took != 0 || err != nil, "a shadow has delayed a call for %v: %v", took, err)
}

func idle(l outbound.Limiter) bool { return l.(interface{ Idle() bool }).Idle() }

func wantLevel(t *testing.T, b *outbound.Bucket, want float64) {
	t.Helper()
	got := must(b.State(ctx)).Level
	errorIf(t, got != want, "level %v, want %v", got, want)
}

func newBucket(shared bool, limits ...outbound.Limit) *outbound.Bucket {
	if shared {
		return outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "key", limits...))
	}
	return outbound.Must(outbound.NewBucket("key", limits...))
}

// must returns v. An error, which no test expects, ends the tests with a panic that says it.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// errorIf reports a fault, and the test goes on.
func errorIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// inBubbles runs a test in virtual time, for a bucket in memory and for one in a store.
func inBubbles(t *testing.T, test func(t *testing.T, shared bool)) {
	t.Helper()
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint("shared ", shared), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, shared) })
		})
	}
}

// failed reports whether a verdict is that of a store that has failed.
func failed(v shadow.Verdict) bool {
	_, ok := errors.AsType[*outbound.StoreError](v.Err)
	return ok && v.Wait == -1
}

// No panic and no outage reaches a caller, and each call has one verdict.
func TestShadow_StoreFailureReachesNoCaller(t *testing.T) {
	down := fmt.Errorf("%w: no route", store.ErrUnavailable)
	for name, store := range map[string]storeFunc{
		"fails":  func(context.Context, string, *store.Op) (store.Reply, error) { return store.Reply{}, down },
		"silent": func(context.Context, string, *store.Op) (store.Reply, error) { return store.Reply{}, nil },
		"panics": func(context.Context, string, *store.Op) (store.Reply, error) { panic("store") },
		"slow": func(context.Context, string, *store.Op) (store.Reply, error) {
			time.Sleep(5 * time.Second)
			return store.Reply{}, down
		},
		"none": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reported verdicts
				b := newBucket(false, outbound.PerSecond(10))
				if store != nil {
					b = outbound.Must(outbound.NewSharedBucket(store, "key", outbound.PerSecond(10)))
				}
				s := shadow.New(b, 0, func(ctx context.Context, v shadow.Verdict) {
					reported.report(ctx, v)
					panic("report")
				})
				for range 3 {
					shadowCall(t, s, refusal)
				}
				time.Sleep(time.Minute)
				all := reported.list()
				errorIf(t, len(all) != 3 || !idle(s), "%d verdicts of 3 calls, idle: %v", len(all), idle(s))
				for _, v := range all {
					errorIf(t, failed(v) != (store != nil), "verdict %+v", v)
				}
			})
		})
	}
}

// A store that does not answer delays no call, and takes no more goroutines than are allowed. When
// it answers, each call is charged what it has cost. A call that could not settle can settle again.
func TestShadow_HungStoreDelaysNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported verdicts
		var hung atomic.Pointer[chan struct{}]
		memory, requests := store.NewMemory(), atomic.Int32{}
		b := outbound.Must(outbound.NewSharedBucket(storeFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			if wait := hung.Load(); wait != nil {
				requests.Add(1)
				<-*wait
			}
			return memory.Update(ctx, key, op)
		}), "key", outbound.Limit{Capacity: 1000, LeakRate: 1}))
		s := shadow.New(b, 0, reported.report)
		early, _ := s.Acquire(ctx, outbound.Cost{1})
		synctest.Wait()
		wait := make(chan struct{})
		hung.Store(&wait)
		before, permits := runtime.NumGoroutine(), []outbound.Permit{}
		for range mostRequests + 50 {
			p := must(s.Acquire(ctx, outbound.Cost{1}))
			p.Settle(outbound.Cost{nan})
			p.Settle(outbound.Cost{1.5})
			p.Settle(outbound.Cost{3})
			permits = append(permits, p)
		}
		early.Settle(outbound.Cost{5})
		for i := range permits {
			permits[i].Done()
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > mostRequests+10 || requests.Load() != mostRequests {
			t.Errorf("%d goroutines and %d requests, want %d", n, requests.Load(), mostRequests)
		}
		n, v := reported.last()
		errorIf(t, n != 1+50 || !failed(v) || idle(s), "%d verdicts, the last %+v, idle: %v", n, v, idle(s))
		hung.Store(nil)
		close(wait)
		synctest.Wait()
		n, v = reported.last()
		errorIf(t, n != 1+50+mostRequests || v.Err != nil, "%d verdicts, the last %+v", n, v)
		wantLevel(t, b, 1+mostRequests*1.5)
		early.Settle(outbound.Cost{9})
		synctest.Wait()
		wantLevel(t, b, 9+mostRequests*1.5) // what the calls have cost
		time.Sleep(time.Hour)
		errorIf(t, !idle(s), "not idle, though the bucket is empty")
	})
}

// A permit that is settled after its verdict corrects the bucket.
func TestShadow_SettleCorrectsTheBucket(t *testing.T) {
	inBubbles(t, func(t *testing.T, shared bool) {
		b := newBucket(shared, outbound.Limit{Capacity: 100, LeakRate: 1})
		s := shadow.New(b, 0, func(context.Context, shadow.Verdict) {})
		p, _ := s.Acquire(ctx, outbound.Cost{1})
		synctest.Wait()
		p.Settle(outbound.Cost{5})
		p.Settle(outbound.Cost{9})
		p.Done()
		synctest.Wait()
		wantLevel(t, b, 5)
	})
}

// A shadow ignores what the API answers: no hold, no lower speed, no change of the bucket.
func TestShadow_AnswersChangeNothing(t *testing.T) {
	inBubbles(t, func(t *testing.T, shared bool) {
		b := newBucket(shared, outbound.PerSecond(10))
		defer b.Observe(func(c outbound.Event) { t.Errorf("a change: %+v", c) })()
		s := shadow.New(b, 0, func(context.Context, shadow.Verdict) {})
		for range 20 {
			shadowCall(t, s, outbound.Answer{Kind: outbound.AnswerHold, Wait: time.Hour},
				outbound.Answer{Kind: outbound.AnswerRemaining, Wait: time.Hour, Remaining: outbound.Cost{0}})
			shadowCall(t, s, refusal)
			time.Sleep(time.Second)
		}
		st, err := b.State(ctx)
		errorIf(t, err != nil || st.HeldFor != 0 || st.Speed != 1, "the bucket is %+v, %v", st, err)
	})
}

// Whatever a maxWait of whole intervals rounds to, the call that leaves at its end is admitted.
func TestShadow_CallAtTheEndOfMaxWaitIsAdmitted(t *testing.T) {
	for _, rate := range []float64{3, 7, 1e4 / 7} {
		synctest.Test(t, func(t *testing.T) {
			var reported verdicts
			s := shadow.New(newBucket(false, outbound.Limit{Capacity: 1, LeakRate: rate}), time.Duration(70/rate*1e9), reported.report)
			for range 72 {
				shadowCall(t, s)
			}
			all := reported.list()
			v := all[70]
			errorIf(t, v.Err != nil, "%v per second: %v", rate, v)
			if v := all[71]; !errors.Is(v.Err, outbound.ErrThrottled) || v.Wait != -1 {
				t.Errorf("%v per second, one more: %v", rate, v)
			}
		})
	}
}

// A call that no limiter could admit is admitted, and its verdict has the error of Acquire. Without
// report nothing is booked.
func TestShadow_InvalidCallsAreAdmitted(t *testing.T) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	b := newBucket(false, outbound.Limit{Capacity: 1, LeakRate: 1})
	for name, c := range map[string]struct {
		bucket  *outbound.Bucket
		maxWait time.Duration
		ctx     context.Context
		cost    outbound.Cost
		want    error
	}{
		"no bucket":        {nil, 0, ctx, outbound.Cost{1}, outbound.ErrInvalid},
		"zero bucket":      {new(outbound.Bucket), 0, ctx, outbound.Cost{1}, outbound.ErrInvalid},
		"negative maxWait": {b, -1, ctx, outbound.Cost{1}, outbound.ErrInvalid},
		"ended ctx":        {b, 0, ended, outbound.Cost{1}, context.Canceled},
		"NaN":              {b, 0, ctx, outbound.Cost{nan}, outbound.ErrInvalid},
		"infinite":         {b, 0, ctx, outbound.Cost{inf}, outbound.ErrInvalid},
		"negative":         {b, 0, ctx, outbound.Cost{-1}, outbound.ErrInvalid},
		"too large":        {b, 0, ctx, outbound.Cost{2}, outbound.ErrTooLarge},
	} {
		var reported verdicts
		s := shadow.New(c.bucket, c.maxWait, reported.report)
		p, err := s.Acquire(c.ctx, c.cost)
		p.Settle(outbound.Cost{nan})
		p.Settle(outbound.Cost{1})
		p.Answered(refusal)
		p.Done()
		if n, v := reported.last(); err != nil || n != 1 || !errors.Is(v.Err, c.want) || v.Wait != -1 || !idle(s) {
			t.Errorf("%s: %v, %+v, idle: %v", name, err, reported.list(), idle(s))
		}
	}
	p, err := shadow.New(b, 0, nil).Acquire(ctx, outbound.Cost{1})
	p.Done()
	errorIf(t, err != nil, "without report: %v", err)
	wantLevel(t, b, 0)
}

// A call without a slot of InFlight is admitted with an unknown wait, and frees no other slot.
func TestShadow_InFlight(t *testing.T) {
	inBubbles(t, func(t *testing.T, shared bool) {
		var reported verdicts
		s := shadow.New(newBucket(shared, outbound.InFlight(1), outbound.PerSecond(10)), 0, reported.report)
		first, _ := s.Acquire(ctx, outbound.Cost{1})
		for _, want := range []time.Duration{-1, -1, 0} {
			time.Sleep(time.Second)
			if want == 0 {
				first.Done()
				synctest.Wait()
			}
			shadowCall(t, s)
			synctest.Wait()
			_, v := reported.last()
			errorIf(t, v.Wait != want || v.Err != nil, "%+v, want %v", v, want)
		}
	})
}

// A shadow hides its bucket: outbound.As does not find it.
func TestShadow_AsFindsNoBucket(t *testing.T) {
	b, ok := outbound.As[*outbound.Bucket](shadow.New(newBucket(false, outbound.PerSecond(1)), 0, new(verdicts).report))
	errorIf(t, ok || b != nil, "found %v", b)
}

// A verdict reads as a sentence.
func TestVerdict_String(t *testing.T) {
	full := &outbound.ThrottledError{Key: "key", RetryAfter: time.Second}
	for want, v := range map[string]shadow.Verdict{
		"would leave now":                {},
		"would wait 480ms":               {Wait: 480*time.Millisecond + 12},
		"would wait 12ns":                {Wait: 12},
		"would wait for an unknown time": {Wait: -1},
		full.Error():                     {Wait: -1, Err: full},
	} {
		got := v.String()
		errorIf(t, got != want, "%q, want %q", got, want)
	}
}

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

const mostTrips = 256

// storeFunc is a store that does what it is.
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

func (v *verdicts) len() int { return len(v.list()) }

func (v *verdicts) last() shadow.Verdict {
	if all := v.list(); len(all) > 0 {
		return all[len(all)-1]
	}
	return shadow.Verdict{}
}

// shadowCall makes a call that the API answers so.
func shadowCall(t *testing.T, l outbound.Limiter, c outbound.Cost, answers ...outbound.Answer) {
	t.Helper()
	begin := time.Now()
	p, err := l.Acquire(ctx, c)
	if err != nil {
		t.Errorf("a shadow has refused a call: %v", err)
	}
	for _, a := range answers {
		p.Answered(a)
	}
	p.Done()
	p.Done()
	if took := time.Since(begin); took != 0 {
		t.Errorf("a shadow has delayed a call for %v", took)
	}
}

func idle(l outbound.Limiter) bool { return l.(interface{ Idle() bool }).Idle() }

func level(t *testing.T, b *outbound.Bucket) float64 {
	t.Helper()
	s, err := b.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s.Level
}

func perSecond(n float64) *outbound.Bucket {
	return outbound.Must(outbound.NewBucket("key", outbound.Limit{Capacity: n, LeakRate: n}))
}

// No panic and no outage reaches a caller, and each call has one verdict.
func TestShadow_StoreFailureReachesNoCaller(t *testing.T) {
	away := fmt.Errorf("%w: no route", store.ErrUnavailable)
	for name, store := range map[string]storeFunc{
		"fails":  func(context.Context, string, *store.Op) (store.Reply, error) { return store.Reply{}, away },
		"silent": func(context.Context, string, *store.Op) (store.Reply, error) { return store.Reply{}, nil },
		"panics": func(context.Context, string, *store.Op) (store.Reply, error) { panic("store") },
		"slow": func(context.Context, string, *store.Op) (store.Reply, error) {
			time.Sleep(5 * time.Second)
			return store.Reply{}, away
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told verdicts
				b := outbound.Must(outbound.NewSharedBucket(store, "key", outbound.PerSecond(10)))
				s := shadow.New(b, 0, func(ctx context.Context, v shadow.Verdict) {
					told.report(ctx, v)
					panic("report")
				})
				for range 3 {
					shadowCall(t, s, outbound.Cost{1}, refusal)
				}
				time.Sleep(time.Minute)
				if told.len() != 3 {
					t.Errorf("%d verdicts of 3 calls", told.len())
				}
				for _, v := range told.list() {
					if failed := (*outbound.StoreError)(nil); !errors.As(v.Err, &failed) || v.Wait != -1 {
						t.Errorf("verdict %+v", v)
					}
				}
				if !idle(s) {
					t.Error("a trip is still under way")
				}
			})
		})
	}
	told := 0
	s := shadow.New(perSecond(10), 0, func(context.Context, shadow.Verdict) { told++; panic("report") })
	for range 3 {
		p, _ := s.Acquire(ctx, outbound.Cost{1})
		p.Done()
	}
	if told != 3 {
		t.Errorf("%d verdicts of 3 calls", told)
	}
}

// A store that never answers delays no call, and takes no more goroutines than are allowed.
func TestShadow_HungStoreDelaysNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung, told := make(chan struct{}), verdicts{}
		memory, trips := store.NewMemory(), atomic.Int32{}
		b := outbound.Must(outbound.NewSharedBucket(storeFunc(func(ctx context.Context, key string, op *store.Op) (store.Reply, error) {
			trips.Add(1)
			<-hung
			return memory.Update(ctx, key, op)
		}), "key", outbound.Limit{Capacity: 1000, LeakRate: 1}))
		s := shadow.New(b, 0, told.report)
		before, permits := runtime.NumGoroutine(), []outbound.Permit{}
		for range mostTrips + 50 {
			p, err := s.Acquire(ctx, outbound.Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			p.Settle(outbound.Cost{nan})
			p.Settle(outbound.Cost{1.5})
			p.Settle(outbound.Cost{3})
			permits = append(permits, p)
		}
		for i := range permits {
			permits[i].Done()
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > mostTrips+10 || trips.Load() != mostTrips {
			t.Errorf("%d goroutines and %d trips, want %d", n, trips.Load(), mostTrips)
		}
		if failed := (*outbound.StoreError)(nil); told.len() != 50 || !errors.As(told.last().Err, &failed) || told.last().Wait != -1 {
			t.Errorf("%d verdicts, the last %+v", told.len(), told.last())
		}
		if idle(s) {
			t.Error("idle, though trips are under way")
		}
		close(hung)
		synctest.Wait()
		if told.len() != mostTrips+50 || told.last().Err != nil {
			t.Errorf("%d verdicts, the last %+v", told.len(), told.last())
		}
		if n := level(t, b); n != mostTrips*1.5 {
			t.Errorf("level %v, want what the calls have really cost, %v", n, mostTrips*1.5)
		}
	})
}

// A permit that is settled after its verdict corrects the bucket, in memory and in a store.
func TestShadow_SettleCorrectsTheBucket(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			limit := outbound.Limit{Capacity: 100, LeakRate: 1}
			b := outbound.Must(outbound.NewBucket("key", limit))
			if shared {
				b = outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "key", limit))
			}
			s := shadow.New(b, 0, func(context.Context, shadow.Verdict) {})
			p, _ := s.Acquire(ctx, outbound.Cost{1})
			synctest.Wait()
			p.Settle(outbound.Cost{5})
			p.Settle(outbound.Cost{9})
			p.Done()
			synctest.Wait()
			if n := level(t, b); n != 5 {
				t.Errorf("shared %v: level %v, want 5", shared, n)
			}
		})
	}
}

// A shadow ignores what the API answers: no hold, no lower speed, no change of the bucket.
func TestShadow_AnswersChangeNothing(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("key", outbound.PerSecond(10)))
			if shared {
				b = outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "key", outbound.PerSecond(10)))
			}
			defer b.Observe(func(c outbound.Event) { t.Errorf("a change: %+v", c) })()
			var told verdicts
			s := shadow.New(b, 0, told.report)
			for range 20 {
				shadowCall(t, s, outbound.Cost{1}, outbound.Answer{Kind: outbound.AnswerHold, Wait: time.Hour},
					outbound.Answer{Kind: outbound.AnswerRemaining, Wait: time.Hour, Remaining: outbound.Cost{0}})
				shadowCall(t, s, outbound.Cost{1}, refusal)
				time.Sleep(time.Second)
			}
			st, err := b.State(ctx)
			if err != nil || st.HeldFor != 0 || st.Speed != 1 || told.len() != 40 {
				t.Errorf("%d verdicts, the bucket is %+v, %v", told.len(), st, err)
			}
		})
	}
}

// Whatever a maxWait of whole intervals rounds to, the call that goes at its end is admitted.
func TestShadow_CallAtTheEndOfMaxWaitIsAdmitted(t *testing.T) {
	for _, rate := range []float64{3, 7, 1e4 / 7} {
		synctest.Test(t, func(t *testing.T) {
			var told verdicts
			s := shadow.New(outbound.Must(outbound.NewBucket("key", outbound.Limit{Capacity: 1, LeakRate: rate})), time.Duration(70/rate*1e9), told.report)
			for range 71 {
				shadowCall(t, s, outbound.Cost{1})
			}
			if v := told.last(); v.Err != nil {
				t.Errorf("%v per second: %v", rate, v)
			}
			shadowCall(t, s, outbound.Cost{1})
			if v := told.last(); !errors.Is(v.Err, outbound.ErrThrottled) || v.Wait != -1 {
				t.Errorf("%v per second, one more: %v", rate, v)
			}
		})
	}
}

// A call that no limiter could admit is admitted, and its verdict has the error of Acquire.
func TestShadow_InvalidCallsAreAdmitted(t *testing.T) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for name, c := range map[string]struct {
		bucket  *outbound.Bucket
		maxWait time.Duration
		ctx     context.Context
		cost    outbound.Cost
		want    error
	}{
		"no bucket":        {nil, 0, ctx, outbound.Cost{1}, outbound.ErrInvalid},
		"zero bucket":      {new(outbound.Bucket), 0, ctx, outbound.Cost{1}, outbound.ErrInvalid},
		"negative maxWait": {perSecond(1), -1, ctx, outbound.Cost{1}, outbound.ErrInvalid},
		"ended ctx":        {perSecond(1), 0, ended, outbound.Cost{1}, context.Canceled},
		"NaN":              {perSecond(1), 0, ctx, outbound.Cost{nan}, outbound.ErrInvalid},
		"infinite":         {perSecond(1), 0, ctx, outbound.Cost{inf}, outbound.ErrInvalid},
		"negative":         {perSecond(1), 0, ctx, outbound.Cost{-1}, outbound.ErrInvalid},
		"too large":        {perSecond(1), 0, ctx, outbound.Cost{2}, outbound.ErrTooLarge},
	} {
		var told verdicts
		s := shadow.New(c.bucket, c.maxWait, told.report)
		p, err := s.Acquire(c.ctx, c.cost)
		p.Settle(outbound.Cost{nan})
		p.Settle(outbound.Cost{1})
		p.Answered(refusal)
		p.Done()
		if v := told.last(); err != nil || told.len() != 1 || !errors.Is(v.Err, c.want) || v.Wait != -1 {
			t.Errorf("%s: %v, %+v", name, err, told.list())
		}
		if !idle(s) {
			t.Errorf("%s: not idle", name)
		}
	}
	b := perSecond(1)
	s := shadow.New(b, 0, nil)
	p, err := s.Acquire(ended, outbound.Cost{nan})
	if p.Done(); err != nil || level(t, b) != 0 {
		t.Errorf("without report: %v", err)
	}
}

// A call for which InFlight has no slot is admitted with an unknown wait, and frees no other slot.
func TestShadow_InFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told verdicts
		b := outbound.Must(outbound.NewBucket("key", outbound.InFlight(1), outbound.PerSecond(10)))
		s := shadow.New(b, 0, told.report)
		first, _ := s.Acquire(ctx, outbound.Cost{1})
		time.Sleep(time.Second)
		for range 2 {
			shadowCall(t, s, outbound.Cost{1})
			if v := told.last(); v.Wait != -1 || v.Err != nil {
				t.Errorf("while one is in progress: %+v", v)
			}
		}
		first.Done()
		shadowCall(t, s, outbound.Cost{1})
		if v := told.last(); v.Wait != 0 || v.Err != nil {
			t.Errorf("when it has ended: %+v", v)
		}
	})
}

// A shadow is no way to its bucket: outbound.As does not find it.
func TestShadow_AsFindsNoBucket(t *testing.T) {
	s := shadow.New(perSecond(1), 0, func(context.Context, shadow.Verdict) {})
	if b, ok := outbound.As[*outbound.Bucket](s); ok || b != nil {
		t.Errorf("found %v", b)
	}
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
		if got := v.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

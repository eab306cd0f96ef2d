package outbound

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/leak"
)

// storeFunc is a store that does what it is.
type storeFunc func(ctx context.Context, key string, op *leak.Op) (leak.Reply, error)

func (f storeFunc) Update(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
	return f(ctx, key, op)
}

// verdicts keeps what a Shadow tells.
type verdicts struct {
	mu  sync.Mutex
	all []Verdict
}

func (v *verdicts) report(_ context.Context, is Verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = append(v.all, is)
}

func (v *verdicts) last() Verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.all) == 0 {
		return Verdict{}
	}
	return v.all[len(v.all)-1]
}

func (v *verdicts) len() int { return len(v.list()) }

func (v *verdicts) list() []Verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.all)
}

// shadowCall makes a call that the API answers so.
func shadowCall(t *testing.T, l Limiter, c Cost, answers ...Answer) {
	t.Helper()
	begin := time.Now()
	p, err := l.Acquire(ctx, c)
	if err != nil {
		t.Errorf("a Shadow has refused a call: %v", err)
	}
	for _, a := range answers {
		p.Answered(a)
	}
	p.Done()
	p.Done()
	if took := time.Since(begin); took != 0 {
		t.Errorf("a Shadow has held up a call for %v", took)
	}
}

var refusal = Answer{Kind: AnswerRefused, Wait: time.Hour}

func TestNoPanicAndNoOutageReachesACallerBehindAShadow(t *testing.T) {
	away := fmt.Errorf("%w: no route", leak.ErrAway)
	for name, store := range map[string]storeFunc{
		"fails":  func(context.Context, string, *leak.Op) (leak.Reply, error) { return leak.Reply{}, away },
		"silent": func(context.Context, string, *leak.Op) (leak.Reply, error) { return leak.Reply{}, nil },
		"panics": func(context.Context, string, *leak.Op) (leak.Reply, error) { panic("store") },
		"slow": func(context.Context, string, *leak.Op) (leak.Reply, error) {
			time.Sleep(5 * time.Second)
			return leak.Reply{}, away
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told verdicts
				b := Must(NewSharedBucket(store, "key", PerSecond(10)))
				s := Shadow(b, ShadowConfig{Independent: true}, func(ctx context.Context, v Verdict) {
					told.report(ctx, v)
					panic("report")
				})
				for range 3 {
					shadowCall(t, s, Cost{1}, refusal)
				}
				time.Sleep(time.Minute)
				if told.len() != 3 {
					t.Errorf("%d verdicts of 3 calls", told.len())
				}
				for _, v := range told.list() {
					if failed := (*StoreError)(nil); !errors.As(v.Err, &failed) || v.Wait != -1 || !v.Refused || v.Finding != FindingNone {
						t.Errorf("verdict %+v", v)
					}
				}
				if !s.(*shadow).Idle() {
					t.Error("a trip is still under way")
				}
			})
		})
	}
	told := 0
	s := Shadow(Must(NewBucket("key", PerSecond(10))), ShadowConfig{}, func(context.Context, Verdict) { told++; panic("report") })
	for range 3 {
		p, _ := s.Acquire(ctx, Cost{1})
		p.Done()
	}
	if told != 3 {
		t.Errorf("%d verdicts of 3 calls", told)
	}
}

// A store that never answers holds up nobody, and no more goroutines than are allowed.
func TestAHungStoreHoldsUpNobodyBehindAShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung, told := make(chan struct{}), verdicts{}
		memory, trips := leak.NewMemory(), atomic.Int32{}
		b := Must(NewSharedBucket(storeFunc(func(ctx context.Context, key string, op *leak.Op) (leak.Reply, error) {
			trips.Add(1)
			<-hung
			return memory.Update(ctx, key, op)
		}), "key", Limit{Capacity: 1000, LeakRate: 1}))
		s := Shadow(b, ShadowConfig{Independent: true}, told.report)
		before, permits := runtime.NumGoroutine(), []Permit{}
		for range mostTrips + 50 {
			p, err := s.Acquire(ctx, Cost{1})
			if err != nil {
				t.Fatal(err)
			}
			p.Settle(Cost{1.5})
			permits = append(permits, p)
		}
		for i := range permits {
			permits[i].Done()
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > mostTrips+10 || trips.Load() != mostTrips {
			t.Errorf("%d goroutines and %d trips, want %d", n, trips.Load(), mostTrips)
		}
		if told.len() != 50 || !errors.Is(told.last().Err, errManyTrips) || told.last().Wait != -1 {
			t.Errorf("%d verdicts, the last %+v", told.len(), told.last())
		}
		if s.(*shadow).Idle() {
			t.Error("idle, though trips are under way")
		}
		close(hung)
		synctest.Wait()
		if told.len() != mostTrips+50 || told.last().Err != nil {
			t.Errorf("%d verdicts, the last %+v", told.len(), told.last())
		}
		if level := states(t, b)[0].Level; level != mostTrips*1.5 {
			t.Errorf("level %v, want what the calls have really cost, %v", level, mostTrips*1.5)
		}
	})
}

func TestAShadowCountsWhatTheAPIAnswersAndHeedsNothing(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := Must(NewBucket("key", PerSecond(10)))
			if shared {
				b = Must(NewSharedBucket(leak.NewMemory(), "key", PerSecond(10)))
			}
			stop := b.Observe(func(c Event) { t.Errorf("a change: %+v", c) })
			defer stop()
			var told verdicts
			s := Shadow(b, ShadowConfig{Independent: true}, told.report)
			for range 20 {
				shadowCall(t, s, Cost{1}, Answer{Kind: AnswerHold, Wait: time.Hour}, Answer{Kind: AnswerRemaining, Wait: time.Hour, Remaining: Cost{0}})
				shadowCall(t, s, Cost{1}, refusal)
				time.Sleep(time.Second)
			}
			refused := 0
			for _, v := range told.list() {
				if v.Refused {
					refused++
				}
			}
			st := states(t, b)[0]
			if refused != 20 || st.HeldFor != 0 || st.Speed != 1 {
				t.Errorf("%d refusals told, the bucket is %+v", refused, st)
			}
		})
	}
}

// Whatever a MaxWait of whole intervals rounds to, the call that goes at its end is admitted.
func TestAShadowAdmitsACallThatGoesAtTheEndOfItsMaxWait(t *testing.T) {
	for _, rate := range []float64{3, 7, 1e4 / 7} {
		synctest.Test(t, func(t *testing.T) {
			var told verdicts
			config := ShadowConfig{MaxWait: time.Duration(70 / rate * 1e9), Independent: true}
			s := Shadow(Must(NewBucket("key", Limit{Capacity: 1, LeakRate: rate})), config, told.report)
			for range 71 {
				shadowCall(t, s, Cost{1})
			}
			if v := told.last(); v.Err != nil {
				t.Errorf("%v per second: %v", rate, v)
			}
			shadowCall(t, s, Cost{1})
			if v := told.last(); !errors.Is(v.Err, ErrThrottled) {
				t.Errorf("%v per second, one more: %v", rate, v)
			}
		})
	}
}

// Workers that wait for answers get no times, and the bucket has places for as many calls as they
// could have waiting, and no more.
func TestAShadowOfWorkersTellsTheirDemandAndNoTimes(t *testing.T) {
	for i, maxWait := range []time.Duration{5 * time.Second, 300 * time.Millisecond, 5 * time.Second} {
		shared := i > 1
		synctest.Test(t, func(t *testing.T) {
			const workers, took = 8, 500 * time.Millisecond // 16 calls per second
			b := Must(NewBucket("key", Limit{Capacity: 1, LeakRate: 10}))
			if shared {
				b = Must(NewSharedBucket(leak.NewMemory(), "key", Limit{Capacity: 1, LeakRate: 10}))
			}
			var told verdicts
			s := Shadow(b, ShadowConfig{MaxWait: maxWait}, told.report)
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for range 120 {
						p, _ := s.Acquire(ctx, Cost{1})
						time.Sleep(took)
						p.Done()
					}
				})
			}
			time.Sleep(30*time.Second + 1)
			e, err := b.Explain(ctx, Cost{1})
			if err != nil || e.Booked > workers*100*time.Millisecond || e.Booked < 100*time.Millisecond {
				t.Errorf("booked for %v, %v", e.Booked, err)
			}
			wg.Wait()
			for i, v := range told.list() {
				if v.Wait != -1 || v.Err != nil || v.Finding != FindingNone {
					t.Errorf("call %d: %+v", i, v)
				}
			}
			if v := told.last(); v.String() != "demand 1.6 times the limit" {
				t.Errorf("%v", v)
			}
		})
	}
}

func TestAShadowOfWhatCannotBeAdmitsAllTheSame(t *testing.T) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	bucket := func() *Bucket { return Must(NewBucket("key", PerSecond(10))) }
	for name, c := range map[string]struct {
		bucket *Bucket
		config ShadowConfig
		ctx    context.Context
		cost   Cost
		want   error
	}{
		"no bucket":        {nil, ShadowConfig{}, ctx, Cost{1}, ErrNil},
		"zero bucket":      {new(Bucket), ShadowConfig{}, ctx, Cost{1}, ErrNil},
		"negative MaxWait": {bucket(), ShadowConfig{MaxWait: -1}, ctx, Cost{1}, ErrInvalidDuration},
		"ended ctx":        {bucket(), ShadowConfig{Independent: true}, ended, Cost{1}, context.Canceled},
		"NaN":              {bucket(), ShadowConfig{}, ctx, Cost{nan}, ErrInvalidCost},
		"infinite":         {bucket(), ShadowConfig{Independent: true}, ctx, Cost{inf}, ErrInvalidCost},
		"negative":         {bucket(), ShadowConfig{Independent: true}, ctx, Cost{-1}, ErrInvalidCost},
		"too large":        {bucket(), ShadowConfig{}, ctx, Cost{2}, ErrTooLarge},
	} {
		var told verdicts
		s := Shadow(c.bucket, c.config, told.report)
		p, err := s.Acquire(c.ctx, c.cost)
		p.Settle(Cost{nan})
		p.Settle(Cost{1})
		p.Answered(refusal)
		p.Done()
		if v := told.last(); err != nil || told.len() != 1 || !errors.Is(v.Err, c.want) || !(v.Demand >= 0 && v.Demand < 100) {
			t.Errorf("%s: %v, %+v", name, err, told.list())
		}
		if !s.(*shadow).Idle() {
			t.Errorf("%s: not idle", name)
		}
	}
	s := Shadow(nil, ShadowConfig{}, nil)
	if p, err := s.Acquire(ended, Cost{nan}); err != nil || p.Pending() {
		t.Errorf("with nobody to tell: %v", err)
	}
}

// A call that no slot is left for goes, nobody knows when it would, and it ends no other's slot.
func TestAShadowOfCallsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told verdicts
		b := Must(NewBucket("key", InFlight(1), PerSecond(10)))
		s := Shadow(b, ShadowConfig{Independent: true}, told.report)
		first, _ := s.Acquire(ctx, Cost{1})
		time.Sleep(time.Second)
		shadowCall(t, s, Cost{1})
		if v := told.last(); v.Wait != -1 || v.Err != nil {
			t.Errorf("while one is in progress: %+v", v)
		}
		first.Done()
		shadowCall(t, s, Cost{1})
		if v := told.last(); v.Wait != 0 || v.Err != nil || !b.slots().idle() {
			t.Errorf("when it has ended: %+v", v)
		}
	})
}

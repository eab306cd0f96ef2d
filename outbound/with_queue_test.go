package outbound_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

var background = context.Background()

// An API that takes 20 calls in flight gets about as many of 64, and few that it refuses. When it takes
// more, it gets all 64, and never more.
func TestInFlight_AdaptiveFindsWhatTheAPITakes(t *testing.T) {
	for name, refuse := range map[string]func(p *outbound.Permit){
		"429": func(p *outbound.Permit) { p.Refused(100 * time.Millisecond) },
		"concurrency": func(p *outbound.Permit) {
			p.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: 100 * time.Millisecond, Reason: "concurrency"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(background)
				b := outbound.Must(outbound.NewBucket("api", outbound.InFlight(64).Adaptive()))
				q := queue.New(b, queue.Config{})
				var takes, inFlight, most, served, refused atomic.Int64
				takes.Store(20)
				for range 100 {
					go func() {
						for {
							p, err := q.Acquire(ctx, outbound.Cost{1})
							if err != nil {
								return
							}
							n := inFlight.Add(1)
							for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
							}
							if n > takes.Load() {
								refused.Add(1)
								refuse(&p)
							} else {
								time.Sleep(time.Second)
								served.Add(1)
							}
							inFlight.Add(-1)
							p.Done()
						}
					}()
				}
				capacity := func() float64 {
					s, _ := b.State(background)
					return s.Limit.Capacity
				}
				time.Sleep(30 * time.Second)
				served.Store(0)
				refused.Store(0)
				for range 60 {
					time.Sleep(time.Second)
					n := capacity()
					outbound.FatalIf(t, n < 10 || n > 21, "%v in flight of 20 that the API takes", n)
				}
				n, no := served.Load(), refused.Load()
				outbound.ErrorIf(t, n < 60*20*6/10 || no > n/20, "in a minute %d served, %d refused", n, no)
				takes.Store(1000)
				time.Sleep(time.Minute)
				served.Store(0)
				time.Sleep(time.Minute)
				if n, all := capacity(), served.Load(); n != 64 || all < 60*60 || most.Load() > 64 {
					t.Errorf("%v may be in flight, at most %d were, and %d were served in a minute", n, most.Load(), all)
				}
				cancel()
				time.Sleep(2 * time.Second)
			})
		})
	}
}

// A permit reports what remained when its call was charged, without another trip.
func TestPermit_StateIsThatOfTheDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(outbound.FakeStore)
		ten, hour := outbound.Limit{Capacity: 10, LeakRate: 1}, outbound.Window(50, time.Hour).Of(0, "hour")
		of := func(b *outbound.Bucket, err error) outbound.Limiter { return outbound.Must(b, err) }
		for name, l := range map[string]outbound.Limiter{
			"a word":     of(outbound.NewBucket("k", ten)),
			"several":    of(outbound.NewBucket("k", hour, ten)),
			"with slots": of(outbound.NewBucket("k", ten, outbound.InFlight(99))),
			"shared":     of(outbound.NewSharedBucket(store, "k", ten, hour)),
			"observed":   outbound.Observe(of(outbound.NewBucket("k", ten)), "", func(context.Context, outbound.Event) {}),
			"a queue":    queue.New(outbound.Must(outbound.NewBucket("k", ten)), queue.Config{}),
			"a tenant":   (&outbound.Keyed[int]{New: func(int) (outbound.Limiter, error) { return outbound.NewBucket("k", ten) }}).For(1),
			"within Keyed": (&outbound.Keyed[int]{New: func(int) (outbound.Limiter, error) {
				return (&outbound.Keyed[int]{New: func(int) (outbound.Limiter, error) { return outbound.NewBucket("k", ten) }}).For(2), nil
			}}).For(1),
		} {
			var all []outbound.Permit
			for range 2 {
				for range 2 {
					p, err := l.Acquire(background, outbound.Cost{3})
					outbound.FatalIf(t, err != nil, "%v %v", name, err)
					all = append(all, p)
				}
				time.Sleep(2 * time.Second)
			}
			trips := store.Requests.Load()
			for i, level := range []float64{3, 6, 7, 10} { // 2 have leaked before the third
				s := all[i].State()
				if s.Limit.Capacity != 10 || s.Level != level || s.Remaining != 10-level || s.EmptyIn != time.Duration(level)*time.Second || s.Speed != 1 || s.HeldFor != 0 {
					t.Errorf("%s, call %d: %+v, want a level of %v", name, i, s, level)
				}
				all[i].Settle(outbound.Cost{1})
				if s := all[i].State(); s.Level != level {
					t.Errorf("%s, call %d: settled, it is %v", name, i, s.Level)
				}
			}
			outbound.ErrorIf(t, name != "shared" && store.Requests.Load() != trips,
				"%s: %d trips", name, store.Requests.Load()-trips)
		}
		store.Requests.Store(0)
		shared := outbound.Must(outbound.NewSharedBucket(store, "trips", ten))
		p, err := shared.Acquire(background, outbound.Cost{4})
		if s := p.State(); err != nil || s.Remaining != 6 || store.Requests.Load() != 1 {
			t.Errorf("%+v, %v, after %d trips, want 1", s, err, store.Requests.Load())
		}
		if p, err = shared.Acquire(background, outbound.Cost{outbound.Free}); err != nil || p.State().Level != 4 {
			t.Errorf("a free call: %+v, %v", p.State(), err)
		}
		p, _ = outbound.Unlimited{}.Acquire(background, outbound.Cost{1})
		own := outbound.NewPermit(ownCall{})
		var none *outbound.Permit
		if p.State() != (outbound.State{}) || own.State() != (outbound.State{}) || none.State() != (outbound.State{}) {
			t.Errorf("of no bucket: %+v, %+v", p.State(), own.State())
		}
		b := outbound.Must(outbound.NewBucket("k", outbound.Limit{Capacity: 1e6, LeakRate: 1}))
		if n := testing.AllocsPerRun(100, func() {
			p, _ := b.Acquire(background, outbound.Cost{1})
			p.Done()
		}); n != 0 {
			t.Errorf("a call allocates %v times", n)
		}
	})
}

type ownCall struct{}

func (ownCall) Settle(outbound.Cost)     {}
func (ownCall) Answered(outbound.Answer) {}
func (ownCall) Done()                    {}

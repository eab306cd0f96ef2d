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

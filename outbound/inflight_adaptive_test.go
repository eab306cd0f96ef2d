package outbound_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// adaptiveCapacity returns how many calls may be in flight now.
func adaptiveCapacity(t *testing.T, b *outbound.Bucket) float64 {
	t.Helper()
	s, err := b.State(background)
	if err != nil {
		t.Fatal(err)
	}
	return s.Limit.Capacity
}

// An API that takes 20 calls at a time gets about as many of 64, and few that it refuses. When it takes
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
				time.Sleep(30 * time.Second)
				served.Store(0)
				refused.Store(0)
				for range 60 {
					time.Sleep(time.Second)
					if n := adaptiveCapacity(t, b); n < 10 || n > 21 {
						t.Fatalf("%v in flight of 20 that the API takes", n)
					}
				}
				if n, no := served.Load(), refused.Load(); n < 60*20*6/10 || no > n/20 {
					t.Errorf("in a minute %d served, %d refused", n, no)
				}
				takes.Store(1000)
				time.Sleep(time.Minute)
				served.Store(0)
				time.Sleep(time.Minute)
				if n, all := adaptiveCapacity(t, b), served.Load(); n != 64 || all < 60*60 || most.Load() > 64 {
					t.Errorf("%v may be in flight, at most %d were, and %d were served in a minute", n, most.Load(), all)
				}
				cancel()
				time.Sleep(2 * time.Second)
			})
		})
	}
}

// All refusals of calls that were admitted before a cut halve the limit once, and their successes do not
// raise it. It is never below 1.
func TestInFlight_AdaptiveHalvesOnceAnEpisode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outbound.Must(outbound.NewBucket("api", outbound.InFlight(64).Adaptive()))
		take := func(n int) (all []outbound.Permit) {
			for range n {
				p, err := b.Acquire(background, outbound.Cost{1})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, p)
			}
			time.Sleep(time.Millisecond)
			return all
		}
		calls := take(64)
		for i, p := range calls {
			if time.Sleep(time.Millisecond); i%2 == 0 {
				p.Refused(time.Second)
			}
			p.Done()
			if n := adaptiveCapacity(t, b); n != 32 {
				t.Fatalf("%v in flight after the end of call %d, want 32", n, i)
			}
		}
		for _, want := range []float64{16, 8, 4, 2, 1, 1, 1} {
			time.Sleep(2 * time.Hour) // longer than any hold
			p := take(1)[0]
			p.Refused(time.Second)
			p.Done()
			if n := adaptiveCapacity(t, b); n != want {
				t.Errorf("%v in flight, want %v", n, want)
			}
		}
		time.Sleep(2 * time.Hour)
		for _, want := range []float64{2, 2, 3} { // as many successes as there are slots
			calls := take(int(adaptiveCapacity(t, b)))
			calls[0].Done()
			if n := adaptiveCapacity(t, b); n != want {
				t.Errorf("%v in flight after a success, want %v", n, want)
			}
			for _, p := range calls[1:] {
				p.Failed()
			}
		}
		take(1)[0].Done()
		take(1)[0].Done()
		take(1)[0].Done()
		if n := adaptiveCapacity(t, b); n != 3 {
			t.Errorf("%v in flight after successes with slots to spare, want 3", n)
		}
		e, err := b.Explain(background, outbound.Cost{1})
		if err != nil || !strings.Contains(e.String(), `limit "64 in flight, adaptive": 0 of 3 calls in progress`) {
			t.Errorf("%v, %v", e, err)
		}
	})
}

// A bucket whose limit was halved is not idle for an hour.
func TestInFlight_AdaptiveIsKeptForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outbound.Must(outbound.NewBucket("api", outbound.InFlight(64).Adaptive()))
		p, err := b.Acquire(background, outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		p.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: time.Second, Reason: "concurrency"})
		p.Done()
		for _, idle := range []bool{false, true} {
			if time.Sleep(50 * time.Minute); b.Idle() != idle {
				t.Errorf("idle: %v", !idle)
			}
		}
	})
}

// Setting the same limit again keeps what it has learned, and another begins with its own number.
func TestInFlight_AdaptiveAndSetLimits(t *testing.T) {
	limit := outbound.InFlight(64).Adaptive()
	b := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(1000), limit))
	p, err := b.Acquire(background, outbound.Cost{1})
	if err != nil {
		t.Fatal(err)
	}
	p.Refused(time.Millisecond)
	p.Done()
	for _, c := range []struct {
		set  outbound.Limit
		want float64
	}{{limit, 32}, {b.Limits()[1], 32}, {outbound.InFlight(50).Adaptive(), 50}, {outbound.InFlight(64), 64}} {
		if err := b.SetLimits(background, outbound.PerSecond(2000), c.set); err != nil {
			t.Fatal(err)
		}
		if all, err := b.States(background); err != nil || all[1].Limit.Capacity != c.want || b.Limits()[1] != c.set {
			t.Errorf("%v: %+v, %v", c.set, all, err)
		}
	}
}

// An adaptive limit is written and read as text. It is only for InFlight in one process.
func TestInFlight_AdaptiveIsForOneProcess(t *testing.T) {
	limit := outbound.InFlight(64).Adaptive().Of(0, "calls")
	if read, err := outbound.ParseLimit(limit.String()); err != nil || read != limit || limit.String() != "calls: 64 in flight, adaptive" {
		t.Errorf("%v is read as %v, %v", limit, read, err)
	}
	var read outbound.Limit
	if err := json.Unmarshal([]byte(`{"in_flight":64,"adaptive":true,"name":"calls"}`), &read); err != nil || read != limit {
		t.Errorf("%v, %v", read, err)
	}
	for _, bad := range []outbound.Limit{outbound.PerSecond(9).Adaptive(), outbound.InFlight(9).Lease(time.Minute).Adaptive(), outbound.InFlight(9).Adaptive().Lease(time.Minute)} {
		if _, err := outbound.NewBucket("k", bad); !errors.Is(err, outbound.ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if _, err := outbound.NewSharedBucket(store.NewMemory(), "k", limit); !errors.Is(err, outbound.ErrInvalid) || !strings.Contains(err.Error(), "Adaptive is for a bucket in this process") {
		t.Errorf("shared: %v", err)
	}
	b := outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "k", outbound.InFlight(64)))
	if err := b.SetLimits(background, limit); !errors.Is(err, outbound.ErrInvalid) {
		t.Errorf("set in a shared bucket: %v", err)
	}
}

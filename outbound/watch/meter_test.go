package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

var bg = context.Background()

// idler is a limiter that knows whether forgetting it would lose anything.
type idler interface{ Idle() bool }

func bucket(t testing.TB, limits ...outbound.Limit) *outbound.Bucket {
	t.Helper()
	b, err := outbound.NewBucket("secret-key", limits...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// only returns the one limiter that a board shows.
func only(t testing.TB, b *Board) *Limiter {
	t.Helper()
	s := b.Snapshot(bg, Query{})
	if len(s.Limiters) != 1 {
		t.Fatalf("%d limiters are shown", len(s.Limiters))
	}
	return &s.Limiters[0]
}

type limiterFunc func(context.Context, outbound.Cost) (outbound.Permit, error)

func (f limiterFunc) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	return f(ctx, c)
}

// broken is a store that fails.
type broken struct{}

func (broken) Update(context.Context, string, *store.Op) (store.Reply, error) {
	return store.Reply{}, fmt.Errorf("%w: broken", store.ErrUnavailable)
}

// Whatever becomes of calls, each is counted once.
func TestEachCallIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		q := queue.New(bucket(t, outbound.PerSecond(10)), queue.Config{MaxWait: 5 * time.Second})
		away, err := outbound.NewSharedBucket(broken{}, "k", outbound.PerSecond(1))
		if err != nil {
			t.Fatal(err)
		}
		l := b.Add("api", limiterFunc(func(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
			switch c[0] {
			case 2:
				panic("limiter")
			case 3:
				return away.Acquire(ctx, outbound.Cost{1})
			case 4:
				return outbound.Permit{}, errors.New("own")
			case 0.5:
				return q.Acquire(ctx, outbound.Cost{50})
			}
			return q.Acquire(ctx, c)
		}))
		var all sync.WaitGroup
		asked := 0
		ask := func(ctx context.Context, cost float64) {
			asked++
			all.Go(func() {
				defer func() { _ = recover() }()
				if p, err := l.Acquire(ctx, outbound.Cost{cost}); err == nil {
					p.Done()
				}
			})
		}
		short, cancel := context.WithTimeout(bg, 2*time.Second)
		defer cancel()
		gone, leave := context.WithCancel(bg)
		for i := range 100 {
			ask(bg, 1)
			if i%10 == 0 {
				ask(short, 1)
				ask(gone, 1)
				for _, cost := range []float64{2, 3, 4, 0.5} {
					ask(bg, cost)
				}
			}
		}
		synctest.Wait()
		leave()
		time.Sleep(3 * time.Second)
		_ = q.Close()
		ask(bg, 1)
		all.Wait()
		c := only(t, &b).Calls
		if sum := c.Admitted + c.Refused + c.Failed + c.Cancelled; sum != uint64(asked) {
			t.Errorf("%d calls asked, and %d are counted: %+v", asked, sum, c)
		}
		want := map[string]uint64{"panic": 10, "store": 10, "other": 10, "cost": 10, "closed": c.ByError["closed"]}
		if fmt.Sprint(c.ByError) != fmt.Sprint(want) || c.ByError["closed"] == 0 || c.Admitted == 0 || c.Refused == 0 || c.Cancelled == 0 {
			t.Errorf("%+v", c)
		}
		if waits := c.Waits.Count; waits != c.Admitted || c.Units[0] != float64(c.Admitted) {
			t.Errorf("%d waits and %v units of %d admitted calls", waits, c.Units[0], c.Admitted)
		}
	})
}

// A wait that the caller's context ends is cancelled, and is no wait of an admitted call.
func TestACancelledWaitIsInNoHistogram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		l := b.Add("api", queue.New(bucket(t, outbound.PerHour(1)), queue.Config{}))
		if _, err := l.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(bg)
		time.AfterFunc(time.Minute, cancel)
		if _, err := l.Acquire(ctx, outbound.Cost{1}); err != context.Canceled {
			t.Fatal(err)
		}
		if c := only(t, &b).Calls; c.Cancelled != 1 || c.Admitted != 1 || c.Waits.Count != 1 || c.Waits.Within[0] != 1 || c.Waits.Time > time.Second {
			t.Errorf("%+v", c)
		}
	})
}

func TestWaitsAreTheLastMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		wait := time.Duration(0)
		l := b.Add("api", limiterFunc(func(context.Context, outbound.Cost) (outbound.Permit, error) {
			time.Sleep(wait)
			return outbound.Permit{}, nil
		}))
		acquire := func(n int, w time.Duration) {
			wait = w
			for range n {
				if _, err := l.Acquire(bg, outbound.Cost{1}); err != nil {
					t.Fatal(err)
				}
			}
		}
		expect := func(p50, p99 time.Duration) {
			t.Helper()
			m := only(t, &b).Minute
			near := func(got, want time.Duration) bool { return got >= min(want, want*3/4) && got <= max(want, want*4/3) }
			if !near(m.P50, p50) || !near(m.P99, p99) {
				t.Errorf("p50 %v and p99 %v, want about %v and %v", m.P50, m.P99, p50, p99)
			}
		}
		expect(-1, -1)
		acquire(98, 0)
		acquire(2, 400*time.Millisecond)
		expect(0, 300*time.Millisecond)
		time.Sleep(65 * time.Second)
		if m := only(t, &b).Minute; m.P50 >= 0 || m.P99 >= 0 {
			t.Errorf("a quiet minute: %v, %v", m.P50, m.P99)
		}
		acquire(5, 10*time.Second)
		expect(8*time.Second, 10*time.Second)
	})
}

// The units of the last window are shown where the level is always 0 or 1.
func TestALimitMadeByPerShowsTheCallsInItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		l := b.Add("api", queue.New(bucket(t, outbound.PerSecond(10), outbound.Limit{Capacity: 100, LeakRate: 50}.Of(0, "wide")), queue.Config{}))
		for range 50 {
			if _, err := l.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
		}
		s := only(t, &b)
		first, second := s.Limits[0], s.Limits[1]
		if first.Of != 10 || first.Window != time.Second || first.Used < 8 || first.Used > 11 {
			t.Errorf("%+v", first)
		}
		if second.Of != 0 || second.Capacity != 100 {
			t.Errorf("%+v", second)
		}
		time.Sleep(5 * time.Second)
		if s := only(t, &b); s.Limits[0].Used != 0 || s.Minute.Seconds[59].Admitted != 0 || s.Minute.Seconds[53].Admitted == 0 {
			t.Errorf("after five quiet seconds: %+v, %+v", s.Limits[0], s.Minute.Seconds[50:])
		}
	})
}

// What calls cost is known by their permits, and those have nothing more to free than without the board.
func TestABoardCountsWhatTheAPIAnswersAndWrapsNoPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		l := b.Add("api", bucket(t, outbound.Limit{Capacity: 100, LeakRate: 1}))
		p, err := l.Acquire(bg, outbound.Cost{3})
		if err != nil || p.Pending() {
			t.Fatal(err, "or Done has something to free")
		}
		p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: time.Minute, Reason: "rate"})
		p.Refused(0)
		p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Reason: "whim"})
		p.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: 1, Reason: "concurrency"})
		p.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: 1}) // of a call that it has taken
		p.Done()
		s := only(t, &b)
		if fmt.Sprint(s.Calls.ByReason) != "map[concurrency:1 rate:2 unknown:1]" || s.HeldFor < 59*time.Second || s.Severity != Stopped {
			t.Errorf("%+v", s)
		}
	})
}

func TestCountingAllocatesNothing(t *testing.T) {
	var b Board
	l := b.Add("api", bucket(t, outbound.Limit{Capacity: 1e9, LeakRate: 1e9}))
	if n := testing.AllocsPerRun(100, func() {
		p, err := l.Acquire(bg, outbound.Cost{1})
		if err != nil {
			t.Fatal(err)
		}
		p.Done()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAddingANilLimiterIsAnError(t *testing.T) {
	var b Board
	if _, err := b.Add("api", nil).Acquire(bg, outbound.Cost{1}); !errors.Is(err, outbound.ErrInvalid) {
		t.Error(err)
	}
	if s := only(t, &b); s.Calls.ByError["invalid"] != 1 || s.Explain != nil {
		t.Errorf("%+v", s)
	}
}

// A name that is added again goes on with its counters, and has the state of the new limiter.
func TestAdd_SameNameContinuesCounting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		old := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1})
		for _, l := range []outbound.Limiter{b.Add("api", old), b.Add("api", bucket(t, outbound.Limit{Capacity: 7, LeakRate: 1}))} {
			if _, err := l.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Fatal(err)
			}
		}
		if s := only(t, &b); s.Calls.Admitted != 2 || s.Limits[0].Capacity != 7 {
			t.Errorf("%+v", s)
		}
		if err := old.Hold(bg, time.Hour); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := b.Snapshot(bg, Query{}); len(s.Events) != 0 {
			t.Errorf("events of a limiter that is not shown: %+v", s.Events)
		}
	})
}

// A Keyed may drop what it could drop before.
func TestACountedLimiterIsIdleAsItsOwnIs(t *testing.T) {
	var b Board
	if i := b.Add("own", limiterFunc(nil)).(idler); i.Idle() {
		t.Error("idle, though nobody knows")
	}
	l := b.Add("bucket", bucket(t, outbound.PerHour(1)))
	if i := l.(idler); !i.Idle() {
		t.Error("an empty bucket is not idle")
	}
	if _, err := l.Acquire(bg, outbound.Cost{1}); err != nil {
		t.Fatal(err)
	}
	if i, ok := l.(idler); !ok || i.Idle() {
		t.Error("a full bucket is idle")
	}
}

func TestNoTextShowsTheBucketsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		b.Add("api", bucket(t, outbound.PerHour(1)))
		away, err := outbound.NewSharedBucket(broken{}, "secret-key", outbound.PerSecond(1))
		if err != nil {
			t.Fatal(err)
		}
		b.Add("away", away)
		small := bucket(t, outbound.Limit{Capacity: 0.5, LeakRate: 1})
		b.Add("small", small)
		s := b.Snapshot(bg, Query{})
		if text := string(jsonOf(t, s)) + metricsOf(&b); strings.Contains(text, "secret") {
			t.Error(text)
		}
		for _, l := range s.Limiters {
			if l.Name == "small" && (l.Explain.Because != "never" || !strings.Contains(l.Explain.String(), `"small"`)) {
				t.Errorf("%+v", l)
			}
			if l.Name == "away" && (l.Err == "" || l.Severity != Stopped || len(l.Trouble) == 0) {
				t.Errorf("%+v", l)
			}
		}
	})
}

// Somebody else may watch a limiter as well, on either side.
func TestAnObservedLimiterHasAState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Board
		observe := func(l outbound.Limiter) outbound.Limiter {
			return outbound.Observe(l, "", func(context.Context, outbound.Event) {})
		}
		own := bucket(t, outbound.PerHour(1))
		l := observe(b.Add("bucket", observe(observe(own))))
		b.Add("queue", observe(queue.New(own, queue.Config{})))
		if _, err := l.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		if err := own.Hold(bg, time.Hour); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s := b.Snapshot(bg, Query{})
		for _, l := range s.Limiters {
			if !l.Bucket || len(l.Limits) != 1 || l.HeldFor != time.Hour || (l.Queue != nil) != (l.Name == "queue") {
				t.Errorf("%+v", l)
			}
		}
		if len(s.Events) != 2 {
			t.Errorf("%d events", len(s.Events))
		}
		if found, ok := outbound.As[*outbound.Bucket](l); !ok || found != own {
			t.Errorf("%v, %v", found, ok)
		}
		tenants := &outbound.Keyed[string]{}
		of := AddKeyed(&b, "tenants", tenants, nil)
		type user interface {
			Use(func(outbound.Limiter) error) error
		}
		if u, ok := outbound.As[user](of("acme")); !ok || u != tenants.For("acme").(user) {
			t.Errorf("%v, %v", u, ok)
		}
	})
}

package queue_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
)

// The time at which the last call leaves is right within 5 %, and one call's time, from the change on
// that came last: none, a hold, a refusal by the API, a full window, and calls of several costs. If it
// is a lower bound, it is below the truth.
func TestProgress_TimeOfTheLastCall(t *testing.T) {
	one, several := func(int) outbound.Cost { return outbound.Cost{1} }, func(i int) outbound.Cost { return outbound.Cost{1, float64(100 + i*37%400)} }
	for _, c := range []struct {
		name   string
		limits []outbound.Limit
		cost   func(int) outbound.Cost
		calls  int
		change func(*outbound.Permit)
		bound  bool // a lower bound is all that can be known
	}{
		{name: "leaky", limits: []outbound.Limit{outbound.PerSecond(10)}, cost: one, calls: 1000},
		{name: "hold", limits: []outbound.Limit{outbound.PerSecond(10)}, cost: one, calls: 1000, change: func(p *outbound.Permit) { p.Hold(time.Minute) }},
		{name: "429", limits: []outbound.Limit{outbound.PerSecond(10)}, cost: one, calls: 3000, change: func(p *outbound.Permit) { p.Refused(20 * time.Second) }},
		{name: "window", limits: []outbound.Limit{outbound.Window(100, time.Minute)}, cost: one, calls: 1000},
		{name: "window and hold", limits: []outbound.Limit{outbound.Window(100, time.Minute)}, cost: one, calls: 1000, change: func(p *outbound.Permit) { p.Hold(5 * time.Minute) }},
		{name: "several costs", limits: []outbound.Limit{{Capacity: 1000, LeakRate: 2000, Unit: 1}}, cost: func(i int) outbound.Cost { c := several(i); c[0] = outbound.Free; return c }, calls: 1000},
		{name: "two limits", limits: []outbound.Limit{outbound.PerSecond(5), {Capacity: 1000, LeakRate: 2000, Unit: 1}}, cost: several, calls: 1000, bound: true},
		{name: "limit and window", limits: []outbound.Limit{outbound.PerSecond(10), outbound.Window(300, time.Minute)}, cost: one, calls: 2000, bound: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := outbound.Cost{}
				var items []int
				for i := range c.calls {
					items = append(items, i)
					for u, n := range c.cost(i) {
						all[u] += max(0, n)
					}
				}
				type sample struct {
					left    int
					at, eta time.Time
					atLeast bool
					calm    bool // no call comes or leaves at that moment
				}
				var samples []sample
				var lastLeft time.Time
				var mu sync.Mutex
				p := queue.New(outbound.Must(outbound.NewBucket("api", c.limits...)), queue.Config{}).Progress(c.calls, all)
				n, changes := 0, 0
				look := func(calm bool) {
					mu.Lock()
					was := changes
					mu.Unlock()
					e, err := p.Last(t.Context())
					if err != nil || e.Wait < 0 || e.Calls > c.calls {
						t.Errorf("%+v, %v", e, err)
					}
					mu.Lock()
					defer mu.Unlock()
					if left := p.Left(); changes == was && left > 0 { // else it is of before the change
						samples = append(samples, sample{left, time.Now(), time.Now().Add(e.Wait), e.AtLeast, calm})
					}
				}
				var looks sync.WaitGroup
				looks.Go(func() {
					for time.Sleep(977123 * time.Microsecond); p.Left() > 0; time.Sleep(977123 * time.Microsecond) {
						look(true)
					}
				})
				for range outbound.Each(t.Context(), p, c.cost, 8, slices.Values(items), func(ctx context.Context, i int) error {
					mu.Lock()
					lastLeft = time.Now()
					if i == c.calls/4 && c.change != nil {
						c.change(outbound.PermitFrom(ctx))
						samples, changes = nil, changes+1
					}
					mu.Unlock()
					time.Sleep(30 * time.Millisecond)
					return nil
				}) {
					n++
					look(false)
				}
				looks.Wait()
				spacing, bounds, calm := lastLeft.Sub(samples[0].at)/time.Duration(samples[0].left), 0, 0
				for _, s := range samples {
					remains, off := lastLeft.Sub(s.at), s.eta.Sub(lastLeft)
					if s.calm && remains >= time.Minute { // a window's own parts are coarser than 5 % of less
						calm++
						if s.atLeast {
							bounds++
						}
					}
					if off > remains/20+spacing || off < -remains/20-spacing && !s.atLeast {
						t.Errorf("with %d left %v remained, said %v, at least: %v", s.left, remains, s.eta.Sub(s.at), s.atLeast)
						break
					}
				}
				t.Logf("%d samples, %d of %d in a calm moment are lower bounds", len(samples), bounds, calm)
				if n != c.calls || p.Left() != 0 || calm < 30 || !c.bound && bounds > 0 || c.bound && bounds < calm*9/10 {
					t.Errorf("%d yielded, %d left, %d lower bounds of %d", n, p.Left(), bounds, calm)
				}
				if e, err := p.Last(t.Context()); err != nil || e.Wait != 0 || e.Calls != 0 {
					t.Errorf("%+v, %v", e, err)
				}
			})
		})
	}
}

// Calls of others behind the last make its time a lower bound, and never a later one. So does a cost
// that the calls have exceeded.
func TestProgress_NeverLaterThanTheTruth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 1, LeakRate: 1}))
		q := queue.New(b, queue.Config{})
		_, _ = q.Acquire(ctx, outbound.Cost{1})
		p := q.Progress(2, outbound.Cost{2})
		for range 2 {
			go func() { _, _ = p.Acquire(ctx, outbound.Cost{1}) }()
		}
		for others := range 50 {
			synctest.Wait()
			e, err := p.Last(ctx)
			if exact := e.Wait > 1900*time.Millisecond; err != nil || e.Wait > 2001*time.Millisecond || e.AtLeast != (others > 0) || !e.AtLeast && !exact {
				t.Errorf("%d others: %v, at least: %v, %v", others, e.Wait, e.AtLeast, err)
			}
			go func() { _, _ = q.Acquire(ctx, outbound.Cost{1}) }()
		}
		cancel()
		synctest.Wait()
		for _, told := range []float64{0, 50, 100} {
			b := outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 10, LeakRate: 10}))
			p := queue.New(b, queue.Config{}).Progress(100, outbound.Cost{told})
			for left := 99; left > 0; left-- {
				_, _ = p.Acquire(t.Context(), outbound.Cost{1})
				e, err := p.Last(t.Context())
				if truth := time.Duration(left)*100*time.Millisecond + time.Millisecond; err != nil || e.Err != nil || e.Wait < 0 || e.Wait > truth || e.AtLeast != (told < 100) {
					t.Errorf("told %g, %d left: %v, at least: %v, %v, %v", told, left, e.Wait, e.AtLeast, e.Err, err)
					break
				}
			}
		}
	})
}

// An unknown number of calls has no end, refused calls are no longer left, and what is invalid is an
// error.
func TestProgress_UnknownAndInvalid(t *testing.T) {
	b := outbound.Must(outbound.NewBucket("api", outbound.PerHour(1)))
	p := queue.New(b, queue.Config{MaxWait: time.Millisecond}).Progress(0, outbound.Cost{})
	if e, err := p.Last(t.Context()); err != nil || e.Wait >= 0 || p.Left() >= 0 {
		t.Errorf("%+v, %v, %d left", e, err, p.Left())
	}
	p = queue.New(b, queue.Config{MaxWait: time.Millisecond}).Progress(2, outbound.Cost{2})
	for range 3 {
		_, _ = p.Acquire(t.Context(), outbound.Cost{1})
	}
	if p.Left() != 0 {
		t.Errorf("%d left", p.Left())
	}
	p = queue.New(b, queue.Config{}).Progress(2, outbound.Cost{math.NaN()})
	if _, err := p.Last(t.Context()); !errors.Is(err, outbound.ErrInvalid) {
		t.Error(err)
	}
	if _, err := (*queue.Queue)(nil).Progress(1, outbound.Cost{1}).Last(t.Context()); !errors.Is(err, outbound.ErrInvalid) {
		t.Error(err)
	}
	if q, ok := outbound.As[*queue.Queue](p); !ok || q.Bucket() != b {
		t.Error("the queue is not found")
	}
}
